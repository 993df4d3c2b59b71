"""Bodies that a client has compressed, unpacked as they arrive: never more than the limit of a body."""

from __future__ import annotations

import zlib
from http import HTTPStatus

from dtj_trainer.serving.refusal import Refused, bad

KNOWN = ("gzip", "deflate")
STEP_BYTES = 1 << 20
"""What one call unpacks at most: the event loop has other requests."""
_GZIP, _ZLIB, _RAW = zlib.MAX_WBITS | 16, zlib.MAX_WBITS, -zlib.MAX_WBITS


class Unpacker:
    """Unpacks one body. `encoding`: gzip or deflate, which some clients send without the header of zlib."""

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._zlib = zlib.decompressobj(_GZIP) if encoding == "gzip" else None
        self._begin = b""

    def next(self, packed: bytes) -> tuple[bytes, bytes]:
        """Unpack at most STEP_BYTES; return them, and what is left of `packed`. Raises Refused (400)."""
        if self._zlib is None:
            self._begin += packed
            if len(self._begin) < 2:
                return b"", b""
            packed, self._begin = self._begin, b""
            zlib_header = packed[0] & 15 == 8 and int.from_bytes(packed[:2]) % 31 == 0
            self._zlib = zlib.decompressobj(_ZLIB if zlib_header else _RAW)
        try:
            content = self._zlib.decompress(packed, STEP_BYTES)
        except zlib.error as error:
            raise bad(
                f"the body is not in the form of its Content-Encoding {self._encoding}: {error}"
            ) from error
        if self._zlib.unused_data:
            raise bad(f"the body goes on behind the end of its Content-Encoding {self._encoding}")
        return content, self._zlib.unconsumed_tail

    def end(self) -> None:
        """Raise Refused (400) for a body that is cut off."""
        if self._zlib is None or not self._zlib.eof:
            raise bad(f"the body is cut off within its Content-Encoding {self._encoding}")


def unpacker_of(encoding: str) -> Unpacker | None:
    """Return what unpacks a body with this Content-Encoding; None for one without. Raises Refused (415)."""
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return None
    if name not in KNOWN:
        raise Refused(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "content",
            f"the Content-Encoding {encoding[:100]!r} is not known: bodies are sent as they are, or by "
            f"{', '.join(KNOWN)}",
            {"Accept-Encoding": ", ".join(KNOWN)},
        )
    return Unpacker(name)
