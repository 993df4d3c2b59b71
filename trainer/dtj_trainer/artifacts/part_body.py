"""A part of an upload as a file, so that its bytes count when they are sent and not when all of them have arrived."""

from __future__ import annotations

import base64
import os
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCK_BYTES = 256 * 1024
"""At least so much is handed to the connection at once: http.client asks for 16 KiB, which costs processor time."""


class PartBody:
    """Reads a part again from its start for each try. Bytes that an earlier try has read count once.

    Whoever waits for an upload that makes progress waits no longer than the part is large, should the network take
    bytes and deliver none.
    """

    def __init__(self, content: bytes, on_bytes: Callable[[int], None]) -> None:
        """`on_bytes` gets the number of bytes that are read for the first time."""
        self._content = memoryview(content)
        self._on_bytes = on_bytes
        self._at = self._most = 0

    def __len__(self) -> int:
        """The bytes of the part."""
        return len(self._content)

    def read(self, amount: int = -1) -> memoryview:
        """The next bytes: `amount`, or BLOCK_BYTES if that is more; empty at the end."""
        end = len(self) if amount < 0 else min(self._at + max(amount, BLOCK_BYTES), len(self))
        block = self._content[self._at : end]
        self._at = end
        if end > self._most:
            self._on_bytes(end - self._most)
            self._most = end
        return block

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """As of a file."""
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: len(self)}[whence]
        return self._at

    def tell(self) -> int:
        """As of a file."""
        return self._at


def crc32_of(content: bytes) -> str:
    """The CRC32 in S3's form. Of a request that has it botocore does not read the body for a checksum of its own."""
    return base64.b64encode(zlib.crc32(content).to_bytes(4, "big")).decode()
