"""Removes what the ended programs of a round leave in a container, so that the next round does not find it.

Leftovers are processes in sessions of their own, memory of GPUs, and temporary files. Files in the workspace stay:
`pod` sets the folder of checkpoints to the snapshot of the round, and the programs need the data again.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from dtj_trainer.launch.processes import end_descendants, read, with_descendants
from dtj_trainer.launch.settings import Settings
from dtj_trainer.utilisation.sources import Gpus

log = logging.getLogger(__name__)

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a mount point
GPU_SECONDS = 50.0
"""Seconds for the memory of GPUs to become free: the driver frees it after the end of a process."""
GPU_BYTES = 256 * 1024**2
"""The memory of a GPU that may stay in use between two rounds, above the use before the first start: the driver keeps
some."""
ORPHANS_SECONDS = 0.2
"""Seconds in which killed programs end. Processes that still run then were outside the programs' process groups."""
_POLL_SECONDS = 0.2
_MOST_PIDS = 5


class Leftovers:
    """The leftovers of a pod's programs. Make it before the first start, and use it in the main thread."""

    def __init__(self, settings: Settings, gpus: Callable[[], Mapping[str, int]] | None = None) -> None:
        """`gpus`: returns the bytes in use of each GPU that the container has."""
        self._kept = settings.kept_whole
        self._used = gpus or _used_of(Gpus())
        self._used_before = self._used()
        temporary = Path(settings.environment.get("TMPDIR") or "/tmp")  # noqa: S108 - the default of all programs
        folders = [SHARED_MEMORY]
        if not (temporary.is_relative_to(settings.root) or settings.root.is_relative_to(temporary)):
            folders.append(temporary)
        self._files = TemporaryFiles(folders, shared=settings.own_root)

    def end_processes(self, kill: Callable[[], None]) -> list[Path]:
        """Kill the programs by `kill`, then all processes that they have started. Return the files that are torn: see
        `LeftBehind`.
        """
        self._files.note(with_descendants(os.getpid())[1:])
        kill()
        return end_descendants(self._kept, ORPHANS_SECONDS).torn

    def remove(self, given_up: Callable[[], bool]) -> str:
        """Remove what is left after the end of all programs; wait for the memory of GPUs, until `given_up`.

        Return why no program may start here, as a predicate of the pod; empty if one may.
        """
        if alive := end_descendants(self._kept, 0.0).alive:
            pids = ", ".join(map(str, alive[:_MOST_PIDS]))
            return f"has {len(alive)} processes that SIGKILL does not end: {pids}"
        self._files.remove()
        deadline = time.monotonic() + GPU_SECONDS
        while (held := self._held()) and not given_up():
            if time.monotonic() >= deadline:
                return f"has memory of GPU {held} in use {GPU_SECONDS:g} s after the end of its programs"
            time.sleep(_POLL_SECONDS)
        return ""

    def _held(self) -> str:
        """Return the number of a GPU whose memory is in use; empty for none."""
        before = self._used_before
        held = (gpu for gpu, used in self._used().items() if used > before.get(gpu, 0) + GPU_BYTES)
        return next(held, "")


def _used_of(gpus: Gpus) -> Callable[[], Mapping[str, int]]:
    def used() -> Mapping[str, int]:
        readings = gpus.read().items()
        return {gpu: reading.memory_used for gpu, reading in readings if reading.memory_used is not None}

    return used


class TemporaryFiles:
    """The files that programs leave in folders for temporary files. Files from before the first start stay."""

    def __init__(self, folders: Iterable[Path], *, shared: bool) -> None:
        """`shared`: other programs of this machine use the folders, too. Then only files that `note` has seen are
        removed, else all new files.
        """
        self._folders, self._shared = tuple(folders), shared
        self._before = set(self._entries())
        self._own: set[Path] = set()

    def note(self, pids: Iterable[int]) -> None:
        """Note which files in shared folders these processes use. Call it before they are killed."""
        if not self._shared:
            return
        for path in (Path(path) for pid in pids for path in _shared_memory_of(pid)):
            tops = (
                folder / path.relative_to(folder).parts[0]
                for folder in self._folders
                if folder in path.parents
            )
            if not self._before.issuperset(tops):
                self._own.add(path)

    def remove(self) -> None:
        """Remove the files."""
        for path in self._own if self._shared else set(self._entries()) - self._before:
            try:
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
            except OSError as error:
                log.warning("the temporary file %s can't be removed: %s", path, error.strerror)
        self._own.clear()

    def _entries(self) -> Iterator[Path]:
        for folder in self._folders:
            with suppress(OSError):
                yield from folder.iterdir()


def _shared_memory_of(pid: int) -> Iterator[str]:
    """Yield the paths of the files that a process has mapped into its memory, and writes to."""
    for line in read(Path(f"/proc/{pid}/maps")).splitlines():
        # The fields of a line are address, permissions, offset, device, inode and path.
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[1] == "rw-s":
            yield fields[5]
