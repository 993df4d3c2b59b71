"""`dtj run` with the examples on few pictures: real ranks and servers, and a separate object store."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from tests import warm
from tests.trainer import local_runs
from tests.trainer.conftest import REPOSITORY, until
from tests.trainer.idx_files import write_pictures
from tests.trainer.local_runs import DtjRun, kept, processes_of

pytestmark = pytest.mark.torch
start = local_runs.start
HOROVOD, PARAMETER_SERVER = "fashion-mnist-horovod.yaml", "fashion-mnist-ps.yaml"
FRAMEWORKS = {HOROVOD: "torch", PARAMETER_SERVER: "tensorflow"}


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures that are learned in seconds. All of Fashion-MNIST: on the cluster."""
    return write_pictures(tmp_path_factory.mktemp("few"), 2000, 200)


def with_args(example: str, folder: Path, *args: str) -> Path:
    """An example with more arguments: of two that contradict each other the last one counts."""
    job = yaml.safe_load((REPOSITORY / "manifests/examples" / example).read_text())
    job["spec"]["args"] += args
    assert job["spec"]["command"][0] == "python"
    job["spec"]["command"][0] = warm.python(FRAMEWORKS[example])
    # Other tests run beside the ranks.
    job["spec"].setdefault("env", []).append({"name": "OMPI_MCA_mpi_yield_when_idle", "value": "1"})
    file = folder / example
    file.write_text(yaml.safe_dump(job))
    return file


def test_the_horovod_example_goes_on_after_kill_9(
    start: Callable[..., DtjRun], few: Path, tmp_path: Path
) -> None:
    # What is saved after the kill is saved if the machine has time for it: one is there before.
    saving = with_args(HOROVOD, tmp_path, "--epochs=15", "--checkpoint-steps=50", "--no-export")
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
    listed = kept(run, "fashion-mnist-ps")
    for name in ("model.keras", "model.onnx", "model.json", "manifest.json"):
        assert f"model/{name}" in listed, output
