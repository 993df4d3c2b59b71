"""Benchmark of a training during the upload of a large checkpoint, against the same training between uploads.

`dtj-launch` uploads from a process of its own, and so does this benchmark. The store is the part of an upload that
runs elsewhere in a cluster: with one rank it has a processor of its own, with two ranks it costs nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from dtj.local.machine import free_ports
from dtj.local.processes import marked
from dtj_trainer import contract
from tests.bench import toll
from tests.bench.checkpoint_transfer import BUCKET, Transfers
from tests.bench.examples_rate import mean_rate, read_rows
from tests.bench.figures import shown
from tests.cluster.progress import ClusterError, note

QUIET_SECONDS = 8.0
START_SECONDS = 60.0
ARGUMENTS = ["--model=cnn", "--epochs=1000", "--batch-size=64", "--log-seconds=0"]
Rates = tuple[list[float], list[float]]


def one_rank(rounds: int, data: Path, transfers: Transfers) -> Rates:
    """Examples a second of one rank on one processor during an upload and beside none, round by round.

    The store has the other processor, and the uploader runs where the kernel puts it.
    """
    with _training(1, data) as (metrics, processes):
        first, *others = sorted(os.sched_getaffinity(0))
        pin(processes, {first})
        pin([transfers.store_pid], set(others) or {first})
        return _rates("one rank", rounds, metrics, transfers, transfers.environment)


def two_ranks(rounds: int, data: Path, transfers: Transfers) -> Rates:
    """Examples a second of two ranks during an upload to a store that costs nothing, and beside none."""
    (port,) = free_ports(1)
    sink = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.sink", str(port)],
        stderr=subprocess.DEVNULL,  # a client that hangs up
    )
    try:
        environment = {**transfers.environment, "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{port}"}
        with _training(2, data) as (metrics, _):
            return _rates("two ranks", rounds, metrics, transfers, environment)
    finally:
        sink.kill()
        sink.wait()


def _rates(
    name: str, rounds: int, metrics: Path, transfers: Transfers, environment: Mapping[str, str]
) -> Rates:
    during, alone = [], []
    for number in range(rounds):
        checkpoints = transfers.checkpoint(f"{name}-{number}")
        began = datetime.now(UTC)
        time.sleep(QUIET_SECONDS)
        uploading = datetime.now(UTC)
        processor = _upload(checkpoints, f"s3://{BUCKET}/{name.replace(' ', '-')}-{number}", environment)
        ended = datetime.now(UTC)
        rows = read_rows(metrics)
        alone.append(mean_rate(rows, began, uploading))
        during.append(mean_rate(rows, uploading, ended))
        seconds = (ended - uploading).total_seconds()
        note(
            f"{name}: {shown(alone[-1])} examples/s, {shown(during[-1])} in {seconds:.1f} s of upload at "
            f"{transfers.megabytes / seconds:.0f} MB/s, which took {processor:.2f} s of a processor"
        )
    return during, alone


def _upload(checkpoints: Path, uri: str, environment: Mapping[str, str]) -> float:
    """Seconds of a processor."""
    command = [sys.executable, "-m", "tests.bench.uploader", str(checkpoints), uri]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"the upload ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return float(done.stdout)


def pin(processes: Iterable[int], processors: set[int]) -> None:
    """Have the threads that these processes have, and will have, run there."""
    for process in processes:
        for thread in Path(f"/proc/{process}/task").iterdir():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread.name), processors)


@contextmanager
def _training(ranks: int, data: Path) -> Iterator[tuple[Path, list[int]]]:
    """Its metrics.jsonl and processes; it has made its first steps, and ends with the block."""
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
        yield metrics, marked(contract.ENV_ROOT, folder)
