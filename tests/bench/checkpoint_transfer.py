"""Benchmark of dtj_trainer's transfer of a large checkpoint, against boto3's transfer of the same bytes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import boto3

from dtj.local.object_store import REGION, OpenStore, open_store
from dtj_trainer import contract
from dtj_trainer.artifacts.restore import RESUME_AUTO, restore
from dtj_trainer.artifacts.store import Store
from dtj_trainer.artifacts.store import open_store as open_prefix
from tests.bench.checkpoint_uploader import checkpoint_uploader

BUCKET = "bench"
FILE = "weights.pt"
STEP = 1
END_SECONDS = 20.0


@contextmanager
def object_store(folder: Path) -> Iterator[OpenStore]:
    """One of its own below a folder, which can be removed afterwards."""
    with open_store(folder, [BUCKET]) as store:
        process = Path("/proc", str(_pid(folder)))
        yield store
    deadline = time.monotonic() + END_SECONDS
    while process.exists() and time.monotonic() < deadline:
        time.sleep(0.1)


class Transfers:
    """One file, up and down, in either way; each returns the seconds that it took."""

    def __init__(self, store: OpenStore, folder: Path, size: int) -> None:
        """size: bytes, of chance, so that nothing on the way makes them fewer."""
        self.folder = folder
        self.megabytes = size / 1e6
        self.environment: Mapping[str, str] = store.environment
        self.file = folder / FILE
        with self.file.open("wb") as file:
            for start in range(0, size, 2**24):
                file.write(os.urandom(min(2**24, size - start)))
        self._client = boto3.client(
            "s3",
            endpoint_url=store.environment["AWS_ENDPOINT_URL_S3"],
            region_name=REGION,
            aws_access_key_id=store.environment["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=store.environment["AWS_SECRET_ACCESS_KEY"],
        )

    @property
    def store_pid(self) -> int:
        """The process of the object store, on this machine too."""
        return _pid(self.folder)

    def up_by_boto3(self) -> float:
        """`upload_file`."""
        return _timed(lambda: self._client.upload_file(str(self.file), BUCKET, f"boto3/{FILE}"))

    def down_by_boto3(self) -> float:
        """`download_file`."""
        back = self.folder / "back"
        seconds = _timed(lambda: self._client.download_file(BUCKET, f"boto3/{FILE}", str(back)))
        back.unlink()
        return seconds

    def checkpoint(self, job: str) -> Path:
        """A folder of checkpoints with the file as its only one. job: a name that was not used yet."""
        entry = self.folder / job / str(STEP)
        entry.mkdir(parents=True)
        os.link(self.file, entry / FILE)
        return entry.parent

    def up(self, job: str) -> float:
        """A checkpoint with its manifest, as the pod of rank 0 uploads it. job: a prefix that was not used yet."""
        checkpoints = self.checkpoint(job)
        uploader = checkpoint_uploader(checkpoints, self._store(job))
        return _timed(lambda: uploader.upload_pass(ended=True, died_ns=None))

    def down(self, job: str) -> float:
        """Restored as a pod does at its start, every byte compared with the manifest."""
        back = self.folder / f"{job}-back"
        back.mkdir(exist_ok=True)
        store = self._store(f"{job}/{contract.CHECKPOINTS}")
        seconds = _timed(lambda: restore(store, back, RESUME_AUTO))
        restored = back / str(STEP) / FILE
        assert restored.stat().st_size == self.file.stat().st_size
        restored.unlink()
        return seconds

    def _store(self, prefix: str) -> Store:
        """With its client made, as boto3's is: loading what describes S3 takes 0.2 s."""
        store = open_prefix(f"s3://{BUCKET}/{prefix}", self.environment)
        store.folders()
        return store


def _timed(transfer: Callable[[], object]) -> float:
    began = time.monotonic()
    transfer()
    return time.monotonic() - began


def _pid(folder: Path) -> int:
    return int(json.loads((folder / "s3/server.json").read_text())["weed"])
