"""The jobs of docs/experiments.md, on small sets in the formats of CIFAR-10 and Fruits-360."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from tests.trainer import torch_run
from tests.trainer.conftest import REPOSITORY
from tests.trainer.picture_formats import cifar_binary, encoded, pieces, write_folders

from dtj.report.report import make_report
from dtj.report.run import Run, read_metrics

pytestmark = pytest.mark.torch

EXPERIMENTS = REPOSITORY / "manifests/examples/experiments"
FRUITS = ("Apple Braeburn", "Banana", "Guava", "Kiwi")


@pytest.fixture(scope="module")
def cifar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As CIFAR-10's binary version: 10 pictures a file."""
    folder = tmp_path_factory.mktemp("cifar-10")
    for number, name in enumerate([*(f"data_batch_{batch}" for batch in range(1, 6)), "test_batch"]):
        (folder / f"{name}.bin").write_bytes(cifar_binary(*pieces(10, 32, number)))
    return folder


@pytest.fixture(scope="module")
def fruits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As Fruits-360: a class that the job does not take is among the others."""
    folder = tmp_path_factory.mktemp("fruits-360")
    for split, count in (("Training", 24), ("Test", 8)):
        write_folders(folder / split, encoded(*pieces(count, 100), "JPEG"), FRUITS, "jpg")
    return folder


def test_each_program_reads_the_arguments_and_the_data_of_its_job(cifar: Path, fruits: Path) -> None:
    jobs = {file.stem: file for file in sorted(EXPERIMENTS.glob("*.yaml"))}
    words = [f"{file}={fruits if name == 'fruits-horovod' else cifar}" for name, file in jobs.items()]
    ran = subprocess.run(
        [sys.executable, "-m", "tests.trainer.parsed_options", *words],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = dict(zip(jobs, map(json.loads, ran.stdout.splitlines()), strict=True))
    fruit = found.pop("fruits-horovod")
    assert fruit["loaded"] == {
        "shape": [3, 100, 100],
        "classes": ["Apple Braeburn", "Kiwi", "Guava"],
        "train": 18,
    }
    for name, each in found.items():
        assert (each["loaded"]["shape"], each["loaded"]["train"]) == ([3, 32, 32], 50), name
    networks = found["networks-distributed"]["options"]
    assert (networks["optimizer"], networks["lr"], networks["scale_lr"]) == ("adadelta", 0.1, False)
    assert (networks["epochs"], networks["batch_size"], networks["data_workers"]) == (20, 128, 2)
    for name, batches in (("ps-asynchronous", 1), ("ps-synchronous", 3)):
        servers = found[name]["options"]
        steps_an_epoch = int(np.ceil(50_000 / (servers["batch_size"] * batches)))
        assert servers["epochs"] * steps_an_epoch >= servers["max_steps"] == 60_000


def test_a_network_trains_alone_and_on_two_ranks_and_fills_the_report(cifar: Path, tmp_path: Path) -> None:
    small = ("--model=shufflenet_v2", "--batch-size=8", "--max-steps=3", "--log-steps=1")
    runs = {}
    for name, ranks in (("networks-alone", 1), ("networks-distributed", 2)):
        args = yaml.safe_load((EXPERIMENTS / f"{name}.yaml").read_text())["spec"]["args"]
        runs[name] = torch_run.Run(tmp_path / name, cifar, ranks, *args, *small)
    try:
        files = [run.ended().root / "metrics.jsonl" for run in runs.values()]
    finally:
        for run in runs.values():
            run.kill()
    read = [Run(name, read_metrics(file.read_bytes()).rows) for name, file in zip(runs, files, strict=True)]
    report = make_report(read, baseline="networks-alone")
    alone, distributed = report.summaries
    assert [run.facts["nodes"] for run in (alone, distributed)] == [1, 1]
    assert [run.ended and run.steps for run in (alone, distributed)] == [3, 3]
    assert alone.bandwidth is None
    assert distributed.bandwidth is not None
    assert distributed.bandwidth.mean > 0
    assert [len(run.rank_steps) for run in (alone, distributed)] == [1, 2]
    comparison = report.runs[1].comparison
    assert comparison is not None
    assert comparison.speedup is not None
    assert any(note.startswith("The ranks of networks-distributed shared ") for note in report.notes)
