"""`python -m tests.bench.uploader FOLDER URI [--without-end]`: upload checkpoints of a folder as `dtj-launch` does.

The program ends once a checkpoint is in the bucket, and prints the seconds of a processor that it took from the
first byte on. With `--without-end` it uploads until it is killed.
"""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path

from dtj_trainer.artifacts.multipart import Uploads
from dtj_trainer.artifacts.s3 import BYTES_PER_SECOND, Pace
from dtj_trainer.artifacts.store import open_store
from dtj_trainer.artifacts.sync_loop import SyncLoop
from tests.bench.checkpoint_uploader import checkpoint_uploader

POLL_SECONDS = 0.05


def main() -> None:
    """Upload; the environment has the store's address and keys."""
    folder, uri = Path(sys.argv[1]), sys.argv[2]
    pace = Pace(beside_program=True, bytes_per_second=BYTES_PER_SECOND)
    store = open_store(uri, uploads=Uploads(pace))
    store.folders()  # What describes S3 takes 0.2 s to load.
    uploader = checkpoint_uploader(folder, store)
    used = _processor_seconds()
    SyncLoop("uploading checkpoints", uploader.upload_pass, beside_program=True).start()
    while sys.argv[3:] or uploader.newest is None:
        time.sleep(POLL_SECONDS)
    print(_processor_seconds() - used)


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
