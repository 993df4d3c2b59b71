"""Keeps a set from S3 in the workspace, decoded, so that one process of a pod decodes and all share the memory.

The arrays are memory-mapped: the kernel keeps one copy of them for all ranks, and may drop it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import shutil
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np

from dtj_trainer.data.errors import DataNotFound
from dtj_trainer.data.files import FolderFiles, StoreFiles
from dtj_trainer.data.layouts import fixed_files
from dtj_trainer.data.sources import s3_source
from dtj_trainer.data.staging import stage, this_attempt, workspace_of
from dtj_trainer.data.whole import Whole, known, read_whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from dtj_trainer.data.files import Files
    from dtj_trainer.data.formats.images import Form

log = logging.getLogger(__name__)
_RECORD = "set.json"


def read_once(uri: str, form: Form, classes: Sequence[str]) -> Whole:
    """Read the set at an `s3://` URI as `whole.read_whole` does, or take what another process of the pod has read.

    Within an attempt, the first process asks the store; the others read what the first wrote.
    Raises DataUnavailable as well.
    """
    with _locked(_kept_in(workspace_of(uri), _name(form, classes))) as kept:
        record = _read_record(kept)
        if this_attempt() and record.get("attempt") == this_attempt():
            return _load(kept, record)
        files = _files(uri)
        version = files.fingerprint()
        if record.get("version") != version:
            whole = read_whole(files, form, classes)
            try:
                record = _keep(kept, whole, version)
            except OSError as error:
                log.warning("each process of this pod keeps its own copy of %s: %s", uri, error)
                return whole
        _write_record(kept, {**record, "attempt": this_attempt()})
        return _load(kept, record)


def read_again(uri: str, form: Form, classes: Sequence[str]) -> Whole | None:
    """Return what `read_once` has read on this pod in this attempt, without a request; else None."""
    kept = _kept_in(workspace_of(uri), _name(form, classes))
    record = _read_record(kept)
    fresh = this_attempt() and record.get("attempt") == this_attempt()
    return _load(kept, record) if fresh else None


def _name(form: Form, classes: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps([asdict(form), list(classes)]).encode()).hexdigest()[:8]


def _kept_in(folder: Path, name: str) -> Path:
    return folder / f".unpacked-{name}"


def _files(uri: str) -> Files:
    """Return the files at the URI. Those of a fixed layout are in the workspace, others are read from the store."""
    try:
        paths = stage(uri, fixed_files)
    except DataNotFound:
        files = StoreFiles(uri, s3_source(uri))
        if not known(files):
            raise
        return files
    return FolderFiles(next(iter(paths.values())).parent)


@contextmanager
def _locked(kept: Path) -> Iterator[Path]:
    """Hold the lock of what was asked. The kernel releases the lock when the process is killed."""
    kept.mkdir(parents=True, exist_ok=True)
    with (kept / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield kept


def _keep(kept: Path, whole: Whole, version: str) -> dict[str, object]:
    """Write the arrays. The record, which makes them valid, is written last."""
    (kept / _RECORD).unlink(missing_ok=True)
    try:
        for split, arrays in whole.splits.items():
            for kind, values in zip(("pixels", "labels"), arrays, strict=True):
                np.save(kept / f"{split}-{kind}.npy", values)
    except OSError:
        shutil.rmtree(kept, ignore_errors=True)
        raise
    return {"version": version, "classes": whole.classes, "splits": list(whole.splits)}


def _load(kept: Path, record: dict[str, object]) -> Whole:
    splits, classes = record["splits"], record["classes"]
    assert isinstance(splits, list)
    assert isinstance(classes, list | tuple)

    def array(split: str, kind: str) -> np.ndarray:
        return np.asarray(np.load(kept / f"{split}-{kind}.npy", mmap_mode="r", allow_pickle=False))

    return Whole(
        {split: (array(split, "pixels"), array(split, "labels")) for split in splits}, tuple(classes)
    )


def _read_record(kept: Path) -> dict[str, object]:
    try:
        content = json.loads((kept / _RECORD).read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _write_record(kept: Path, record: dict[str, object]) -> None:
    written = kept / f"{_RECORD}.new"
    written.write_text(json.dumps(record))
    written.replace(kept / _RECORD)
