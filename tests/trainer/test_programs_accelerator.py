"""The built-in programs with requested GPUs: messages without a GPU, and GPUs that Horovod can't use.

* frameworks without CUDA
* Horovod without NCCL
* GPUs for each rank, and GPUs that no rank uses
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests import warm
from tests.trainer.conftest import NOT_IN_THE_IMAGES, REPOSITORY

from dtj_trainer.train import accelerator

TORCH = "dtj_trainer.programs.horovod_image_classification"
KERAS = "dtj_trainer.programs.horovod_tf_image_classification"
SERVERS = "dtj_trainer.programs.ps_image_classification"
HOROVOD_FOR_TENSORFLOW = Path(sys.prefix) / "horovod-tensorflow"
ONE = {"DTJ_GPUS": "1", "DTJ_GPU_RESOURCE": "nvidia.com/gpu"}
FRAMEWORKS = {TORCH: "torch", KERAS: "horovod-tensorflow", SERVERS: "tensorflow"}
CLUSTER = {"chief": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"], "ps": ["127.0.0.1:3"]}
TF_CONFIG = json.dumps({"cluster": CLUSTER, "task": {"type": "worker", "index": 0}})
# What the framework says of its GPUs, on a machine without one.
TORCH_WITH_TWO = "import torch; torch.cuda.is_available = lambda: True; torch.cuda.device_count = lambda: 2"
KERAS_WITH_TWO = """
import tensorflow as tf
tf.config.list_physical_devices = lambda kind=None: [tf.config.PhysicalDevice(f"GPU:{n}", "GPU") for n in (0, 1)]
"""

horovod_for_tensorflow = pytest.mark.skipif(
    not HOROVOD_FOR_TENSORFLOW.is_dir(), reason="needs Horovod's wheel for TensorFlow"
)
horovod_for_torch = pytest.mark.skipif(
    find_spec("horovod") is None, reason="needs Horovod's wheel for PyTorch"
)
tensorflow = pytest.mark.skipif(find_spec("tensorflow") is None, reason="needs the tensorflow extra")


def run(root: Path, program: str, before: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program by itself, without GPUs; `before` is done in its process first."""
    paths = [str(HOROVOD_FOR_TENSORFLOW)] if program == KERAS else []
    paths += [str(REPOSITORY / "trainer"), str(NOT_IN_THE_IMAGES)]
    return subprocess.run(
        [
            warm.python(FRAMEWORKS[program]),
            "-c",
            f"{before}\nfrom runpy import run_module\nrun_module({program!r}, run_name='__main__', alter_sys=True)",
            "--data=/nowhere",
        ],
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("DTJ_")},
            "PYTHONPATH": os.pathsep.join(paths),
            "CUDA_VISIBLE_DEVICES": "",
            "DTJ_ROOT": str(root),
            "OMP_NUM_THREADS": "1",
            "TF_CONFIG": TF_CONFIG,
            "TF_CPP_MIN_LOG_LEVEL": "2",
            **environment,
        },
        capture_output=True,
        text=True,
    )


def failure(root: Path) -> dict[str, str]:
    told: dict[str, str] = json.loads((root / "run/failure-0.json").read_text())
    return told


PROGRAMS = [
    pytest.param(TORCH, "PyTorch", marks=[pytest.mark.torch, horovod_for_torch]),
    pytest.param(KERAS, "TensorFlow", marks=horovod_for_tensorflow),
    pytest.param(SERVERS, "TensorFlow", marks=tensorflow),
]


@pytest.mark.parametrize(("program", "framework"), PROGRAMS)
def test_a_program_whose_framework_has_no_cuda_does_not_train_on_the_cpu(tmp_path, program, framework):
    done = run(tmp_path, program, **ONE)

    assert done.returncode == 69, done.stdout + done.stderr
    told = failure(tmp_path)
    assert told["class"] == "NoAccelerator"
    assert told["message"].startswith(f"the replica requests 1 of nvidia.com/gpu, but {framework} ")
    assert "is built without CUDA: use an image built for GPUs (docs/gpu-images.md)" in told["message"]
    assert f"NoAccelerator: {told['message']}" in done.stderr


@pytest.mark.parametrize(("program", "framework"), PROGRAMS[:2])
def test_without_gpus_asked_for_a_program_trains_on_the_cpu(tmp_path, program, framework):
    done = run(tmp_path, program)
    assert "DataNotFound" in done.stderr, f"{framework} was to go on to its data:\n{done.stdout}{done.stderr}"
    assert "on cpu with 1 threads" in done.stdout
    assert "Horovod over MPI\n" in done.stdout


@pytest.mark.parametrize(
    ("program", "before"),
    [
        pytest.param(TORCH, TORCH_WITH_TWO, marks=[pytest.mark.torch, horovod_for_torch]),
        pytest.param(KERAS, KERAS_WITH_TWO, marks=horovod_for_tensorflow),
    ],
)
@pytest.mark.parametrize("asked", [{}, ONE], ids=["not asked for", "asked for"])
def test_a_horovod_without_nccl_is_refused_where_the_framework_computes_on_gpus(
    tmp_path, program, before, asked
):
    done = run(tmp_path, program, before, **asked)

    assert done.returncode == 69, done.stdout + done.stderr
    assert failure(tmp_path)["class"] == "NoAccelerator"
    assert "compiled without NCCL" in failure(tmp_path)["message"]
    assert "HOROVOD_GPU_OPERATIONS=NCCL" in failure(tmp_path)["message"]


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    monkeypatch.setenv("DTJ_ROOT", str(tmp_path))
    for name in ("DTJ_GPUS", "DTJ_GPU_RESOURCE", "OMPI_COMM_WORLD_RANK", "HOROVOD_RANK"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("asked", "found", "ends"), [("2", 0, True), ("2", 1, False), ("0", 0, False), ("", 0, False)]
)
def test_only_a_program_that_asked_for_gpus_needs_one(workspace, monkeypatch, asked, found, ends):
    monkeypatch.setenv("DTJ_GPUS", asked)
    if not ends:
        accelerator.need_gpus(found, "x finds none")
        return
    with pytest.raises(SystemExit) as end:
        accelerator.need_gpus(found, "x finds none")
    assert end.value.code == 69
    message = failure(workspace)["message"]
    assert message.startswith("the replica requests 2 of accelerators, but x finds none: ")


def test_nccl_needs_a_gpu_for_each_rank(workspace, caplog):
    accelerator.need_nccl_of_horovod(2, 2, built=True)
    assert caplog.text == ""
    with pytest.raises(SystemExit):
        accelerator.need_nccl_of_horovod(1, 4, built=True)
    assert failure(workspace)["message"].startswith("this host has 4 ranks and 1 visible GPUs")
    assert "slotsPerWorker" in failure(workspace)["message"]


def test_gpus_that_no_rank_takes_are_told(workspace, caplog):
    accelerator.need_nccl_of_horovod(8, 2, built=True)
    assert "6 of this host's 8 GPUs are idle" in caplog.text
    assert not (workspace / "run").exists()
