"""The state file of a checkpoint as a zip archive: its identity, and arrays that are read and written in pieces.

Both frameworks' state files are zip archives, which contain a checksum of each entry.
"""

from __future__ import annotations

import hashlib
import math
import zipfile
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dtj_trainer.train.pieces import pieces

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from typing import IO


def identity(path: Path) -> str:
    """Return a digest of names, sizes and checksums of all entries: equal for copies of the same file.

    The function reads only the archive's directory, so that its duration does not depend on the file's size. Raises
    zipfile.BadZipFile or OSError.
    """
    digest = hashlib.sha256()
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            digest.update(f"{entry.filename}\0{entry.file_size}\0{entry.CRC}\n".encode())
    return digest.hexdigest()


class Array(NamedTuple):
    """An array to write, as parts along its first axis."""

    shape: tuple[int, ...]
    dtype: np.dtype
    parts: Iterable[np.ndarray]

    @property
    def nbytes(self) -> int:
        """The bytes of the values."""
        return math.prod(self.shape) * self.dtype.itemsize


def write_arrays(path: Path, arrays: Iterable[tuple[str, Array]]) -> None:
    """Write the file that `numpy.savez` would write for these arrays, with one part in memory at a time."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays:
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                described = np.lib.format.dtype_to_descr(array.dtype)
                header = {"descr": described, "fortran_order": False, "shape": array.shape}
                np.lib.format.write_array_header_1_0(entry, header)
                for part in array.parts:
                    entry.write(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)


def read_array(archive: zipfile.ZipFile, name: str) -> Iterator[tuple[slice | None, np.ndarray]]:
    """Yield the array's parts with their slices along the first axis; the slice is None for the whole array.

    Raises ValueError for an entry that is not an array of numbers, or is too short.
    """
    with archive.open(f"{name}.npy") as entry:
        shape, fortran_order, dtype = _header(entry)
        if dtype.hasobject or fortran_order:
            order = "Fortran" if fortran_order else "C"
            raise ValueError(
                f"the array {name} has the type {dtype} in {order} order: dtj writes numbers in C order"
            )
        row = math.prod(shape[1:])
        whole = math.prod(shape) * dtype.itemsize
        for piece in pieces(shape[0], row * dtype.itemsize) if shape else [None]:
            wanted = whole if piece is None else (piece.stop - piece.start) * row * dtype.itemsize
            held = entry.read(wanted)
            if len(held) < wanted:
                raise ValueError(f"the array {name} is cut off: it has fewer than {whole} bytes")
            yield piece, np.frombuffer(held, dtype).reshape((-1, *shape[1:]) if shape else ())


def _header(entry: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    version = np.lib.format.read_magic(entry)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    header: tuple[tuple[int, ...], bool, np.dtype] = read(entry)
    return header
