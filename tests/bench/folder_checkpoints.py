"""Checkpoints that are a whole folder: bytes sent for small changes, and the restore of many small files."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from dtj_trainer import contract
from dtj_trainer.artifacts.restore import RESUME_AUTO, restore
from dtj_trainer.artifacts.s3 import S3Location, make_client
from dtj_trainer.artifacts.store import Store
from tests.bench.checkpoint_transfer import BUCKET
from tests.bench.checkpoint_uploader import checkpoint_uploader
from tests.bench.targets import Target
from tests.cluster.progress import ClusterError, note

SMALL_FILES, SMALL_BYTES = 20_000, 1_000
ONE_BY_ONE = 1_000
"""So many of the small files are fetched one after the other, for comparison."""
ROUNDS = 3
CHANGED_FILES, CHANGED_BYTES = 100, 10_000_000
SNAPSHOTS = 100
TARGETS = [
    Target("changed-sent/changed", "sent of changed", 1.1, of_a_ratio=True),
    Target("small-restore/one-by-one", "restore of small", 0.5, of_a_ratio=True),
]


def figures(folder: Path) -> dict[str, float]:
    """Return both figures. The environment names the object store."""
    return {"sent of changed": _changed(folder / "changed"), "restore of small": _small(folder / "many")}


def _changed(folder: Path) -> float:
    """Return the bytes sent for each byte that changed, over SNAPSHOTS of a folder of 1 GB."""
    uploader = checkpoint_uploader(folder, Store(S3Location(BUCKET, "changed")))
    folder.mkdir(parents=True)
    for number in range(CHANGED_FILES):
        (folder / f"part-{number}").write_bytes(os.urandom(CHANGED_BYTES))
    _pass(uploader.upload_pass)
    first, newest = uploader.bytes_uploaded, uploader.newest
    for number in range(SNAPSHOTS - 1):
        (folder / f"part-{number % CHANGED_FILES}").write_bytes(os.urandom(CHANGED_BYTES))
        _pass(uploader.upload_pass)
        if uploader.newest == newest:
            raise ClusterError(f"change {number} made no checkpoint")
        newest = uploader.newest
    sent = uploader.bytes_uploaded - first
    note(f"{SNAPSHOTS} checkpoints of {first / 1e9:.1f} GB: {sent / 1e9:.3f} GB sent after the first")
    return sent / (CHANGED_BYTES * (SNAPSHOTS - 1))


def _pass(upload_pass: Callable[..., bool]) -> None:
    if not upload_pass(ended=True, died_ns=None):
        raise ClusterError("a checkpoint was not uploaded")


def _small(folder: Path) -> float:
    """Return the time of a restore of SMALL_FILES, as a part of the time of as many HEADs and GETs in turn."""
    written, store = folder / "written", Store(S3Location(BUCKET, "many"))
    for number in range(SMALL_FILES):
        path = written / f"{number % 100}" / f"{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(number.to_bytes(8, "big") * (SMALL_BYTES // 8))
    _pass(checkpoint_uploader(written, store).upload_pass)
    below, client = store.below(contract.CHECKPOINTS), make_client()
    ratios = []
    for each in range(ROUNDS):
        began = time.monotonic()
        restored = restore(below, folder / f"restored-{each}", RESUME_AUTO)
        took = time.monotonic() - began
        assert restored is not None
        began = time.monotonic()
        for file in restored.manifest.files[:ONE_BY_ONE]:
            key = f"{below.location.prefix}/{file.key}"
            client.head_object(Bucket=BUCKET, Key=key)
            client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        one_by_one = (time.monotonic() - began) * SMALL_FILES / ONE_BY_ONE
        note(f"{SMALL_FILES} files: {took:.1f} s; one after the other {one_by_one:.1f} s")
        ratios.append(took / one_by_one)
    return median(ratios)
