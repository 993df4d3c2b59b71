"""IDX files: types, gzip, copies and wrong files."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from tests.trainer.idx_files import idx_bytes

from dtj_trainer.data.errors import DataCorrupt
from dtj_trainer.data.formats.idx import read_idx


@pytest.mark.parametrize("dtype", ["u1", "i1", "i2", "i4", "f4", "f8"])
@pytest.mark.parametrize("compressed", [False, True])
def test_every_type_raw_and_gzipped(tmp_path: Path, dtype: str, compressed: bool) -> None:
    values = (np.arange(24).reshape(2, 3, 4) - 3).astype(dtype)
    content = idx_bytes(values)
    path = tmp_path / "values"
    path.write_bytes(gzip.compress(content, mtime=0) if compressed else content)
    found = read_idx(path)
    assert found.dtype == values.dtype
    assert found.dtype.isnative
    np.testing.assert_array_equal(found, values)


def test_bytes_are_not_copied(tmp_path: Path) -> None:
    path = tmp_path / "values"
    path.write_bytes(idx_bytes(np.zeros((3, 4, 4), "u1")))

    assert not read_idx(path).flags.owndata


PICTURES = idx_bytes(np.zeros((3, 4, 4), "u1"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "values is not in idx format: it begins with nothing"),
        (b"PK\x03\x04zip", "values is not in idx format: it begins with 50 4b 03 04"),
        (b"<html>", "values is not in idx format: it begins with 3c 68 74 6d"),
        (PICTURES[:9], "values is cut off within its header"),
        (PICTURES[:-1], "values has 63 bytes where its header, shape 3x4x4, asks for 64"),
        (PICTURES + b"x", "values has 65 bytes where its header, shape 3x4x4, asks for 64"),
        (gzip.compress(PICTURES, mtime=0)[:-12], "values is damaged or cut off: Compressed file ended"),
        (gzip.compress(PICTURES, mtime=0)[:-8] + b"\0" * 8, "values is damaged or cut off: CRC check failed"),
        (gzip.compress(PICTURES, mtime=0)[:12] + b"\xff" * 20, "values is damaged or cut off"),
    ],
)
def test_what_is_wrong_with_a_file(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "values"
    path.write_bytes(content)
    with pytest.raises(DataCorrupt) as caught:
        read_idx(path)
    assert str(caught.value).startswith(message)
