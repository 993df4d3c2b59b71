"""The check for accelerators: a pod without its requested accelerators starts no program, and reports a remedy.

* missing devices, for a replica and for a Horovod worker
* drivers that work, crash or lack a library
* frameworks without CUDA
"""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dtj_trainer.launch import cuda_driver
from dtj_trainer.launch.accelerators import AcceleratorCheck

NO_DEVICE = {"error": "CUDA_ERROR_NO_DEVICE (100)"}
no_gpu_here = pytest.mark.skipif(
    any(Path("/dev").glob("nvidia*")) or Path("/dev/dxg").exists() or Path("/dev/kfd").exists(),
    reason="needs a machine without a GPU",
)


@no_gpu_here
@pytest.mark.parametrize(
    ("resource", "device"),
    [
        ("nvidia.com/gpu", "/dev/nvidia0"),
        ("nvidia.com/mig-1g.5gb", "/dev/nvidia0"),
        ("amd.com/gpu", "/dev/kfd"),
    ],
)
def test_a_replica_without_the_accelerator_it_asked_for_starts_no_program(make_workspace, resource, device):
    workspace = make_workspace(
        DTJ_STRATEGY="ParameterServer", DTJ_ROLE="worker", DTJ_GPUS="2", DTJ_GPU_RESOURCE=resource
    )

    run = workspace.python("print('trains on the CPU')")

    assert run.ended() == 69
    assert "trains on the CPU" not in run.output
    assert workspace.termination["class"] == "NoAccelerator"
    message = workspace.termination["message"]
    assert message.startswith(f"2 of {resource} were asked for, and the container has no device of "), message
    assert device in message
    assert "runtimeClassName" in message
    assert "docs/gpu-images.md" in message
    assert "gpus: 0" in message


@no_gpu_here
def test_a_horovod_worker_without_its_accelerator_ends_and_its_ranks_do_not_start(worker_sshd):
    worker = worker_sshd.launch("worker", DTJ_GPUS="1", DTJ_GPU_RESOURCE="nvidia.com/gpu")

    assert worker.ended() == 69

    assert worker_sshd.termination["class"] == "NoAccelerator"
    assert "1 of nvidia.com/gpu was asked for" in worker_sshd.termination["message"]


@no_gpu_here
@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"DTJ_GPUS": "0", "DTJ_GPU_RESOURCE": "nvidia.com/gpu"},
        {"DTJ_GPUS": "8", "DTJ_GPU_RESOURCE": "habana.ai/gaudi"},
        {"DTJ_GPUS": "8"},
    ],
    ids=["none asked for", "switched off", "unknown make", "no name"],
)
def test_a_program_starts_where_no_accelerator_is_known_to_be_missing(make_workspace, environment):
    workspace = make_workspace(DTJ_STRATEGY="ParameterServer", DTJ_ROLE="worker", **environment)
    assert workspace.python("print('ran')").ended() == 0


def test_a_number_of_accelerators_that_is_none_is_refused(make_workspace):
    workspace = make_workspace(DTJ_STRATEGY="ParameterServer", DTJ_ROLE="worker", DTJ_GPUS="many")
    run = workspace.python("print('ran')")
    assert run.ended() == 78
    assert "DTJ_GPUS must be a whole number of at least 0, not 'many'" in run.output


@pytest.fixture
def devices(tmp_path: Path) -> Path:
    folder = tmp_path / "dev"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("name", ["nvidia0", "nvidia13", "dxg", "nvgpu", "nvhost-gpu"])
@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ({"devices": 1}, None),
        ({"devices": 0}, "CUDA's driver offers none: it counts no devices; "),
        (NO_DEVICE, "CUDA's driver offers none: CUDA_ERROR_NO_DEVICE (100); "),
        ({"library": False}, None),
        ({}, None),
    ],
    ids=["there", "counts none", "error", "no library", "no answer"],
)
def test_where_there_are_devices_the_driver_decides(devices, name, said, fault):
    (devices / name).touch()
    check = AcceleratorCheck(1, "nvidia.com/gpu", devices, lambda: said)
    found = check.fault(wait=True)
    assert (found is None) if fault is None else (found is not None and fault in found), found


@pytest.mark.parametrize("name", ["nvidiactl", "nvidia-uvm", "nvidia-caps"])
def test_devices_of_the_driver_alone_are_no_gpu(devices, name):
    (devices / name).touch()
    check = AcceleratorCheck(1, "nvidia.com/gpu", devices, lambda: pytest.fail("was asked"))
    assert "no device of NVIDIA" in (check.fault(wait=False) or "")


def test_amd_devices_are_enough(devices):
    (devices / "kfd").touch()
    assert AcceleratorCheck(1, "amd.com/gpu", devices).fault(wait=True) is None


def test_a_missing_library_of_the_driver_is_told(devices, caplog):
    (devices / "nvidia0").touch()
    with caplog.at_level(logging.WARNING):
        AcceleratorCheck(2, "nvidia.com/gpu", devices, lambda: {"library": False}).fault(wait=True)
    assert "2 of nvidia.com/gpu were asked for, and no libcuda.so.1 is found" in caplog.text


@pytest.mark.parametrize(
    ("built", "warns"),
    [
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\n", True),
        ("cuda = None\n", True),
        ("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n", False),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '7.0'\n", False),
        ("# another form\n", False),
        (None, False),
    ],
    ids=["CPU", "CPU, old", "CUDA", "ROCm", "unknown", "no file"],
)
def test_a_pytorch_for_cpus_is_warned_of_and_not_imported(
    tmp_path, monkeypatch, devices, caplog, built, warns
):
    (devices / "kfd").touch()
    package = tmp_path / "site/torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('was imported')")
    if built is not None:
        (package / "version.py").write_text(built)
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.delitem(sys.modules, "torch", raising=False)

    assert AcceleratorCheck(1, "amd.com/gpu", devices).fault(wait=True) is None

    assert (
        "1 of amd.com/gpu was asked for, and PyTorch in this image is built without" in caplog.text
    ) == warns


def test_nobody_is_warned_who_asked_for_no_accelerator(devices, caplog):
    AcceleratorCheck(0, "nvidia.com/gpu", devices)
    AcceleratorCheck(1, "habana.ai/gaudi", devices)
    assert caplog.text == ""


DRIVER = """
int cuInit(unsigned flags) { return INIT; }
int cuDeviceGetCount(int *count) { *count = COUNT; return 0; }
int cuGetErrorName(int error, const char **name) {
    if (error != 100) return 1;
    *name = "CUDA_ERROR_NO_DEVICE";
    return 0;
}
"""


@pytest.mark.parametrize(
    ("init", "count", "said"),
    [
        (0, 8, {"devices": 8}),
        (0, 0, {"devices": 0}),
        (100, 0, NO_DEVICE),
        (804, 0, {"error": "error 804"}),
    ],
)
def test_the_driver_is_asked_in_a_process_of_its_own(tmp_path, monkeypatch, devices, init, count, said):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    (tmp_path / "driver.c").write_text(DRIVER)
    subprocess.run(
        [
            compiler,
            "-shared",
            "-fPIC",
            f"-DINIT={init}",
            f"-DCOUNT={count}",
            "-o",
            tmp_path / "libcuda.so.1",
            tmp_path / "driver.c",
        ],
        check=True,
    )
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))

    done = subprocess.run([sys.executable, cuda_driver.__file__], capture_output=True, text=True, check=True)
    (devices / "nvidia0").touch()
    found = AcceleratorCheck(8, "nvidia.com/gpu", devices).fault(wait=True)

    assert json.loads(done.stdout) == said
    assert (found is None) == (said == {"devices": 8}), found


def test_a_driver_that_crashes_whoever_asks_is_no_fault(monkeypatch, tmp_path, devices, caplog):
    program = tmp_path / "crash.py"
    program.write_text("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    monkeypatch.setattr(cuda_driver, "__file__", str(program))
    (devices / "nvidia0").touch()
    assert AcceleratorCheck(1, "nvidia.com/gpu", devices).fault(wait=True) is None
    assert "could not be asked" in caplog.text
