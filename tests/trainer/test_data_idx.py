"""IDX files: types, gzip, copies and wrong files."""

from __future__ import annotations

import gzip
import tracemalloc

import numpy as np
import pytest
from tests.trainer.idx_files import idx_bytes

from dtj_trainer.data.errors import DataCorrupt
from dtj_trainer.data.formats.idx import read_idx


@pytest.mark.parametrize("dtype", ["u1", "i1", "i2", "i4", "f4", "f8"])
@pytest.mark.parametrize("compressed", [False, True])
def test_every_type_raw_and_gzipped(dtype: str, compressed: bool) -> None:
    values = (np.arange(24).reshape(2, 3, 4) - 3).astype(dtype)
    content = idx_bytes(values)
    found = read_idx(gzip.compress(content, mtime=0) if compressed else content, where="values")
    assert found.dtype == values.dtype
    assert found.dtype.isnative
    np.testing.assert_array_equal(found, values)


def test_bytes_are_not_copied() -> None:
    assert not read_idx(idx_bytes(np.zeros((3, 4, 4), "u1")), where="values").flags.owndata


def test_no_more_is_unpacked_than_the_header_asks_for() -> None:
    bomb = gzip.compress(PICTURES + bytes(200_000_000), mtime=0)
    tracemalloc.start()
    with pytest.raises(DataCorrupt, match="values has more bytes where its header, shape 3x4x4, asks for 64"):
        read_idx(bomb, where="values")
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


NOISE = np.random.default_rng(0).integers(0, 256, (3, 4, 4), "u1")
PICTURES = idx_bytes(np.zeros((3, 4, 4), "u1"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "values is not in idx format: it begins with nothing"),
        (b"PK\x03\x04zip", "values is not in idx format: it begins with 50 4b 03 04"),
        (b"<html>", "values is not in idx format: it begins with 3c 68 74 6d"),
        (PICTURES[:9], "values is cut off within its header"),
        (PICTURES[:-1], "values has 63 bytes where its header, shape 3x4x4, asks for 64"),
        (
            b"\0\0\x08\x03" + b"\xff" * 12,
            "values has the shape 4294967295x4294967295x4294967295: dtj reads at most 2147483648 bytes",
        ),
        (
            b"\0\0\x08\x05" + b"\0\0\0\1" * 5 + b"x",
            "values has the shape 1x1x1x1x1: dtj reads at most 4 dimensions",
        ),
        (PICTURES + b"x", "values has more bytes where its header, shape 3x4x4, asks for 64"),
        (gzip.compress(PICTURES, mtime=0)[:-12], "values is damaged or cut off: Compressed file ended"),
        (gzip.compress(PICTURES, mtime=0)[:-8] + b"\0" * 8, "values is damaged or cut off: CRC check failed"),
        (gzip.compress(idx_bytes(NOISE), mtime=0)[:40] + b"\xff" * 20, "values is damaged or cut off"),
    ],
)
def test_what_is_wrong_with_a_file(content: bytes, message: str) -> None:
    with pytest.raises(DataCorrupt) as caught:
        read_idx(content, where="values")
    assert str(caught.value).startswith(message)
