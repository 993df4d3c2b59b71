"""Benchmark of a training that saves a large state beside its steps, against the same training without saves.

One rank has a processor of its own, the store has the others. The process that saves and the uploader run where the
kernel puts them. The uploader is a process of its own, as `dtj-launch` is.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from dtj_trainer import contract
from dtj_trainer.artifacts.snapshot import read_index
from dtj_trainer.artifacts.store import open_store
from tests.bench.beside_upload import pin
from tests.bench.checkpoint_transfer import BUCKET, Transfers
from tests.bench.saving_training import PINNED_AFTER
from tests.bench.targets import Target
from tests.cluster.progress import ClusterError, note

SETTLED_STEPS = 3
"""More steps than PINNED_AFTER, which are not counted."""
BATCH = 64
POLL_SECONDS = 0.2
START_SECONDS = 180.0
RESTORES = 3
TARGETS = (
    Target("longest-stall/step", "longest stall", lambda figures: figures["median step"]),
    Target("saving/without", "saving/without", 0.97, at_least=True, of_a_ratio=True),
    Target("restore/boto3", "restore/boto3", 1.0, at_least=True, of_a_ratio=True),
)


def figures(
    folder: Path, data: Path, transfers: Transfers, framework: str, *, seconds: float, every: float
) -> dict[str, float]:
    """The figures of two trainings of so many seconds, one of which saves `every` so many seconds.

    `framework`: `torch` or `tensorflow`.
    """
    size = int(transfers.megabytes * 1e6)
    pin([transfers.store_pid], os.sched_getaffinity(0) - {min(os.sched_getaffinity(0))} or {0})
    without = _steps(
        folder / "without", data, framework, size, seconds, "--checkpoint-seconds=1e9", "--no-async-save"
    )
    uri = f"s3://{BUCKET}/saving"
    root = folder / "saving"
    with _uploader(root / contract.CHECKPOINTS, uri, transfers):
        saving = _steps(root, data, framework, size, seconds, f"--checkpoint-seconds={every}")
        uploaded = len(
            read_index(open_store(f"{uri}/{contract.CHECKPOINTS}", transfers.environment)).manifests
        )
    median = statistics.median(without)
    found = {
        "median step": median,
        "longest stall": max(saving) - median,
        "saving/without": statistics.mean(without) / statistics.mean(saving),
        "restore/boto3": _restores(transfers),
    }
    note(
        f"steps of {median:.3f} s, the longest {max(without):.3f} s without saves and {max(saving):.3f} s with; "
        f"{len(saving)} steps in {sum(saving):.0f} s with saves, of which the newest {uploaded} are in the bucket"
    )
    if not uploaded:
        raise ClusterError("no checkpoint was uploaded during the training")
    return found


def _restores(transfers: Transfers) -> float:
    """How many times as fast as boto3's download a restore is, in the median."""
    transfers.up_by_boto3()
    transfers.up("restored")
    return statistics.median(transfers.down_by_boto3() / transfers.down("restored") for _ in range(RESTORES))


def _steps(
    root: Path, data: Path, framework: str, size: int, seconds: float, *options: str
) -> Sequence[float]:
    """The seconds of each step of a training with these options."""
    (root / contract.CHECKPOINTS).mkdir(parents=True, exist_ok=True)
    times = root / "times"
    program = [framework, str(size), str(times)]
    arguments = [*program, f"--data={data}", f"--batch-size={BATCH}", "--epochs=1000", *options]
    environment = {
        # Horovod's wheel for TensorFlow lies beside the environment, which has the one for PyTorch.
        "PYTHONPATH": os.pathsep.join(
            [f"{sys.prefix}/horovod-tensorflow"] * (framework == "tensorflow")
            + [os.environ.get("PYTHONPATH", "")]
        ).strip(os.pathsep),
        "CUDA_VISIBLE_DEVICES": "",
        contract.ENV_ROOT: str(root),
        contract.ENV_ARTIFACTS_URI: "s3://pruned/by-the-uploader",
        "OMP_NUM_THREADS": "1",
    }
    with (root / "out").open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.saving_training", *arguments],
            env=os.environ | environment,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        begun = PINNED_AFTER + SETTLED_STEPS
        _wait(lambda: len(_read(times)) > begun, process, root, START_SECONDS)
        first = _read(times)[begun]
        _wait(lambda: _read(times)[-1] - first >= seconds, process, root, 2 * seconds + START_SECONDS)
        ended = _read(times)[begun:]
    finally:
        process.kill()
        process.wait()
    return [after - before for before, after in pairwise(ended)]


def _read(times: Path) -> list[float]:
    # The last line may be incomplete.
    return [float(line) for line in times.read_text().split("\n")[:-1]] if times.exists() else []


def _wait(reached: Callable[[], bool], process: subprocess.Popen[bytes], root: Path, limit: float) -> None:
    deadline = time.monotonic() + limit
    while not reached():
        if process.poll() is not None or time.monotonic() > deadline:
            raise ClusterError(f"the training is late or has ended:\n{(root / 'out').read_text()[-2000:]}")
        time.sleep(POLL_SECONDS)


@contextmanager
def _uploader(checkpoints: Path, uri: str, transfers: Transfers) -> Iterator[None]:
    checkpoints.mkdir(parents=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.uploader", str(checkpoints), uri, "--without-end"],
        env=os.environ | dict(transfers.environment),
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()
