"""A training while a large checkpoint is written and uploaded beside it, and the same training between uploads."""

from __future__ import annotations

import resource
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.cluster.progress import ClusterError, note

from bench import toll
from bench.checkpoint_transfer import Transfers
from bench.examples_rate import mean_rate, read_rows
from bench.figures import shown
from bench.operator_process import cpu_seconds

QUIET_SECONDS = 5.0
START_SECONDS = 60.0
ARGUMENTS = ["--model=cnn", "--epochs=1000", "--batch-size=64", "--log-seconds=0"]


def rates(ranks: int, rounds: int, data: Path, transfers: Transfers) -> tuple[list[float], list[float]]:
    """Examples a second of a training by mpirun, during an upload and in the seconds before it, round by round."""
    during, alone = [], []
    with _training(ranks, data) as metrics:
        for number in range(rounds):
            began = datetime.now(UTC)
            time.sleep(QUIET_SECONDS)
            uploading = datetime.now(UTC)
            processor, store = _processor_seconds(), cpu_seconds(transfers.store_pid)
            written = transfers.folder / "written"
            shutil.copyfile(transfers.file, written)
            transfers.up(f"beside-{ranks}-{number}")
            ended = datetime.now(UTC)
            processor, store = _processor_seconds() - processor, cpu_seconds(transfers.store_pid) - store
            written.unlink()
            rows = read_rows(metrics)
            alone.append(mean_rate(rows, began, uploading))
            during.append(mean_rate(rows, uploading, ended))
            seconds = (ended - uploading).total_seconds()
            note(
                f"{ranks} ranks: {shown(alone[-1])} examples/s, {shown(during[-1])} in {seconds:.1f} s of upload, "
                f"for which {processor:.1f} s of a processor went, and {store:.1f} s of the store's"
            )
    return during, alone


@contextmanager
def _training(ranks: int, data: Path) -> Iterator[Path]:
    """Its metrics.jsonl; it has made its first steps, and ends with the block."""
    job = toll.horovod_job()
    job["spec"]["args"] = ARGUMENTS
    with TemporaryDirectory(prefix="dtj-bench-") as folder, toll.horovod(job, data, ranks, Path(folder)):
        metrics = Path(folder, "metrics.jsonl")
        deadline = time.monotonic() + START_SECONDS
        while not metrics.exists() or not any(row["kind"] == "train" for row in read_rows(metrics)):
            if time.monotonic() > deadline:
                raise ClusterError(f"the training has made no step after {START_SECONDS:.0f} s")
            time.sleep(0.2)
        time.sleep(toll.WARM_SECONDS)
        yield metrics


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
