"""Benchmark of one training started by hand, and by `dtj run`: examples per second of each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, Any

import yaml

from dtj.local.machine import free_ports
from tests.bench.examples_rate import data_wait_share, examples_per_second, read_rows
from tests.cluster.progress import ClusterError, note

EXAMPLES = Path(__file__).parents[2] / "manifests/examples"
WARM_SECONDS = 3.0
LONGEST_SECONDS = 300
# One epoch takes a quarter of a minute on two cores; between two tests of the model there is nothing but training.
ARGUMENTS = ["--model=cnn", "--epochs=1", "--batch-size=64", "--log-seconds=0.5", "--no-export"]
AS_ROOT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMP_NUM_THREADS": "1",
}
# As `dtj run` has it: ranks that wait leave the processors to others.
MPI_ENVIRONMENT = {**AS_ROOT, "OMPI_MCA_mpi_yield_when_idle": "1"}
Job = dict[str, Any]


def horovod_job(arguments: Sequence[str] = ARGUMENTS) -> Job:
    """Two ranks."""
    job = _job("fashion-mnist-horovod.yaml")
    job["spec"]["args"] = list(arguments)
    return job


def torch_job(arguments: Sequence[str] = ARGUMENTS) -> Job:
    """Two ranks of torch.distributed, in a worker each."""
    job = _job("fashion-mnist-ddp.yaml")
    job["spec"]["args"] = list(arguments)
    return job


def parameter_server_job() -> Job:
    """A chief, two workers and a ps; an evaluator would take processors from them, now more, now less."""
    job = _job("fashion-mnist-ps.yaml")
    del job["spec"]["replicaSpecs"]["evaluator"]
    job["spec"]["env"] = [{"name": "OMP_NUM_THREADS", "value": "1"}]  # As by hand: TensorFlow heeds it.
    return job


def _job(example: str) -> Job:
    job: Job = yaml.safe_load((EXAMPLES / example).read_text())
    job["spec"]["args"] = ARGUMENTS
    return job


def by_dtj(job: Job, data: Path) -> float:
    """Examples a second by `dtj run`, with its checkpoints and metrics in an object store."""
    with TemporaryDirectory(prefix="dtj-bench-") as folder:
        file = Path(folder, "job.yaml")
        file.write_text(yaml.safe_dump(job))
        dtj = Path(sys.executable).with_name("dtj")
        _run([dtj, "run", file, f"--data={data}", "--quiet"], {"DTJ_HOME": folder})
        (metrics,) = Path(folder, "runs").rglob("metrics.jsonl")
        rows = read_rows(metrics)
        if any("dataWaitShare" in row for row in rows):
            note(f"{data_wait_share(rows):.1%} of the time of its ranks was spent waiting for data")
        return examples_per_second(rows, WARM_SECONDS)


def horovod_by_hand(
    job: Job, data: Path, options: Sequence[str] = (), environment: Mapping[str, str] = MPI_ENVIRONMENT
) -> float:
    """The same by mpirun, and nothing beside it."""
    return _by_hand(job, data, [*mpirun(2), *options], environment)


@contextmanager
def horovod(job: Job, data: Path, ranks: int, root: Path) -> Iterator[None]:
    """A training by mpirun with the workspace `root`, which ends with the block."""
    with _started([*mpirun(ranks), *_command(job, data)], _environment(root, MPI_ENVIRONMENT)):
        yield


def mpirun(ranks: int) -> list[str]:
    """Its command, to which the program's words are added."""
    return ["mpirun", "-n", str(ranks), "--oversubscribe", "--bind-to", "none"]


def torch_by_hand(job: Job, data: Path) -> float:
    """The same by torchrun, and nothing beside it."""
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    (port,) = free_ports(1)
    here = ["--nproc-per-node=2", "--master-addr=127.0.0.1", f"--master-port={port}", "--no-python"]
    return _by_hand(job, data, [*torchrun, *here], {"OMP_NUM_THREADS": "1"})


def parameter_server_by_hand(job: Job, data: Path) -> float:
    """The same by a chief of TensorFlow, with servers that were started before it."""
    counts = {"chief": 1} | {role: spec["replicas"] for role, spec in job["spec"]["replicaSpecs"].items()}
    ports = iter(free_ports(sum(counts.values())))
    cluster = {role: [f"127.0.0.1:{next(ports)}" for _ in range(count)] for role, count in counts.items()}

    def config(role: str, index: int) -> dict[str, str]:
        task = {"type": role, "index": index}
        return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task}), "OMP_NUM_THREADS": "1"}

    with ExitStack() as stack, TemporaryDirectory(prefix="dtj-bench-") as folder:
        for role in ("ps", "worker"):
            for index in range(counts[role]):
                root = Path(folder, f"{role}-{index}")
                stack.enter_context(_started(_command(job, data), _environment(root, config(role, index))))
        return _by_hand(job, data, [], config("chief", 0))


def _by_hand(job: Job, data: Path, starter: Sequence[str], more: Mapping[str, str]) -> float:
    with TemporaryDirectory(prefix="dtj-bench-") as folder:
        _run([*starter, *_command(job, data)], _environment(Path(folder), more))
        return examples_per_second(read_rows(Path(folder, "metrics.jsonl")), WARM_SECONDS)


def _command(job: Job, data: Path) -> list[str]:
    return [sys.executable, *job["spec"]["command"][1:], f"--data={data}", *job["spec"]["args"]]


def _environment(root: Path, more: Mapping[str, str]) -> dict[str, str]:
    root.mkdir(exist_ok=True)
    return {"DTJ_ROOT": str(root), **more}


def _run(command: Sequence[str | Path], more: dict[str, str]) -> None:
    with TemporaryFile("w+") as output, _started(command, more, output) as process:
        try:
            code = process.wait(LONGEST_SECONDS)
        except subprocess.TimeoutExpired:
            raise ClusterError(f"{command[0]} has not ended after {LONGEST_SECONDS} s") from None
        if code:
            output.seek(0)
            raise ClusterError(f"{command[0]} ended with {code}:\n{output.read()[-2000:]}")


@contextmanager
def _started(
    command: Sequence[str | Path], more: dict[str, str], output: IO[str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is there in the block; what it started ends with it."""
    process = subprocess.Popen(
        command, env=os.environ | more, stdout=output or subprocess.DEVNULL, stderr=subprocess.STDOUT,
        process_group=0,
    )  # fmt: skip
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
