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


def environment(framework: str, folder: Path, rank: int) -> dict[str, str]:
    """What a rank of two gets from its framework."""
    if framework == "Horovod":
        return {
            "OMPI_COMM_WORLD_RANK": str(rank),
            "OMPI_COMM_WORLD_SIZE": "2",
            "DTJ_CONFIG_DIR": str(folder),
        }
    port = str(stub_training.RANK_PORT)
    return {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}


def start(
    folder: Path, started: list[Rank], *options: str, attempt: int = 1, framework: str = "Horovod", **env: str
) -> list[Rank]:
    """Two ranks on loopback, each with a workspace of its own."""
    (folder / "hostfile").write_text("127.0.0.1 slots=2\n")
    _, *words = stub_training.command()
    ranks = [
        subprocess.Popen(
            [sys.executable, *words, f"--steps={STEPS}", "--step-seconds=0.01", *options],
            env=os.environ | environment(framework, folder, rank) | env | {
                "DTJ_ATTEMPT": str(attempt), "DTJ_ROOT": str(folder / f"rank-{rank}"),
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


@pytest.mark.parametrize("framework", ["Horovod", "PyTorch"])
def test_a_training_that_was_told_to_end_goes_on_where_it_was(
    tmp_path: Path, started: list[Rank], framework: str
) -> None:
    first, other = start(tmp_path, started, "--checkpoint-steps=10", "--hold", framework=framework)
    wait_for(tmp_path / "rank-0/checkpoints/10")
    other.send_signal(signal.SIGTERM)
    (tmp_path / "rank-0/run").mkdir(exist_ok=True)
    (tmp_path / "rank-0/run/go-on").touch()
    assert "stopped at step 1" in first.communicate()[0]
    assert (first.returncode, other.wait()) == (143, 143)

    again, other = start(tmp_path, started, attempt=2, framework=framework)
    assert "resuming from the checkpoint of step 1" in again.communicate()[0]
    assert (again.returncode, other.wait()) == (0, 0)
    assert model(tmp_path) == stub_training.chain_of(STEPS)


@pytest.mark.parametrize(
    ("framework", "loss"),
    [
        ("Horovod", "HorovodInternalError: rank 0 is gone"),
        ("PyTorch", "pair.cc:547] Connection closed by peer"),
    ],
)
def test_a_rank_that_is_killed_fails_the_other(
    tmp_path: Path, started: list[Rank], framework: str, loss: str
) -> None:
    first, other = start(tmp_path, started, "--step-seconds=1000", framework=framework)
    wait_for(tmp_path / "rank-0/metrics.jsonl")
    first.kill()
    assert loss in other.communicate()[0]
    assert other.returncode == 1


def test_a_rank_of_pytorch_that_leaves_early_fails_rank_0(tmp_path: Path, started: list[Rank]) -> None:
    (tmp_path / "rank-1/run").mkdir(parents=True)
    (tmp_path / "rank-1/run/leave").touch()
    first, other = start(tmp_path, started, framework="PyTorch")
    assert "Connection closed by peer" in first.communicate()[0]
    assert (first.returncode, other.wait()) == (1, 0)


@pytest.mark.parametrize("framework", ["Horovod", "PyTorch"])
def test_a_rank_hangs_until_it_is_told_to_end(tmp_path: Path, started: list[Rank], framework: str) -> None:
    (tmp_path / "rank-1/run").mkdir(parents=True)
    (tmp_path / "rank-1/run/hang").touch()
    first, other = start(tmp_path, started, framework=framework)
    assert other.stdout
    next(line for line in other.stdout if line == "this rank hangs\n")
    assert first.poll() is None
    other.send_signal(signal.SIGTERM)
    assert "stopped at step 1, with a checkpoint" in first.communicate()[0]
    assert (first.returncode, other.wait()) == (143, 143)


def test_rank_0_of_pytorch_finds_its_port_taken_in_the_attempt_that_a_test_names(
    tmp_path: Path, started: list[Rank]
) -> None:
    for attempt, code in ((1, 1), (2, 0)):
        first, other = start(tmp_path, started, attempt=attempt, framework="PyTorch", STUB_TAKES_PORT="1")
        text = first.communicate()[0]
        assert first.returncode == code
        assert ("EADDRINUSE" in text) == (attempt == 1)
        other.kill()


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
