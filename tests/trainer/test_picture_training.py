"""The training loop of several ranks: saves, stops, tests, rates. Its ranks are threads."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest
from tests.trainer.thread_ranks import Numbers, train

from dtj_trainer.programs import meeting, picture_training

LONG = ("--epochs=3", "--checkpoint-steps=4")
"""Six steps an epoch."""


def saved_steps(root: Path) -> list[int]:
    return sorted(int(path.name) for path in (root / "checkpoints").iterdir())


def test_a_resumed_run_is_the_uninterrupted_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DTJ_CHECKPOINTS_KEEP", "100")
    straight = train(monkeypatch, tmp_path / "straight", *LONG)
    assert saved_steps(tmp_path / "straight") == [4, 6, 8, 12, 16, 18]
    for step in (4, 8, 12, 16):
        shutil.copytree(tmp_path / f"straight/checkpoints/{step}", tmp_path / f"{step}/checkpoints/{step}")
        resumed = train(monkeypatch, tmp_path / str(step), *LONG)
        found = [(each.weight, each.statistic) for each in resumed]
        assert found == [(each.weight, each.statistic) for each in straight], step


def test_one_clock_decides_when_all_ranks_save(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(meeting, "MEETING_STEPS_MAX", 1)
    clocks = {0: iter(range(0, 10**6, 1)), 1: iter(range(0, 10**9, 1000))}
    of_thread = threading.local()

    def monotonic() -> float:
        return float(next(clocks[of_thread.rank]))

    def before(learner: Numbers) -> None:
        of_thread.rank = learner.rank

    monkeypatch.setattr(picture_training.time, "monotonic", monotonic)
    first, other = train(monkeypatch, tmp_path, "--epochs=2", "--checkpoint-seconds=15", before=before)
    assert first.did.count("save") > 2  # more than those after each test
    assert [each for each in first.did if each != "save"] == other.did
    assert other.did.count("average") == first.did.count("save")
