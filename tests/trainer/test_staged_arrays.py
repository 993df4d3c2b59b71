"""Saves of arrays beside the training, as the programs of TensorFlow make them: a copy, which a process writes."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.trainer.save_processes import child

from dtj_trainer import contract
from dtj_trainer.artifacts import checkpoints
from dtj_trainer.train import array_process
from dtj_trainer.train.background_save import BackgroundSave
from dtj_trainer.train.staged_arrays import StagedArrays
from dtj_trainer.train.state_file import Array, identity
from dtj_trainer.train.writer_process import LARGE_BYTES

RUN = {"run.json": np.array('{"position": [3, 0, 24]}')}


def trained(size: int) -> dict[str, np.ndarray]:
    """Arrays as a training has them: of several types, a single number, and one without values."""
    chance = np.random.default_rng(size)
    weights = chance.normal(size=(size // 4 // 64, 64)).astype(np.float32)
    step, empty = np.array(7, np.int64), np.zeros((0, 3), np.float32)
    return {"model/weights": weights, "step": step, "empty": empty, "seeds": np.arange(5, dtype=np.uint32)}


def described(state: dict[str, np.ndarray]) -> dict[str, Array]:
    """The larger arrays come in two parts."""
    return {
        name: Array(values.shape, values.dtype, iter(np.array_split(values, 2) if values.ndim else [values]))
        for name, values in state.items()
    }


def holds(path: Path, state: dict[str, np.ndarray]) -> None:
    with np.load(path, allow_pickle=False) as held:
        assert held.files == [*RUN, *state]
        for name, values in {**RUN, **state}.items():
            assert held[name].dtype == values.dtype
            np.testing.assert_array_equal(held[name], values)


@pytest.fixture
def staged() -> Iterator[StagedArrays]:
    made = StagedArrays()
    yield made
    made.close()


@pytest.mark.parametrize("size", [LARGE_BYTES // 4, LARGE_BYTES * 2])
def test_a_copy_is_written_as_the_state_was(size: int, staged: StagedArrays, tmp_path: Path) -> None:
    state, places = trained(size), set()
    for _ in range(3):
        before = {name: values.copy() for name, values in state.items()}
        copy = staged.copy(described(state))
        assert copy is not None
        places.add(copy["model/weights"].ctypes.data)
        state["model/weights"] += 1  # While the copy is written, the training goes on.
        state["step"] += 1
        staged.write(tmp_path / "copy.npz", RUN)
        holds(tmp_path / "copy.npz", before)
        np.savez(tmp_path / "by numpy.npz", **RUN, **before)  # type: ignore[arg-type]
        assert identity(tmp_path / "copy.npz") == identity(tmp_path / "by numpy.npz")
    assert len(places) == 1, "the next copy has the same memory"


def memory(process: int, field: str) -> int:
    """Bytes, by a field of /proc/PID/status."""
    lines = Path("/proc", str(process), "status").read_text().splitlines()
    (found,) = [int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")]
    return found


def test_the_process_writes_the_copy_in_place(staged: StagedArrays, tmp_path: Path) -> None:
    state = trained(LARGE_BYTES * 8)
    assert staged.prepare(described(state))
    staged.write(tmp_path / "first.npz", RUN)
    process = child("array_process")
    own = memory(process, "RssAnon")
    staged.copy(described(state))
    staged.write(tmp_path / "copy.npz", RUN)
    assert memory(process, "RssAnon") - own < LARGE_BYTES
    assert memory(process, "VmHWM") < LARGE_BYTES * 8 + 2**27, "the pages of the copy, Python and numpy"


def test_errors_of_the_process_are_raised_and_its_death_leaves_no_half_checkpoint(
    staged: StagedArrays, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(contract.ENV_ROOT, str(tmp_path))
    assert staged.copy(described(trained(LARGE_BYTES))) is not None
    process = child("array_process")
    os.kill(process, signal.SIGTERM)  # A stop is for the rank alone.
    with pytest.raises(FileNotFoundError):
        staged.write(tmp_path / "no folder/state.npz")
    checkpoints.save(1, lambda folder: staged.write(folder / "state.npz"))

    def killed(folder: Path) -> None:
        os.kill(process, signal.SIGSTOP)
        threading.Timer(0.1, os.kill, (process, signal.SIGKILL)).start()
        staged.write(folder / "state.npz")

    background = BackgroundSave()
    background.begin(lambda: checkpoints.save(2, killed))
    with pytest.raises(RuntimeError, match="the process that writes checkpoints ended with exit code -9"):
        background.wait()
    assert [each.step for each in checkpoints.saved()] == [1]
    assert [path.name for path in checkpoints.folder().iterdir()] == ["1"]


def test_without_memory_for_a_copy_the_training_waits(
    staged: StagedArrays, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(array_process.os, "posix_fallocate", full)
    state = trained(LARGE_BYTES)
    assert [staged.copy(described(state)), staged.prepare(described(state))] == [None, False]
    assert caplog.text.count("the training waits for each save: [Errno 28] No space left on device") == 1
