"""Saves beside the training: a copy of the state, which a process or a thread writes."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainer.conftest import until
from tests.trainer.save_processes import child
from torch import nn

from dtj_trainer import contract
from dtj_trainer.artifacts import checkpoints
from dtj_trainer.torch import staging
from dtj_trainer.torch.staging import StagedState
from dtj_trainer.train.background_save import BackgroundSave
from dtj_trainer.train.writer_process import LARGE_BYTES


class Trained:
    """A network with tied weights, BatchNorm and Adam, of a given size."""

    def __init__(self, size: int) -> None:
        width = int((size / 4 / 3) ** 0.5)
        self.network = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.Linear(width, width))
        self.network[2].weight = self.network[0].weight
        self.network.to(memory_format=torch.contiguous_format)
        self._optimizer = torch.optim.Adam(self.network.parameters())
        self._width = width
        self.step()

    def step(self) -> None:
        self.network(torch.randn(4, self._width)).sum().backward()
        self._optimizer.step()

    def state(self) -> dict[str, Any]:
        model, optimizer = self.network.state_dict(), self._optimizer.state_dict()
        return {"position": [3, 0, 24], "model": model, "optimizer": optimizer}


@pytest.fixture
def staged() -> Iterator[StagedState]:
    made = StagedState()
    yield made
    made.close()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def content(path: Path) -> list[tuple[str, object]]:
    """What a file holds: types, plain values, and the bits of tensors, which tied tensors share."""
    read = torch.load(path, weights_only=True)
    weights = read["model"]
    assert weights["0.weight"].data_ptr() == weights["2.weight"].data_ptr()
    found: list[tuple[str, object]] = []

    def walk(name: str, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            bits = hashlib.sha256(value.reshape(-1).view(torch.uint8).numpy()).hexdigest()
            found.append((name, (value.dtype, value.shape, value.stride(), bits)))
        elif isinstance(value, dict):
            found.append((name, (type(value), getattr(value, "_metadata", None))))
            for key, each in value.items():
                walk(f"{name}/{key!r}", each)
        else:
            found.append((name, value))

    walk("", read)
    return found


@pytest.mark.parametrize("size", [LARGE_BYTES // 4, LARGE_BYTES * 2])
def test_a_copy_is_written_as_the_state_was(size: int, staged: StagedState, tmp_path: Path) -> None:
    trained = Trained(size)
    opened = 0
    for number in range(3):
        torch.save(trained.state(), tmp_path / "by torch")
        write = staged.stage(trained.state())
        assert write
        trained.step()  # While the copy is written, the training goes on.
        write(tmp_path / "copy")
        assert content(tmp_path / "copy") == content(tmp_path / "by torch")
        assert number == 0 or descriptors() <= opened  # The next copy has the same memory.
        opened = descriptors()


def test_a_copier_that_ends_after_each_copy_makes_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of PyTorch 2.11."""
    stage = staging.DefaultStager._stage

    def stage_once(stager: staging.DefaultStager, *given: Any, **named: Any) -> Any:
        copy = stage(stager, *given, **named)
        stager._state_dict_stager.close()
        return copy

    monkeypatch.setattr(staging.DefaultStager, "_stage", stage_once)
    options = staging.StagingOptions(
        use_pinned_memory=False, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=False
    )
    stager = staging.Stager(options)
    for value in (1, 2):
        assert (
            stager.stage({"state": {0: defaultdict(dict, at=torch.tensor(value))}})["state"][0]["at"] == value
        )
    stager.close()


def test_errors_of_the_process_are_raised_and_its_death_leaves_no_half_checkpoint(
    staged: StagedState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(contract.ENV_ROOT, str(tmp_path))
    write = staged.stage(Trained(LARGE_BYTES).state())
    assert write
    os.kill(child("save_process"), signal.SIGTERM)  # A stop is for the rank alone.
    with pytest.raises(RuntimeError, match=r"Parent directory .* does not exist"):
        write(tmp_path / "no folder/state.pt")
    checkpoints.save(1, lambda folder: write(folder / "state.pt"))
    process = child("save_process")

    def killed(folder: Path) -> None:
        os.kill(process, signal.SIGSTOP)
        threading.Timer(0.1, os.kill, (process, signal.SIGKILL)).start()
        write(folder / "state.pt")

    background = BackgroundSave()
    background.begin(lambda: checkpoints.save(2, killed))
    with pytest.raises(RuntimeError, match="the process that writes checkpoints ended with exit code -9"):
        background.wait()
    assert [each.step for each in checkpoints.saved()] == [1]
    assert [path.name for path in checkpoints.folder().iterdir()] == ["1"]


def test_without_room_in_shared_memory_the_training_waits(
    staged: StagedState, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise RuntimeError("unable to allocate shared memory(shm): No space left on device (28)")

    monkeypatch.setattr(staging.DefaultStager, "stage", full)
    trained = Trained(LARGE_BYTES)
    assert [staged.stage(trained.state()), staged.stage(trained.state())] == [None, None]
    assert caplog.text.count("the training waits for each save: unable to allocate shared memory") == 1


@pytest.mark.parametrize("module", ["torch.save_process", "train.array_process"])
def test_the_process_ends_with_its_rank(module: str) -> None:
    make = "ArrayProcess({})" if "array" in module else "SaveProcess()"
    script = f"from dtj_trainer.{module} import *; held = {make}; print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as rank:
        assert rank.stdout
        rank.stdout.readline()
        process = Path("/proc", str(child("_process", rank.pid)))
        rank.kill()
    until(lambda: not process.exists(), "the end of the process", 60)


def test_saves_follow_each_other_and_errors_are_raised_by_the_next() -> None:
    background, began, end = BackgroundSave(), threading.Event(), threading.Event()
    order: list[str] = []

    def slow() -> None:
        began.set()
        end.wait(60)
        order.append("first")
        raise OSError(28, "No space left on device")

    background.begin(slow)
    assert began.wait(60)
    assert background.busy
    threading.Timer(0.05, end.set).start()
    with pytest.raises(OSError, match="No space left"):
        background.begin(lambda: order.append("never"))
    assert (order, background.busy) == (["first"], False)
    background.begin(lambda: order.append("second"))
    background.wait()
    assert order == ["first", "second"]


def test_the_end_waits_and_logs_an_error(caplog: pytest.LogCaptureFixture) -> None:
    background = BackgroundSave()
    background.begin(lambda: 1 / 0)
    background.close()
    assert "the checkpoint could not be written" in caplog.text
    assert "division by zero" in caplog.text
