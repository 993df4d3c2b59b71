"""The stub training of other tests: its model shows a step that is lost or done twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import stub_training

STEPS = 30
Rank = subprocess.Popen[str]


@pytest.fixture
def started() -> Iterator[list[Rank]]:
    ranks: list[Rank] = []
    yield ranks
    for rank in ranks:
        with rank:
            rank.kill()


def start(folder: Path, started: list[Rank], *options: str, attempt: int = 1) -> list[Rank]:
    """Two ranks on loopback, each with a workspace of its own."""
    (folder / "hostfile").write_text("127.0.0.1 slots=2\n")
    _, *words = stub_training.command()
    ranks = [
        subprocess.Popen(
            [sys.executable, *words, f"--steps={STEPS}", "--step-seconds=0.01", *options],
            env=os.environ | {
                "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "2", "DTJ_ATTEMPT": str(attempt),
                "DTJ_CONFIG_DIR": str(folder), "DTJ_ROOT": str(folder / f"rank-{rank}"),
            },
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in (0, 1)
    ]  # fmt: skip
    started += ranks
    return ranks


def wait_for(file: Path) -> None:
    while not file.exists():
        time.sleep(0.01)


def model(folder: Path) -> str:
    return (folder / "rank-0/model" / stub_training.MODEL_FILE).read_text()


def test_a_training_that_was_told_to_end_goes_on_where_it_was(tmp_path: Path, started: list[Rank]) -> None:
    first, other = start(tmp_path, started, "--checkpoint-steps=10", "--hold")
    wait_for(tmp_path / "rank-0/checkpoints/10")
    other.send_signal(signal.SIGTERM)
    (tmp_path / "rank-0/run").mkdir(exist_ok=True)
    (tmp_path / "rank-0/run/go-on").touch()
    assert "stopped at step 1" in first.communicate()[0]
    assert (first.returncode, other.wait()) == (143, 143)

    again, other = start(tmp_path, started, attempt=2)
    assert "resuming from the checkpoint of step 1" in again.communicate()[0]
    assert (again.returncode, other.wait()) == (0, 0)
    assert model(tmp_path) == stub_training.chain_of(STEPS)


def test_a_rank_that_is_killed_fails_the_other(tmp_path: Path, started: list[Rank]) -> None:
    first, other = start(tmp_path, started, "--step-seconds=1000")
    wait_for(tmp_path / "rank-0/metrics.jsonl")
    first.kill()
    assert "HorovodInternalError: rank 0 is gone" in other.communicate()[0]
    assert other.returncode == 1


def test_a_failure_that_is_asked_for_comes_once(tmp_path: Path, started: list[Rank]) -> None:
    for attempt, code in ((1, 3), (2, 0)):
        first, _ = start(tmp_path, started, "--fail-at=15", "--checkpoint-steps=10", attempt=attempt)
        first.communicate()
        assert first.returncode == code
    assert model(tmp_path) == stub_training.chain_of(STEPS)


@pytest.mark.parametrize("steps", [[*range(1, 10)], [*range(1, 11), 10], [1, *range(3, 11)]])
def test_the_chain_of_other_steps_is_another(steps: list[int]) -> None:
    chain = ""
    for step in steps:
        chain = stub_training.link(chain, step)
    assert chain != stub_training.chain_of(10)
