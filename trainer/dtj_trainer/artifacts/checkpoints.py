"""Checkpoints for programs that import `dtj_trainer`: written completely or not at all.

    def write(folder: Path) -> None:
        torch.save(state, folder / "state.pt")

    checkpoints.save(step, write, metric=accuracy)
    newest = checkpoints.newest()

`dtj-launch` uploads the checkpoints that `save` wrote while training continues, and restores the newest good
checkpoint before a retry. Only one process of a job writes checkpoints: rank 0.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dtj_trainer import contract
from dtj_trainer.artifacts.local_checkpoints import MARK_FILE, Mark, prune, saved_folders

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from dtj_trainer.artifacts.manifest import MetricMode

DEFAULT_KEEP = 3
FULL_BYTES = 256 * 1024
"""A disk counts as full below this free space, because the write that failed may have asked for more than was
left."""


_TEMPORARY = re.compile(r"\.\d+\.\d+(\.replaced)?\.tmp")
"""Names of temporary folders: a checkpoint that `save` is still writing, or one that `save` is replacing."""


class SavedCheckpoint(NamedTuple):
    """A complete checkpoint on disk: the step and the directory (or file) that holds it."""

    step: int
    path: Path


def folder() -> Path:
    """Return the folder of this process's checkpoints."""
    return Path(contract.checkpoints())


def save(
    step: int,
    write: Callable[[Path], None],
    metric: float | None = None,
    metric_mode: MetricMode = "max",
    parts: int = 1,
    on_demand: str = "",
) -> Path:
    """Write a checkpoint into the directory `checkpoints/<step>` and return it.

    `write` gets an empty directory and puts the files there; when `write` raises, `save` removes the directory. The
    checkpoint gets its final name only after all its content is on disk. The checkpoint with the best `metric` is
    kept in addition to the newest ones; `metric_mode` says whether a greater or a smaller metric is better. An older
    checkpoint of the same step is replaced.

    `parts`: the number of pods that save files of their own at this step, each by one process with this function. The
    parts are one checkpoint, which a restore brings to every pod. File names must be unique over all pods.

    `on_demand`: a pattern of file names, such as `__*.distcp`. A restore leaves these files of the directory in the
    bucket; the program then calls `bring` before it reads some of them.

    Raises what `write` raises, but OSError (ENOSPC) when the disk is full,
    because libraries report a full disk in many ways.
    """
    if step < 0:
        raise ValueError(f"a checkpoint's step can't be negative: {step}")
    parent = folder()
    parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(parent)
    writing = parent / f".{step}.{os.getpid()}.tmp"
    shutil.rmtree(writing, ignore_errors=True)
    try:
        writing.mkdir()
        with _locked(writing):
            write(writing)
            _write_mark(writing, Mark(step, metric, metric_mode, parts, on_demand))
            _flush_to_disk(writing)
            target = parent / str(step)
            if target.exists():
                replaced = parent / f".{step}.{os.getpid()}.replaced.tmp"
                target.rename(replaced)
                writing.rename(target)
                shutil.rmtree(replaced, ignore_errors=True)
            else:
                writing.rename(target)
            _flush_file(parent)
    except BaseException as error:
        # Measure the free space before rmtree frees some. A signal or an exit does not mean that the disk is full.
        full = isinstance(error, Exception) and shutil.disk_usage(parent).free < FULL_BYTES
        shutil.rmtree(writing, ignore_errors=True)
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(parent / str(step))) from error
        raise
    if not os.environ.get(contract.ENV_ARTIFACTS_URI):
        # With a bucket, dtj-launch prunes after it has uploaded the checkpoints that stay.
        prune(parent, saved_folders(parent), keep_from_environment())
    return target


def saved() -> list[SavedCheckpoint]:
    """Complete checkpoints made by `save`, the oldest first."""
    return sorted(
        SavedCheckpoint(mark.step, folder() / name) for name, mark in saved_folders(folder()).items()
    )


def newest() -> SavedCheckpoint | None:
    """Return the newest complete checkpoint made by `save`. After a restore, training continues from this
    checkpoint.
    """
    return max(saved(), default=None)


def bring(checkpoint: Path, names: Iterable[str]) -> None:
    """Fetch files of a restored checkpoint that `save` got as `on_demand`, unless they are there.

    Several processes of a pod may call it at once: each file is fetched once, and compared with the checkpoint's
    manifest. Files that were written in this pod, and other names, are left alone. Raises S3Error when a file is
    missing or damaged, or when the bucket can't be read.
    """
    # Import late: the module loads boto3, which most programs never need.
    from dtj_trainer.artifacts import file_fetch

    file_fetch.bring(checkpoint, names)


def keep_from_environment() -> int:
    """Return how many of the newest checkpoints to keep, at least 1."""
    text = os.environ.get(contract.ENV_CHECKPOINTS_KEEP, "")
    return max(int(text), 1) if text.strip().isdecimal() else DEFAULT_KEEP


def _remove_leftovers(parent: Path) -> None:
    """Remove the temporary folders of killed processes. A save in progress holds the lock of its folder, which
    stays.
    """
    for path in parent.glob(".*.tmp"):
        if _TEMPORARY.fullmatch(path.name):
            with contextlib.suppress(OSError), _locked(path):
                shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock. The kernel releases the lock when the process is killed.

    Raises BlockingIOError where another thread or process holds the lock.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:
            pass  # Some network file systems cannot lock folders. Only one process writes checkpoints in any case.
        yield
    finally:
        os.close(descriptor)


def _write_mark(directory: Path, mark: Mark) -> None:
    content: dict[str, object] = {"step": mark.step}
    if mark.metric is not None and math.isfinite(mark.metric):
        content |= {"metric": float(mark.metric), "metricMode": mark.metric_mode}
    if mark.parts > 1:
        content["parts"] = mark.parts
    if mark.on_demand:
        content["onDemand"] = mark.on_demand
    (directory / MARK_FILE).write_text(json.dumps(content))


def _flush_to_disk(directory: Path) -> None:
    for path in [*directory.rglob("*"), directory]:
        _flush_file(path)


def _flush_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
