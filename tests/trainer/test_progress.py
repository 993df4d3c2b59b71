"""The progress file: rarely written, never torn, valid JSON.

* fields and derived values
* the interval of writes
* NaN, damaged files and times
* which rank writes
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.trainer.conftest import REPOSITORY

from dtj_trainer import progress
from dtj_trainer.launch.status_server import PhaseLog, ProgressWatch


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(progress, "time", made)
    return made


def test_fields_and_what_follows_from_them(tmp_path, clock):
    path = tmp_path / "run" / "progress.json"
    reporter = progress.Reporter(path)
    reporter.report(step=10, total_steps=100, epoch=1, loss=2.0, examples_per_second=50.0)
    clock.now += 10
    reporter.report(step=30, accuracy=0.5, applied_twice=3)
    found = json.loads(path.read_text())
    assert found.pop("updatedTime").endswith("Z")
    assert found == {
        "step": 30,
        "totalSteps": 100,
        "epoch": 1,
        "percent": 30.0,
        "examplesPerSecond": 50.0,
        "loss": 2.0,
        "accuracy": 0.5,
        "etaSeconds": 35.0,
        "appliedTwice": 3,
    }
    assert {**found, "updatedTime": progress.read(path)["updatedTime"]} == progress.read(path)


def test_an_export_is_told_at_once_and_its_error_is_bounded(tmp_path, clock):
    path = tmp_path / "progress.json"
    reporter = progress.Reporter(path)
    reporter.report(step=9)

    def told() -> tuple[bool | None, str | None]:
        found = progress.read(path)
        return found.get("exporting"), found.get("exportError")

    assert told() == (None, None)
    reporter.export(None, runs=True)
    assert told() == (True, None)
    reporter.export("no room" * 100, runs=False)
    assert told() == (None, ("no room" * 100)[:300])
    reporter.export(None, runs=False)
    assert told() == (None, None)
    assert progress.read(path)["step"] == 9


def test_written_at_most_each_interval_and_always_at_the_end(tmp_path, clock):
    path = tmp_path / "progress.json"
    reporter = progress.Reporter(path)

    def step() -> int:
        return progress.read(path)["step"]

    reporter.report(step=1, total_steps=9)
    reporter.report(step=2)
    assert step() == 1
    clock.now += progress.INTERVAL_SECONDS
    reporter.report(step=3)
    assert step() == 3
    reporter.report(step=4)
    reporter.flush()
    assert step() == 4
    reporter.report(step=5, final=True)
    assert step() == 5
    reporter.report(step=9)
    assert step() == 9
    assert [name.name for name in tmp_path.iterdir()] == ["progress.json"]


def test_no_nan_in_json(tmp_path, clock):
    path = tmp_path / "progress.json"
    reporter = progress.Reporter(path)
    reporter.report(step=1, loss=1.0)
    reporter.report(step=2, loss=math.nan, examples_per_second=math.inf, final=True)
    assert "loss" not in progress.read(path)
    assert "NaN" not in path.read_text()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"step": "x", "loss": null, "other": 1}', b"\xff", b'{"step": true}']
)
def test_any_file_can_be_read(tmp_path, content):
    path = tmp_path / "progress.json"
    path.write_bytes(content)
    assert progress.read(path) == {}
    assert progress.read(tmp_path / "missing") == {}


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("2026-01-01 00:00:00+00:00", "2026-01-01T00:00:00Z"),
        ("20260101T010000.5+0100", "2026-01-01T00:00:00.500000Z"),
        ("2026-01-01T00:00:00", None),
        ("0001-01-01T00:00:00+14:00", None),
        ("now", None),
        (5, None),
    ],
)
def test_a_time_is_passed_on_in_the_form_of_rfc_3339(tmp_path, written, read):
    path = tmp_path / "progress.json"
    path.write_text(json.dumps({"step": 1, "updatedTime": written}))
    assert progress.read(path).get("updatedTime") == read


@pytest.mark.parametrize("end", ["", "\nprogress.flush(); os._exit(0)"])
@pytest.mark.parametrize(("rank", "written"), [("0", True), ("1", False)])
def test_only_rank_0_writes_and_the_last_report_is_never_lost(tmp_path, rank, written, end):
    program = (
        "import os, sys\nfrom dtj_trainer import progress\n"
        "for step in range(1, 101): progress.report(step=step, total_steps=200)\n"
        "assert not {'boto3', 'torch', 'numpy'} & set(sys.modules)" + end
    )
    environment = {
        **os.environ,
        "DTJ_ROOT": str(tmp_path),
        "OMPI_COMM_WORLD_RANK": rank,
        "PYTHONPATH": str(REPOSITORY / "trainer"),
    }
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
    path = tmp_path / "run" / "progress.json"
    assert path.exists() == written
    if written:
        assert progress.read(path)["step"] == 100


def test_step_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path, phases = tmp_path / "progress.json", PhaseLog()
    watch = ProgressWatch(path, phases)
    assert watch.step_at(0) is None
    times = iter((10, 20, 30, 40))
    # Replace the `time` of this module alone: threads of other tests may still call `time.time_ns`.
    monkeypatch.setattr("dtj_trainer.launch.status_server.time", SimpleNamespace(time_ns=lambda: next(times)))
    for step in (0, 5, 9):
        path.write_text(json.dumps({"step": step}))
        watch.now()
        assert ("firstStep" in phases.times()) == (step >= 1)
    assert [watch.step_at(t) for t in (5, 10, 25, 99)] == [0, 0, 5, 9]


def test_launch_starts_without_loading_what_it_does_not_need():
    program = (
        "import sys, dtj_trainer.launch.main, dtj_trainer.launch.horovod_rank, dtj_trainer.launch.worker\n"
        "assert not {'boto3', 'botocore', 'torch', 'numpy'} & set(sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "trainer")}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
