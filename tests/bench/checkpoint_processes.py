"""One process of `tests.bench.checkpoints`: saves, uploads or restores, and writes the costs to a file."""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError

from dtj_trainer import contract
from dtj_trainer.artifacts import checkpoints, s3
from dtj_trainer.artifacts.multipart import Uploads
from dtj_trainer.artifacts.restore import RESUME_AUTO, restore
from dtj_trainer.artifacts.store import Store
from tests.bench.checkpoint_uploader import checkpoint_uploader

BLOCK_BYTES = 16 * 2**20
FILES = 4
"""Of one checkpoint."""
SAMPLE_SECONDS = 0.02
THROTTLED = 10
"""Each part of which the number is a multiple is refused, after it was sent."""
STEP = 1


class Needs:
    """The most memory since it was made, above what there was then, and the bytes sent; all in bytes."""

    def __init__(self, told: Path) -> None:
        self._told = told
        self._start = memory()
        self._lock = threading.Lock()
        self.peak = self.sent = 0
        threading.Thread(target=self._watch, daemon=True).start()

    def send(self, amount: int) -> None:
        """Count what was sent."""
        with self._lock:
            self.sent += amount

    def tell(self) -> None:
        """Write the figures; whoever reads sees the former ones or these."""
        with self._lock:
            self.peak = max(self.peak, memory() - self._start)
            new = self._told.with_suffix(".new")
            new.write_text(json.dumps({"peak": self.peak, "sent": self.sent}))
            new.replace(self._told)

    def _watch(self) -> None:
        while True:
            self.tell()
            time.sleep(SAMPLE_SECONDS)


def memory() -> int:
    """Anonymous and shared memory of this process, in bytes. What the kernel caches of files is not in it."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return sum(int(status[name].split()[0]) * 1024 for name in ("RssAnon", "RssShmem"))


def save(size: int, needs: Needs) -> None:
    """Save a state of so many bytes, which is in memory."""
    state = [[os.urandom(BLOCK_BYTES) for _ in range(size // BLOCK_BYTES // FILES)] for _ in range(FILES)]

    def write(directory: Path) -> None:
        for number, blocks in enumerate(state):
            with (directory / f"part-{number}").open("wb") as file:
                file.writelines(blocks)

    checkpoints.save(STEP, write)
    needs.tell()


def throttled_client(needs: Needs) -> Any:
    """A client of a store that answers a tenth of all parts by 503."""
    client: Any = s3.make_client()
    upload_part, numbers = client.upload_part, count(1)

    def part(**request: Any) -> Any:
        answer = upload_part(**request)
        needs.send(len(request["Body"]))
        if next(numbers) % THROTTLED == 0:
            refusal: Any = {"Error": {"Code": "SlowDown"}, "ResponseMetadata": {"HTTPStatusCode": 503}}
            raise ClientError(refusal, "UploadPart")
        return answer

    client.upload_part = part
    return client


def upload(folder: Path, location: s3.S3Location, attempt: int, needs: Needs) -> None:
    """Upload what is in a folder, as the pod of rank 0 does at the end of its program."""
    store = Store(location, throttled_client(needs), uploads=Uploads())
    uploader = checkpoint_uploader(folder, store, attempt=attempt)
    while not _passed(lambda: uploader.upload_pass(ended=True, died_ns=None)):
        pass
    needs.tell()


def _passed(one_pass: Callable[[], bool]) -> bool:
    try:
        return one_pass()
    except s3.S3Error as error:
        if not error.transient:
            raise
        return False


def main() -> None:
    """Do one of the three."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("save", "upload", "restore"))
    parser.add_argument("--told", type=Path, required=True, help="where the figures go")
    parser.add_argument("--uri", required=True, help="of the job")
    parser.add_argument("--folder", type=Path, required=True, help="of checkpoints")
    parser.add_argument("--bytes", type=int, default=0, help="of the state that is saved")
    parser.add_argument("--attempt", type=int, default=1)
    given = parser.parse_args()
    location = s3.parse_s3_uri(given.uri)
    s3.make_client()  # What is loaded for it is there before anything is measured.
    needs = Needs(given.told)
    if given.what == "save":
        save(given.bytes, needs)
    elif given.what == "upload":
        upload(given.folder, location, given.attempt, needs)
    else:
        assert restore(Store(location / contract.CHECKPOINTS), given.folder, RESUME_AUTO)
        needs.tell()
    # The thread that watches may be writing.
    os._exit(0)


if __name__ == "__main__":
    main()
