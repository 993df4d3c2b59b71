"""Each network for 20 steps on two ranks, by DistributedDataParallel and by Horovod, with traces of the last two."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.trainer import horovod_run, torch_run
from tests.trainer.idx_files import write_pictures

from dtj_trainer.torch.models import MODELS

pytestmark = [pytest.mark.torch, pytest.mark.nets]


class HorovodRun(horovod_run.Run):
    program = "dtj_trainer.programs.horovod_image_classification"


OPTIONS = (
    "--batch-size=4",
    "--max-steps=20",
    "--epochs=20",
    "--profile-steps=19:20",
    "--optimizer=adam",
    "--lr=1e-4",
)


def assert_it_trained(root: Path, metrics: Sequence[dict[str, Any]]) -> None:
    end = metrics[-1]
    assert (end["kind"], end["steps"], end["worldSize"]) == ("end", 20, 2)
    parts = [line for line in metrics if line["kind"] == "train"]
    for line in parts:
        assert line["stepSeconds"].keys() == {"data", "forward", "backward", "communication", "optimizer"}
        assert line["reducedBytes"] == parts[0]["reducedBytes"] > 0
    (trace,) = (root / "tensorboard/profile").glob("rank-0.*.pt.trace.json")
    assert json.loads(trace.read_text())["traceEvents"]
    print(end["weightsSha256"], parts[-1])


@pytest.mark.parametrize("name", MODELS)
def test_by_ddp(tmp_path: Path, name: str) -> None:
    data = write_pictures(tmp_path / "data", 64, 10)
    run = torch_run.Run(tmp_path / "run", data, 2, f"--model={name}", *OPTIONS)
    try:
        assert_it_trained(run.ended().root, run.metrics)
    finally:
        run.kill()


@pytest.mark.parametrize("name", MODELS)
def test_by_horovod(tmp_path: Path, name: str) -> None:
    data = write_pictures(tmp_path / "data", 64, 10)
    run = HorovodRun(tmp_path / "run", data, 2, f"--model={name}", *OPTIONS)
    try:
        assert_it_trained(run.ended().root, run.metrics)
    finally:
        run.kill()
    timeline = (run.root / "tensorboard/profile/horovod-timeline.json").read_text()
    assert "ALLREDUCE" in timeline
