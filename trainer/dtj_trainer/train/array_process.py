"""A process that writes arrays into the file that `numpy.savez` would write.

The arrays are in memory that the process shares with the rank.
"""

from __future__ import annotations

import math
import mmap
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dtj_trainer.train.pieces import pieces
from dtj_trainer.train.state_file import Array, write_arrays
from dtj_trainer.train.writer_process import WriterProcess, connected, serve

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_ALIGNMENT = 64


class _Place(NamedTuple):
    """The place of an array in the shared memory. `offset` is in bytes, `dtype` is a `numpy.dtype.str`."""

    offset: int
    shape: tuple[int, ...]
    dtype: str

    def array(self, memory: mmap.mmap) -> np.ndarray:
        """Return the array, which uses the memory."""
        values = np.frombuffer(memory, self.dtype, math.prod(self.shape), self.offset)
        return values.reshape(self.shape)


class _Request(NamedTuple):
    path: str
    plain: Mapping[str, np.ndarray]
    """Small arrays, which come first in the file."""


class ArrayProcess:
    """A process that writes arrays, and the memory that the process shares. Construct it in the main thread.

    `arrays` describes each array; the values are not read. Raises OSError if there is no memory for the arrays.
    """

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        places, end = dict[str, _Place](), 0
        for name, array in arrays.items():
            places[name] = _Place(end, array.shape, array.dtype.str)
            end += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
        descriptor = os.memfd_create("checkpoint")
        try:
            # Let the kernel allocate the pages now. Otherwise the first copy into the memory would be slow.
            os.posix_fallocate(descriptor, 0, max(end, 1))
            memory = mmap.mmap(descriptor, max(end, 1))
            self._process = WriterProcess(__name__, descriptor)
        finally:
            os.close(descriptor)
        self.arrays = {name: place.array(memory) for name, place in places.items()}
        """The arrays in the shared memory, to be overwritten."""
        self._process.connection.send(places)

    def write(self, path: Path, plain: Mapping[str, np.ndarray]) -> None:
        """Let the process write `plain` and the shared arrays to `path`, and wait for it.

        Raises what `WriterProcess.ask` raises.
        """
        self._process.ask(_Request(str(path), plain))

    def close(self) -> None:
        """End the process. The memory is freed when nothing uses `arrays` any more."""
        self._process.close()
        self.arrays = {}


def in_memory(arrays: Mapping[str, np.ndarray]) -> Iterator[tuple[str, Array]]:
    """Describe arrays for `write_arrays`, which then writes them piece by piece."""
    for name, values in arrays.items():
        yield name, Array(values.shape, values.dtype, _parts(values))


def _parts(values: np.ndarray) -> Iterable[np.ndarray]:
    if not values.ndim:
        return [values]
    return (values[piece] for piece in pieces(len(values), values[:1].nbytes))


def main() -> None:
    """Run the process."""
    connection, descriptor = connected(), int(sys.argv[2])
    places: dict[str, _Place] = connection.recv()
    memory = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
    arrays = {name: place.array(memory) for name, place in places.items()}

    def write(request: _Request) -> None:
        write_arrays(Path(request.path), in_memory({**request.plain, **arrays}))

    serve(connection, write)


if __name__ == "__main__":
    main()
