"""Copies a training's state for a save beside the training, by the stager of `torch.distributed.checkpoint`."""

from __future__ import annotations

import logging
import resource
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from dtj_trainer.torch.save_process import SaveProcess
from dtj_trainer.torch.state_dicts import tensors_in
from dtj_trainer.train.writer_process import LARGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

log = logging.getLogger(__name__)


class Stager(DefaultStager):
    """A stager for many copies. PyTorch 2.11 ends its copier after each copy: the next one would raise KeyError."""

    def __init__(self, options: StagingOptions) -> None:
        super().__init__(options)
        copier = self._state_dict_stager
        self._end_copies = copier.close
        copier.close = lambda: None  # type: ignore[method-assign]

    def close(self) -> None:
        """Free the copy."""
        super().close()
        self._end_copies()  # type: ignore[no-untyped-call]


class StagedState:
    """The copy of one rank's state. Its memory, as large as the state, is kept for the next save.

    A large state is copied into shared memory, and a SaveProcess writes it. For a GPU, the memory is pinned.
    """

    def __init__(self) -> None:
        self._stager: Stager | None = None
        self._process: SaveProcess | None = None
        self._refused = False

    def stage(self, state: dict[str, Any]) -> Callable[[Path], None] | None:
        """Copy the state, and return a function that writes the copy to a path. Call the method in the main thread.

        Returns None, also in later calls, if the memory or /dev/shm has no room for the copy.
        """
        if self._refused:
            return None
        try:
            return self._staged(state)
        except (OSError, RuntimeError) as error:
            log.warning(
                "no memory for a copy of the training's state, so the training waits for each save: %s", error
            )
            self._refused = True
            self.close()
            return None

    def _staged(self, state: dict[str, Any]) -> Callable[[Path], None]:
        if self._stager is None:
            tensors = [tensor for _, tensor in tensors_in(state)]
            large = sum(tensor.nbytes for tensor in tensors) >= LARGE_BYTES
            if large:
                # Each tensor in shared memory has a file descriptor. A large network has more tensors than the usual
                # limit of 1024.
                _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
                resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
                self._process = SaveProcess()
            gpu = any(tensor.is_cuda for tensor in tensors)
            self._stager = Stager(
                StagingOptions(
                    use_pinned_memory=gpu,
                    use_shared_memory=large,
                    use_async_staging=False,
                    use_non_blocking_copy=gpu,
                )
            )
        copy, process = self._stager.stage(state), self._process
        if process is None:
            return lambda path: torch.save(copy, path)
        return lambda path: process.write(path, copy)

    def close(self) -> None:
        """Free the copy, and end the process."""
        if self._stager:
            self._stager.close()
        if self._process:
            self._process.close()
