"""The idx format of MNIST and its relatives, gzipped or not.

Big-endian: two zero bytes, a type byte, the number of dimensions, each dimension as uint32, the values.
"""

from __future__ import annotations

import gzip
import io
import math
import struct
import zlib
from typing import BinaryIO

import numpy as np

from dtj_trainer.data.errors import DataCorrupt

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_GZIP_MAGIC = b"\x1f\x8b"
_MAX_DIMENSIONS = 4
MAX_BYTES = 2 << 30
"""Limit of a file's values, unpacked."""
_FASHION_MNIST = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
_NAMES_BY_LABELS = {785835114: _FASHION_MNIST, 606848831: _FASHION_MNIST}
"""Names of classes by the CRC-32 of all labels of a published split, training or test. An idx file itself has no
names."""


def class_names(labels: np.ndarray) -> tuple[str, ...]:
    """Return the names of the classes of a published set, which its labels identify; nothing for any other set."""
    return _NAMES_BY_LABELS.get(zlib.crc32(labels.astype(np.uint8).tobytes()), ())


def read_idx(content: bytes, *, where: str) -> np.ndarray:
    """Read the array of an idx file, in native byte order and read-only. Gzip is recognized by its magic bytes.

    Raises DataCorrupt, which names `where` and the fault. No more is unpacked than the header asks for.
    """
    packed = content.startswith(_GZIP_MAGIC)
    file = gzip.GzipFile(fileobj=io.BytesIO(content)) if packed else io.BytesIO(content)
    try:
        return _read(file, where)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataCorrupt(f"{where} is damaged or cut off: {error}") from error


def _read(file: BinaryIO | gzip.GzipFile, where: str) -> np.ndarray:
    start = file.read(4)
    if len(start) < 4 or start[:2] != b"\0\0" or start[2] not in _TYPES:
        raise DataCorrupt(f"{where} is not in idx format: it begins with {start.hex(' ') or 'nothing'}")
    dimensions, dtype = start[3], np.dtype(_TYPES[start[2]])
    sizes = file.read(4 * dimensions)
    if len(sizes) < 4 * dimensions:
        raise DataCorrupt(f"{where} is cut off within its header")
    shape = struct.unpack(f">{dimensions}I", sizes)
    header, expected = 4 + 4 * dimensions, math.prod(shape) * dtype.itemsize
    limit = ""
    if dimensions > _MAX_DIMENSIONS:
        limit = f"at most {_MAX_DIMENSIONS} dimensions"
    elif 0 in shape:
        limit = "no empty arrays"
    elif expected > MAX_BYTES:
        limit = f"at most {MAX_BYTES} bytes of values"
    if limit:
        raise DataCorrupt(f"{where} has the shape {'x'.join(map(str, shape))[:60]}: dtj reads {limit}")
    values = file.read(expected)
    if len(values) < expected or file.read(1):
        found = f"has {header + len(values)}" if len(values) < expected else "has more"
        raise DataCorrupt(
            f"{where} {found} bytes where its header, shape {'x'.join(map(str, shape))}, asks for {header + expected}"
        )
    return np.frombuffer(values, dtype).reshape(shape).astype(dtype.newbyteorder("="), copy=False)
