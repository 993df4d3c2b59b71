"""`dtj run` with the examples on few pictures: real ranks and servers, an object store of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from tests.patience import PATIENCE
from tests.trainer.conftest import REPOSITORY, until
from tests.trainer.idx_files import write_pictures

from dtj.api.status import JobStatus
from dtj.local.runs import Runs

pytestmark = pytest.mark.torch
HOROVOD, PARAMETER_SERVER = "fashion-mnist-horovod.yaml", "fashion-mnist-ps.yaml"


class DtjRun:
    """One `dtj run` of an example."""

    def __init__(self, home: Path, example: str | Path, *options: str) -> None:
        self.home = home
        self.log = home / f"{time.monotonic_ns()}.out"
        home.mkdir(exist_ok=True)
        file = REPOSITORY / "manifests/examples" / example
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [Path(sys.executable).with_name("dtj"), "run", file, *options],
                env={**os.environ, "DTJ_HOME": str(home)},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def ended(self, code: int = 0) -> str:
        assert self.process.wait(200 * PATIENCE) == code, self.output
        return self.output

    def status(self, name: str) -> JobStatus:
        return Runs(self.home).find(name).job.status

    def says(self, pattern: str) -> re.Match[str]:
        def found() -> re.Match[str] | None:
            assert self.process.poll() is None, self.output
            return re.search(pattern, self.output)

        match: re.Match[str] = until(found, f"{pattern!r} in the output", 120)
        return match


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures that are learned in seconds. All of Fashion-MNIST: on the cluster."""
    return write_pictures(tmp_path_factory.mktemp("few"), 2000, 200)


def with_args(example: str, folder: Path, *args: str) -> Path:
    """An example with more arguments: of two that contradict each other the last one counts."""
    job = yaml.safe_load((REPOSITORY / "manifests/examples" / example).read_text())
    job["spec"]["args"] += args
    # Other tests run beside the ranks.
    job["spec"].setdefault("env", []).append({"name": "OMPI_MCA_mpi_yield_when_idle", "value": "1"})
    file = folder / example
    file.write_text(yaml.safe_dump(job))
    return file


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., DtjRun]]:
    started: list[DtjRun] = []

    def make(example: str | Path, *options: str) -> DtjRun:
        started.append(DtjRun(tmp_path / "home", example, *options))
        return started[-1]

    yield make
    for run in started:
        if run.process.poll() is None:
            run.process.kill()
            run.process.wait()
    until(lambda: not processes_of(tmp_path), "nothing is left", 15)


def processes_of(folder: Path) -> list[str]:
    """Commands of processes that name a folder in their words or their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes()
                if str(folder).encode() in words + (entry / "environ").read_bytes():
                    found.append(words.replace(b"\0", b" ").decode(errors="replace"))
            except OSError:
                continue
    return found


def test_the_horovod_example_goes_on_after_kill_9(
    start: Callable[..., DtjRun], few: Path, tmp_path: Path
) -> None:
    # What is saved after the kill is saved if the machine has time for it: one is there before.
    saving = with_args(HOROVOD, tmp_path, "--epochs=15", "--checkpoint-steps=50")
    killed = start(saving, f"--data={few}")
    saved = int(killed.says(r"uploaded checkpoint \S+/checkpoints/(\d+) ")[1])
    killed.process.kill()
    killed.process.wait()
    until(lambda: not processes_of(tmp_path), "nothing is left", 10)
    at = killed.status("fashion-mnist")
    assert at.phase == "Running"

    resumed = start(saving, "--resume")
    output = resumed.ended()
    steps = [int(step) for step in re.findall(r"\] .* step (\d+)/240", output)]
    assert steps[0] > saved, output
    status = resumed.status("fashion-mnist")
    assert status.phase == "Succeeded"
    assert status.attempt == 2
    assert status.restarts.infrastructure == 1
    assert status.progress is not None
    assert (status.progress.accuracy or 0) >= 0.85
    assert re.search(r"test accuracy (0\.[89]|1\.0)", output)
    until(lambda: not processes_of(tmp_path), "the object store has ended, too", 5)


def test_the_parameter_server_example(start: Callable[..., DtjRun], few: Path, tmp_path: Path) -> None:
    run = start(with_args(PARAMETER_SERVER, tmp_path, "--epochs=12"), f"--data={few}", "--quiet")
    output = run.ended()
    status = run.status("fashion-mnist-ps")
    assert status.phase == "Succeeded"
    assert status.progress is not None
    assert (status.progress.accuracy or 0) >= 0.85
    assert status.artifacts is not None
    assert "[worker-0]" not in output
    assert "dtj artifacts ls fashion-mnist-ps --local" in output


KNOWS_NOTHING = """
import os, pathlib, sys
rank = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("HOROVOD_RANK") or os.environ["DTJ_ROLE"]
checkpoints, model = pathlib.Path("/dtj/checkpoints"), pathlib.Path(sys.argv[1].partition("=")[2])
print("rank", rank, "found", sorted(path.name for path in checkpoints.iterdir()))
(checkpoints / ".new").write_text(rank)
(checkpoints / ".new").rename(checkpoints / "epoch-1.pt")
(model / f"of-{rank}.pt").write_text(rank)
(pathlib.Path(os.environ["OUT"]) / "by-env.pt").write_text(rank)
"""


@pytest.mark.parametrize(("strategy", "first"), [("Horovod", "0"), ("ParameterServer", "chief")])
def test_a_script_with_paths_of_a_container_writes_into_its_own_workspace(
    start: Callable[..., DtjRun], tmp_path: Path, strategy: str, first: str
) -> None:
    """The default of an argument, an argument and a variable; a second job sees nothing of the first."""
    script, file = tmp_path / "script.py", tmp_path / "job.yaml"
    script.write_text(KNOWS_NOTHING)
    replicas = {"worker": {"replicas": 2}} | (
        {"ps": {"replicas": 1}} if strategy == "ParameterServer" else {}
    )
    spec = {
        "strategy": strategy,
        "image": "any",
        "command": ["python", str(script)],
        "args": ["--model=/dtj/model"],
        "env": [{"name": "OUT", "value": "/dtj/model"}],
        "replicaSpecs": replicas,
        "artifacts": {"uri": "s3://training/jobs"},
    }
    job = {
        "apiVersion": "dtj.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": {"name": "own"},
        "spec": spec,
    }
    file.write_text(yaml.safe_dump(job))
    machines = sorted(Path("/dtj").rglob("*")) if Path("/dtj").exists() else None
    for name in ("own", "other"):
        run = start(file, "--name", name)
        assert f"rank {first} found []" in run.ended()
        listed = subprocess.run(
            [Path(sys.executable).with_name("dtj"), "artifacts", "ls", name, "--local"],
            env={**os.environ, "DTJ_HOME": str(tmp_path / "home")},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert "checkpoints/1/epoch-1.pt" in listed
        assert f"model/of-{first}.pt" in listed
        assert "model/by-env.pt" in listed
    assert (sorted(Path("/dtj").rglob("*")) if Path("/dtj").exists() else None) == machines


def test_a_job_that_leaves_nothing_in_its_bucket_says_so(
    start: Callable[..., DtjRun], tmp_path: Path
) -> None:
    job = {
        "apiVersion": "dtj.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": {"name": "nothing"},
        "spec": {
            "strategy": "Horovod",
            "image": "any",
            # A path that is no folder of the workspace's.
            "command": ["python", "-c", f"open({str(tmp_path / 'model.pt')!r}, 'w').write('x')"],
            "replicaSpecs": {"worker": {"replicas": 1}},
            "artifacts": {"uri": "s3://training/jobs"},
        },
    }
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job))
    output = start(file).ended()
    assert "nothing: Succeeded" in output
    assert (
        "JobSucceeded: nothing-launcher-0 ended with exit code 0; the program left neither a checkpoint"
        in output
    )
