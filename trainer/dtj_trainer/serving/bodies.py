"""Bodies of requests, read within limits of size and time; and the file in a form (multipart/form-data)."""

from __future__ import annotations

import asyncio
import zlib
from http import HTTPStatus
from typing import TYPE_CHECKING

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from dtj_trainer.serving.errors import Refused, bad

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks
    from starlette.requests import Request

    from dtj_trainer.serving.errors import Held


# Unpacker decompresses a body while the body arrives, so that memory never holds more than the limit of a body.

KNOWN = ("gzip", "deflate")
STEP_BYTES = 1 << 20
"""The most bytes that one call unpacks, so that the event loop gets to other requests."""
_GZIP, _ZLIB, _RAW = zlib.MAX_WBITS | 16, zlib.MAX_WBITS, -zlib.MAX_WBITS


class Unpacker:
    """Unpacks one body. `encoding`: gzip, or deflate, which some clients send without zlib's header."""

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
            raise bad(f"the body has more bytes after the end of its Content-Encoding {self._encoding}")
        return content, self._zlib.unconsumed_tail

    def end(self) -> None:
        """Raise Refused (400) for a body that is cut off."""
        if self._zlib is None or not self._zlib.eof:
            raise bad(f"the body is cut off within its Content-Encoding {self._encoding}")


def unpacker_of(encoding: str) -> Unpacker | None:
    """Return the Unpacker for this Content-Encoding; None for a plain body. Raises Refused (415)."""
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return None
    if name not in KNOWN:
        raise Refused(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "content",
            f"the Content-Encoding {encoding[:100]!r} is not supported: send the body uncompressed, or with "
            f"{' or '.join(KNOWN)}",
            {"Accept-Encoding": ", ".join(KNOWN)},
        )
    return Unpacker(name)


FIELD = "data"
"""The field of a form that holds the picture, as for TorchServe."""
_FORM = b"multipart/form-data"
_MAX_PARTS = 16
_MAX_HEADERS_BYTES = 4096


async def read_body(request: Request, held: Held, most: int, seconds: float) -> bytes:
    """Read a body of at most `most` bytes within `seconds`, and count it in `held`. Raises Refused.

    A compressed body is unpacked as it arrives: the limits are for the unpacked bytes.
    """
    unpacker = unpacker_of(request.headers.get("content-encoding", ""))
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and (len(declared) > 15 or int(declared) > most):
        raise _too_large(most)
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise Refused(HTTPStatus.BAD_REQUEST, "cut", "the connection ended within the body")
                chunk: bytes = message.get("body", b"")
                if unpacker is not None:
                    await _unpack(unpacker, chunk, body, held, most)
                    if not message.get("more_body", False):
                        unpacker.end()
                        return bytes(body)
                    continue
                if len(body) + len(chunk) > most:
                    raise _too_large(most)
                held.add(len(chunk))
                if not message.get("more_body", False):
                    return bytes(body) + chunk if body else chunk
                body += chunk
    except TimeoutError as error:
        why = f"the body did not arrive within {seconds:g} seconds"
        raise Refused(HTTPStatus.REQUEST_TIMEOUT, "slow", why, {"Connection": "close"}) from error


async def _unpack(unpacker: Unpacker, packed: bytes, body: bytearray, held: Held, most: int) -> None:
    """Unpack `packed` and add the result to the body. Other requests go on between two steps."""
    while True:
        content, packed = unpacker.next(packed)
        if len(body) + len(content) > most:
            raise _too_large(most)
        held.add(len(content))
        body += content
        if not packed and len(content) < STEP_BYTES:
            return
        await asyncio.sleep(0)


def _too_large(most: int) -> Refused:
    return Refused(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "size", f"the body has more than {most} bytes (--max-body)"
    )


def picture_in(body: bytes, content_type: str | None) -> bytes:
    """Return the file in a body: the body itself, or the field `data` of a form. Raises Refused (400)."""
    kind, options = parse_options_header(content_type)
    if kind != _FORM:
        return body
    boundary = options.get(b"boundary")
    if not boundary:
        raise bad("the Content-Type multipart/form-data has no boundary")
    form = _Form()
    try:
        parser = MultipartParser(boundary, form.callbacks())
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise bad(f"the form can't be read: {error}") from error
    if not form.complete:
        raise bad("the form is cut off: the body ends before the closing boundary")
    if form.found is None:
        raise bad(f"the form has no field `{FIELD}`, which has to hold the picture file")
    return bytes(form.found)


class _Form:
    """Takes one field out of a form."""

    def __init__(self) -> None:
        self.found: bytearray | None = None
        self.complete = False
        self._parts = 0
        self._name, self._value = bytearray(), bytearray()
        self._wanted = False

    def callbacks(self) -> MultipartCallbacks:
        return {
            "on_part_begin": self._begin,
            "on_header_field": self._header_field,
            "on_header_value": self._header_value,
            "on_header_end": self._header_end,
            "on_part_data": self._data,
            "on_end": self._end,
        }

    def _begin(self) -> None:
        self._parts += 1
        self._wanted = False
        if self._parts > _MAX_PARTS:
            raise bad(f"the form has more than {_MAX_PARTS} fields")

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._add(self._name, data[start:end])

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._add(self._value, data[start:end])

    def _add(self, text: bytearray, more: bytes) -> None:
        text += more
        if len(text) > _MAX_HEADERS_BYTES:
            raise bad(f"a header in the form has a name or value of more than {_MAX_HEADERS_BYTES} bytes")

    def _header_end(self) -> None:
        if self._name.lower() == b"content-disposition":
            _, options = parse_options_header(bytes(self._value))
            self._wanted = options.get(b"name") == FIELD.encode()
            if self._wanted and self.found is not None:
                raise bad(f"the form has the field `{FIELD}` twice")
            if self._wanted:
                self.found = bytearray()
        self._name, self._value = bytearray(), bytearray()

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._wanted and self.found is not None:
            self.found += data[start:end]

    def _end(self) -> None:
        self.complete = True
