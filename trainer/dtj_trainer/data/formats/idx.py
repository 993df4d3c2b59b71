"""The idx format of MNIST and its relatives, gzipped or not.

Big-endian: two zero bytes, a type byte, the number of dimensions, each dimension as uint32, the values.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from typing import TYPE_CHECKING

import numpy as np

from dtj_trainer.data.errors import DataCorrupt

if TYPE_CHECKING:
    from pathlib import Path

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_GZIP_MAGIC = b"\x1f\x8b"


def read_idx(path: Path) -> np.ndarray:
    """Read the array of an idx file, in native byte order and read-only. Gzip is recognized by its magic bytes.

    Raises DataCorrupt, which names the file and the fault; OSError when the file can't be read.
    """
    content = path.read_bytes()
    if content.startswith(_GZIP_MAGIC):
        try:
            content = gzip.decompress(content)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise DataCorrupt(f"{path.name} is damaged or cut off: {error}") from error
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _TYPES:
        raise DataCorrupt(
            f"{path.name} is not in idx format: it begins with {content[:4].hex(' ') or 'nothing'}"
        )
    dimensions = content[3]
    header = 4 + 4 * dimensions
    if len(content) < header:
        raise DataCorrupt(f"{path.name} is cut off within its header")
    shape = struct.unpack(f">{dimensions}I", content[4:header])
    dtype = np.dtype(_TYPES[content[2]])
    expected = header + math.prod(shape) * dtype.itemsize
    if len(content) != expected:
        raise DataCorrupt(
            f"{path.name} has {len(content)} bytes where its header, shape {'x'.join(map(str, shape))}, "
            f"asks for {expected}"
        )
    values = np.frombuffer(content, dtype, offset=header).reshape(shape)
    return values.astype(dtype.newbyteorder("="), copy=False)
