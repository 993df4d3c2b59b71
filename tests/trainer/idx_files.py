"""Small data sets in the published IDX format."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np

NAMES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")


def idx_bytes(values: np.ndarray) -> bytes:
    codes = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}
    code = codes[values.dtype.str[1:]]
    header = struct.pack(f">HBB{values.ndim}I", 0, code, values.ndim, *values.shape)
    return header + values.astype(values.dtype.newbyteorder(">")).tobytes()


def write_pictures(folder: Path, train: int, test: int, *, size: int = 28, compressed: bool = True) -> Path:
    """Ten classes that a network can tell apart: a bright row at the label's height, and noise."""
    folder.mkdir(parents=True, exist_ok=True)
    chance = np.random.default_rng(0)
    for (pixels_name, labels_name), count in ((NAMES[:2], train), (NAMES[2:], test)):
        labels = (np.arange(count) % 10).astype("u1")
        pixels = chance.integers(0, 100, (count, size, size)).astype("u1")
        for index, label in enumerate(labels):
            pixels[index, label * size // 10 : label * size // 10 + 2] = 250
        for name, values in ((pixels_name, pixels), (labels_name, labels)):
            content = idx_bytes(values)
            if compressed:
                (folder / f"{name}.gz").write_bytes(gzip.compress(content, 1))
            else:
                (folder / name).write_bytes(content)
    return folder
