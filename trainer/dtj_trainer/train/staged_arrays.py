"""Copies a training's state, as arrays, for a save beside the training."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np

from dtj_trainer.train.array_process import ArrayProcess, in_memory
from dtj_trainer.train.state_file import write_arrays
from dtj_trainer.train.writer_process import LARGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from dtj_trainer.train.state_file import Array

log = logging.getLogger(__name__)

_NOTHING: Mapping[str, np.ndarray] = {}


class StagedArrays:
    """The copy of a training's state. Its memory, as large as the state, is kept for the next save.

    A large state is copied into memory that an ArrayProcess shares, and this process writes the file. A thread writes
    a small state. Call all methods but `write` in the main thread.
    """

    def __init__(self) -> None:
        self._process: ArrayProcess | None = None
        self._own: dict[str, np.ndarray] = {}
        self._refused = False

    def prepare(self, state: Mapping[str, Array]) -> bool:
        """Allocate the memory for a copy, and start the process. Return False if the memory has no room.

        Without this call, the first `copy` does the same. The values of `state` are not read.
        """
        if self._process or self._own or self._refused:
            return not self._refused
        try:
            if sum(array.nbytes for array in state.values()) >= LARGE_BYTES:
                self._process = ArrayProcess(state)
            else:
                self._own = {name: np.empty(array.shape, array.dtype) for name, array in state.items()}
        except (OSError, MemoryError) as error:
            log.warning(
                "no memory for a copy of the training's state, so the training waits for each save: %s", error
            )
            self._refused = True
        return not self._refused

    def copy(self, state: Mapping[str, Array]) -> Mapping[str, np.ndarray] | None:
        """Overwrite the copy, and return it. Every call gets arrays of the same names and shapes.

        Returns None, also in later calls, if the memory has no room for the copy.
        """
        if not self.prepare(state):
            return None
        copy = self._process.arrays if self._process else self._own
        for name, array in state.items():
            copied, at = copy[name].reshape(-1), 0
            for part in array.parts:
                copied[at : at + part.size] = part.reshape(-1)
                at += part.size
        return copy

    def write(self, path: Path, plain: Mapping[str, np.ndarray] = _NOTHING) -> None:
        """Write small arrays and the copy to a path, as `numpy.savez` would. Another thread may call it.

        Raises OSError, or RuntimeError when the process has ended.
        """
        if self._process:
            self._process.write(path, plain)
        else:
            write_arrays(path, in_memory({**plain, **self._own}))

    def close(self) -> None:
        """Free the copy, and end the process."""
        if self._process:
            self._process.close()
        self._process, self._own = None, {}
