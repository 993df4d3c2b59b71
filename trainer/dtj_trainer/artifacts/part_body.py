"""A part of an upload as a file object. Bytes count when botocore reads them, not when the whole part has arrived."""

from __future__ import annotations

import base64
import os
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCK_BYTES = 256 * 1024
"""The smallest read by the connection. http.client asks for 16 KiB, and so many small reads cost processor time."""


class PartBody:
    """Rereads a part from its start for each try. Bytes that an earlier try has read are counted once.

    A network may accept bytes and deliver none. As repeated bytes are not counted as progress, a caller that waits
    while an upload makes progress waits at most for the size of the part.
    """

    def __init__(self, content: bytes, on_bytes: Callable[[int], None], counted: int = 0) -> None:
        """`on_bytes` gets the number of bytes that are read for the first time. `counted`: by an earlier body."""
        self._content = memoryview(content)
        self._on_bytes = on_bytes
        self._at = 0
        self.counted = counted

    def __len__(self) -> int:
        """Return the size in bytes of this part of a multipart upload."""
        return len(self._content)

    def read(self, amount: int = -1) -> memoryview:
        """Return the next bytes: `amount`, or BLOCK_BYTES if that is more; empty at the end."""
        end = len(self) if amount < 0 else min(self._at + max(amount, BLOCK_BYTES), len(self))
        block = self._content[self._at : end]
        self._at = end
        if end > self.counted:
            self._on_bytes(end - self.counted)
            self.counted = end
        return block

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Seek as in a file."""
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: len(self)}[whence]
        return self._at

    def tell(self) -> int:
        """Return the position as in a file."""
        return self._at


def crc32_of(content: bytes) -> str:
    """Return the CRC32 in S3's form. With it in the request, botocore does not read the body to compute a
    checksum.
    """
    return base64.b64encode(zlib.crc32(content).to_bytes(4, "big")).decode()
