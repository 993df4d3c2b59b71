"""The export at the end of a training: the same answers of each network, and what is told where it fails.

* parity on trained weights: one network of PyTorch and of Keras; all of them in `make test-nets`
* an export that fails, has no room, or is stopped leaves the model as it was
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests import warm
from tests.patience import PATIENCE
from tests.trainer import torch_run
from tests.trainer.idx_files import FASHION_MNIST
from tests.trainer.trained_exports import BATCH, STEPS, TEST, compare, rate_of, write_some_of_fashion_mnist

from dtj_trainer import progress
from dtj_trainer.artifacts.model_manifest import manifest_of
from dtj_trainer.contract.distribution import install_line
from dtj_trainer.data.pictures import load_pictures
from dtj_trainer.progress import read as read_progress
from dtj_trainer.serving.places import read_manifest
from dtj_trainer.torch import saved_model
from dtj_trainer.torch.models import MODELS
from dtj_trainer.train import export_process, model_files
from dtj_trainer.train.export_process import export_model

pytestmark = pytest.mark.torch
KERAS_MODELS = ("cnn", "resnet20", "resnet44", "vgg16", "mobilenet_v2", "densenet121")
"""As in dtj_trainer.keras.models, which this process does not import: TensorFlow takes seconds and memory."""
LONG = (pytest.mark.nets, pytest.mark.timeout(3000))
needs_fashion_mnist = pytest.mark.skipif(
    not FASHION_MNIST.is_dir(), reason="needs Debian's dataset-fashion-mnist"
)


def nets(names: tuple[str, ...]) -> list[Any]:
    """The first one in `make test`, the others in `make test-nets`."""
    return [names[0], *(pytest.param(name, marks=LONG) for name in names[1:])]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_some_of_fashion_mnist(tmp_path_factory.mktemp("data") / "fashion-mnist")


def manifest_in(folder: Path) -> Any:
    return read_manifest((folder / "manifest.json").read_bytes())


@needs_fashion_mnist
@pytest.mark.parametrize("name", nets(MODELS))
def test_a_trained_network_of_pytorch_answers_the_same(data: Path, tmp_path: Path, name: str) -> None:
    rate = f"--lr={rate_of(name)}"
    options = ("--export", "--optimizer=adam", rate, f"--batch-size={BATCH}", f"--max-steps={STEPS}")
    run = torch_run.Run(tmp_path, data, 1, f"--model={name}", *options)
    try:
        run.ended()
    finally:
        run.kill()
    folder = run.root / "model"
    network = saved_model.load(folder)

    def answer(some: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return network(torch.from_numpy(some)).numpy()

    test = load_pictures(str(data)).test.read(np.arange(TEST)).pixels
    print("largest difference", compare(folder, answer, test, whole=name != MODELS[0]))
    assert manifest_in(folder) == manifest_of(folder)
    described = json.loads((folder / "model.json").read_text())
    assert described["steps"] == STEPS
    assert "export" not in described
    # The export finds out the same as the training knew.
    known = model_files.picture_facts((1, 28, 28), "NCHW", ())
    assert described["preprocessing"] == known["preprocessing"]


@needs_fashion_mnist
@pytest.mark.parametrize("name", nets(KERAS_MODELS))
def test_a_trained_network_of_keras_answers_the_same(data: Path, tmp_path: Path, name: str) -> None:
    how = "quarters" if name == KERAS_MODELS[0] else "whole"
    done = subprocess.run(
        [warm.python("tensorflow"), "-m", "tests.trainer.trained_exports", name, data, tmp_path / "model", how],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True, text=True, timeout=1500 * PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    print(done.stdout.splitlines()[-1])
    described = json.loads((tmp_path / "model/model.json").read_text())
    known = model_files.picture_facts((1, 28, 28), "NHWC", ())
    assert described["preprocessing"] == known["preprocessing"]


# --- exports that fail -----------------------------------------------------------------------------


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as a training leaves it, whose model can't be loaded."""
    monkeypatch.setenv("DTJ_ROOT", str(tmp_path))
    monkeypatch.setattr(progress, "_reporter", None)
    folder = tmp_path / "model"
    model_files.begin(folder)
    (folder / "model.pt2").write_bytes(b"no program")
    model_files.write_description(folder, {"steps": 3})
    return folder


def told(folder: Path) -> str:
    """What model.json says of the export; the manifest names the files as they are now."""
    assert manifest_in(folder) == manifest_of(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "model.json", "model.pt2"]
    described = json.loads((folder / "model.json").read_text())
    assert described["steps"] == 3
    return str(described["export"]["error"])


def test_an_export_that_fails_is_told_and_harms_nothing(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    export_model(model, lambda: False)
    assert told(model).startswith("NotExportable: ")
    assert "model.pt2 is no program of torch.export.save" in told(model)
    assert "the model is not exported to ONNX" in caplog.text


def test_an_export_ends_with_its_pod(model: Path) -> None:
    export_model(model, lambda: True)
    assert told(model) == "the pod was stopped during the export"


def test_an_export_that_hangs_is_ended(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_process, "LIMIT_SECONDS", 0.0)
    export_model(model, lambda: False)
    assert told(model) == "the export took more than 0 s"


def rooms(*megabytes: int | None) -> Iterator[int | None]:
    for each in megabytes:
        yield each and each << 20


def test_an_export_without_room_is_not_begun_and_one_that_runs_out_of_it_is_ended(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = rooms(1000, 2000, 10)
    monkeypatch.setattr(export_process, "_room", lambda: next(left))
    export_model(model, lambda: False)
    assert told(model) == (
        "the export needs 1024 MiB of memory, but the container's memory limit leaves 1000 MiB: raise the limit"
    )
    export_model(model, lambda: False)
    assert told(model) == "the export ran out of memory: raise the container's memory limit"


def test_an_export_that_the_kernel_kills_is_told_and_it_is_the_first_to_be_killed(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among the processes of a container, the kernel takes the one with the highest value."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\ncat /proc/self/oom_score_adj > {tmp_path}/value\nkill -9 $$\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    export_model(model, lambda: False)
    assert told(model) == "the export ran out of memory: raise the container's memory limit"
    assert (tmp_path / "value").read_text() == "1000\n"


def test_what_the_export_does_is_in_the_jobs_progress(model: Path) -> None:
    seen = []

    def look() -> bool:
        seen.append(read_progress(model.parent / "run/progress.json"))
        return len(seen) > 1

    export_model(model, look)
    assert seen[0]["exporting"] is True
    ended = read_progress(model.parent / "run/progress.json")
    assert "exporting" not in ended
    assert ended["exportError"] == "the pod was stopped during the export"


def test_without_the_extra_the_model_is_left_as_it_is(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    before = {path.name: path.read_bytes() for path in model.iterdir()}
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "onnxscript" else find(name)
    )
    export_model(model, lambda: False)
    assert {path.name: path.read_bytes() for path in model.iterdir()} == before
    assert f"packages are not installed: onnxscript; {install_line('export')}" in caplog.text


def test_the_export_is_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    of_ranks = {"OMPI_COMM_WORLD_RANK", "HOROVOD_RANK", "TF_CONFIG", "MASTER_ADDR", "RANK", "LOCAL_RANK"}
    for name in of_ranks:
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    environment = export_process._environment()
    assert not environment.keys() & of_ranks
    assert environment["CUDA_VISIBLE_DEVICES"] == ""
    assert environment["PATH"] == os.environ["PATH"]


def test_a_model_of_another_form_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "weights").write_text("of a program's own")
    export_model(tmp_path, lambda: False)
    assert [path.name for path in tmp_path.iterdir()] == ["weights"]
