"""The six libraries, each killed in its first attempt and resumed, by `dtj run`: `make test-layouts`."""

from __future__ import annotations

import fcntl
import fnmatch
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.layouts.record import HERE, PROGRAMS
from tests.trainer.local_runs import DtjRun, kept, write_job
from tests.trainer.local_runs import start as start  # a fixture

PACKAGES = ("lightning==2.6.6", "transformers==5.24.0", "pytorch-ignite==0.5.5")
"""accelerate, Keras and PyTorch are in the environment of the tests."""
CACHE = Path(os.environ.get("DTJ_CACHE", Path.home() / ".cache/dtj"))
pytestmark = [pytest.mark.layouts, pytest.mark.timeout(1800)]

ALONE = {"keras_fit", "ignite_handlers"}
LAST_FILES = {
    "hf_trainer": {"model.safetensors", "rng_state_0.pth", "rng_state_1.pth", "trainer_state.json"},
    "lightning_fit": {"epoch=5-step=12.ckpt", "hparams.yaml"},
    "dcp_fsdp2": {"__0_0.distcp", "__1_0.distcp", ".metadata", "latest"},
    "keras_fit": {"weights.05-*.keras", "weights.06-*.keras"},
    "accelerate_state": {"model.safetensors", "random_states_0.pkl", "random_states_1.pkl"},
    "ignite_handlers": {"checkpoint_6.pt", "checkpoint_5.pt"},
}


def python() -> Path:
    """An interpreter that has the six libraries: PyTorch and Keras come from the environment of the tests."""
    folder = CACHE / f"layouts-{'-'.join(PACKAGES).replace('==', '-')}"
    done = folder / "done"
    CACHE.mkdir(parents=True, exist_ok=True)
    # Several runs share the cache.
    with (CACHE / "layouts.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _install(folder, done)
    return folder / "bin/python"


def _install(folder: Path, done: Path) -> None:
    if not done.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        _see_environment_of_the_tests(folder)
        subprocess.run([folder / "bin/pip", "install", "--quiet", *PACKAGES], check=True)
        done.touch()
    # Another clone, which may be gone, has used the cache last.
    _see_environment_of_the_tests(folder)


def _see_environment_of_the_tests(folder: Path) -> None:
    (site,) = folder.glob("lib/python3*/site-packages")
    (site / "tests.pth").write_text(sysconfig.get_path("purelib") + "\n")


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_killed_program_goes_on_after_its_last_save(
    name: str, start: Callable[..., DtjRun], tmp_path: Path
) -> None:
    file = write_job(
        tmp_path,
        name.replace("_", "-"),
        [str(python()), str(HERE / "programs" / f"{name}.py")],
        strategy="TorchDistributed",
        replicaSpecs={"worker": {"replicas": 1 if name in ALONE else 2}},
        env=[{"name": "DTJ_CHECKPOINT_SETTLE_SECONDS", "value": "1"}],
    )
    run = start(file)
    run.process.wait(600)
    output = run.ended(0)
    assert re.findall(r"rank 0 begins with epoch (\d+)", output) == ["1", "5"], output
    there = re.split(r"[\s/]+", kept(run, file.stem))
    assert all(fnmatch.filter(there, pattern) for pattern in LAST_FILES[name]), there
    if name == "hf_trainer":
        assert re.search(r"best checkpoint-1\b", output), (
            "the best checkpoint, which is the first, was restored"
        )
