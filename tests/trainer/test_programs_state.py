"""The state of a checkpoint: how the state is split, identified and read, without a second rank.

* pieces of at most 2 GiB, and groups
* copies of a checkpoint on several ranks
* refused checkpoints
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dtj_trainer.artifacts import checkpoints
from dtj_trainer.train import file_saver, state_file
from dtj_trainer.train.file_saver import FileSaver
from dtj_trainer.train.options import parse
from dtj_trainer.train.pieces import PIECE_BYTES, groups, pieces
from dtj_trainer.train.protocols import Position, Ranks

pytestmark = pytest.mark.torch


@given(st.integers(0, 10**5), st.integers(1, 16), st.integers(1, 10**5))
def test_pieces_are_all_of_it_in_order(length: int, item: int, limit: int) -> None:
    found = list(pieces(length, item, limit))
    assert [index for piece in found for index in (piece.start, piece.stop)][1:-1:2] == [
        piece.start for piece in found[1:]
    ]
    assert sum(piece.stop - piece.start for piece in found) == length
    assert all((piece.stop - piece.start) * item <= max(limit, item) for piece in found)


def test_nothing_of_two_gibibytes_travels_as_one() -> None:
    tensor = torch.empty(3 * 2**30, dtype=torch.float32, device="meta")  # 12 GiB, and no memory
    parts = [tensor[piece] for piece in pieces(tensor.numel(), tensor.element_size())]
    assert max(part.numel() * part.element_size() for part in parts) == PIECE_BYTES < 2**30
    assert sum(part.numel() for part in parts) == tensor.numel()


@given(st.lists(st.integers(0, 50)), st.integers(1, 60))
def test_groups_are_all_of_them_in_order(sizes: list[int], limit: int) -> None:
    found = [sizes[group] for group in groups(sizes, limit)]
    assert [size for group in found for size in group] == sizes
    assert all(sum(group) <= limit or len(group) == 1 for group in found)


ARRAYS = {
    "scalar": np.array(3, np.int64),
    "text": np.array("äb"),
    "matrix": np.arange(60, dtype=np.float32).reshape(12, 5),
    "empty": np.zeros((0, 4)),
    "model/a/kernel": np.arange(7, dtype=np.uint32),
}


def parts(array: np.ndarray) -> Sequence[np.ndarray]:
    return [array[:3], array[3:]] if array.ndim else [array]


def write(path: Path) -> None:
    arrays = [(name, state_file.Array(each.shape, each.dtype, parts(each))) for name, each in ARRAYS.items()]
    state_file.write_arrays(path, arrays)


def test_arrays_by_parts_are_those_of_numpy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "parts.npz")
    np.savez(tmp_path / "whole.npz", allow_pickle=False, **ARRAYS)
    with np.load(tmp_path / "parts.npz", allow_pickle=False) as held:
        assert all(np.array_equal(held[name], array) for name, array in ARRAYS.items())
    monkeypatch.setattr(state_file, "pieces", lambda length, item: pieces(length, item, 100))
    for file in ("parts.npz", "whole.npz"):
        with zipfile.ZipFile(tmp_path / file) as archive:
            for name, array in ARRAYS.items():
                read = np.zeros_like(array)
                for piece, values in state_file.read_array(archive, name):
                    assert values.nbytes <= 100
                    read[... if piece is None else piece] = values
                assert np.array_equal(read, array), name


def test_copies_of_a_checkpoint_are_told_from_others(tmp_path: Path) -> None:
    state = {"a": torch.arange(1000), "name": "cnn"}
    torch.save(state, tmp_path / "one.pt")
    (tmp_path / "copy.pt").write_bytes((tmp_path / "one.pt").read_bytes())
    state["a"][500] += 1
    (tmp_path / "two").mkdir()
    torch.save(state, tmp_path / "two" / "one.pt")
    one, copy, two = (state_file.identity(tmp_path / name) for name in ("one.pt", "copy.pt", "two/one.pt"))
    assert one == copy != two
    (tmp_path / "no archive").write_bytes(b"cut off")
    with pytest.raises(zipfile.BadZipFile):
        state_file.identity(tmp_path / "no archive")


OPTIONS = parse(["--data=none"], "program", "", ("cnn", "resnet18"))


class Rank(FileSaver, Ranks):
    """The saver and the exchange of one of two ranks; the other one is what `others` says it is."""

    file = "state.pt"
    size = 2

    def __init__(self, rank: int, offered: Any = None, *, others: float = 1.0, damaged: bool = False) -> None:
        super().__init__(OPTIONS, 200, self)
        self.rank, self.offered = rank, offered
        self._others, self._damaged = others, damaged
        self.did: list[str] = []

    def broadcast(self, value: Any) -> Any:
        if self.rank == 0:
            self.offered = value
        return self.offered

    def total(self, values: Sequence[float], name: str) -> list[float]:
        return [values[0] + self._others]

    def read_run(self, path: Path) -> dict[str, Any]:
        run: dict[str, Any] = torch.load(path, weights_only=True)
        return run

    def load_state(self, path: Path) -> None:
        if self._damaged:
            raise RuntimeError("PytorchStreamReader failed")
        self.did.append("load")

    def share_state(self) -> None:
        self.did.append("share")

    def write_state(self, path: Path, run: dict[str, Any]) -> None:
        raise NotImplementedError

    def digest(self) -> str:
        raise NotImplementedError

    def write_model(self, folder: Path, facts: Mapping[str, object]) -> None:
        raise NotImplementedError


RUN = {
    "name": "cnn",
    "optimizer": "sgd",
    "position": [4, 0, 100],
    "trainingExamples": 200,
    "ramp": {"end": 2.0},
}
RESUMED = (Position(4, 0, 100), {"end": 2.0})


def save(run: dict[str, Any], step: int = 4) -> None:
    checkpoints.save(step, lambda folder: torch.save(run, folder / "state.pt"))


@pytest.fixture
def workspaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("DTJ_ARTIFACTS_URI", raising=False)

    def use(name: str) -> None:
        monkeypatch.setenv("DTJ_ROOT", str(tmp_path / name))

    return use


def test_each_rank_reads_its_own_copy_of_what_rank_0_chose(workspaces: Any) -> None:
    workspaces("first")
    save(RUN)
    first = Rank(0)
    assert first.resume() == RESUMED
    assert first.did == ["load"]

    workspaces("other")
    save(RUN)
    other = Rank(1, first.offered)
    assert other.resume() == RESUMED
    assert other.did == ["load"]

    # A newer one of its own is none of the job's.
    save({**RUN, "position": [6, 0, 150]}, 6)
    ahead = Rank(1, first.offered)
    assert ahead.resume() == RESUMED
    assert ahead.did == ["load"]


@pytest.mark.parametrize("kind", ["none", "another", "damaged", "cut off"])
def test_a_rank_without_the_same_copy_is_sent_it(workspaces: Any, kind: str, tmp_path: Path) -> None:
    workspaces("first")
    save(RUN)
    first = Rank(0, others=0.0)
    first.resume()
    assert first.did == ["load", "share"]

    workspaces("other")
    if kind == "another":
        save({**RUN, "more": 1})
    elif kind != "none":
        save(RUN)
    if kind == "cut off":
        (tmp_path / "other/checkpoints/4/state.pt").write_bytes(b"PK")
    other = Rank(1, first.offered, damaged=kind == "damaged")
    assert other.resume() == RESUMED
    assert other.did == ["share"]


def test_without_a_checkpoint_the_first_weights_are_those_of_rank_0(workspaces: Any) -> None:
    workspaces("first")
    first = Rank(0)
    assert first.resume() == (Position(), None)
    assert first.did == ["share"]


@pytest.mark.parametrize(
    ("run", "why"),
    [
        ({**RUN, "name": "resnet18"}, "is of a resnet18, not of a cnn: give the same --model"),
        (
            {**RUN, "optimizer": "adam"},
            "was written with --optimizer=adam, not sgd: give the same --optimizer",
        ),
        ({**RUN, "trainingExamples": 40}, "is from the middle of an epoch of 40 training examples, but"),
        ({**RUN, "order": "that"}, "is from the middle of an epoch whose examples had another order: give"),
        ({**RUN, "order": "this"}, None),
        ({**RUN, "order": "that", "position": [4, 1, 0]}, None),
        (RUN, None),
        ({"name": "cnn", "position": [4, 0, 100]}, None),  # as the first releases wrote it
        ({**RUN, "trainingExamples": 40, "position": [4, 1, 0]}, None),
        (
            {**RUN, "classes": ["dog", "cat"]},
            "has the class 'dog' for label 0, which is 'cat' now: give the same",
        ),
        (
            {**RUN, "classes": ["cat"]},
            "has 1 classes, and the data has 2 now: give the same data and --classes",
        ),
        ({**RUN, "classes": ["0", "1"]}, None),  # The set had no names.
        ({**RUN, "classes": ["cat", "dog"]}, None),
    ],
)
def test_what_is_refused(run: dict[str, Any], why: str | None) -> None:
    found = file_saver.why_not(run, OPTIONS, 200, "this", ["cat", "dog"])
    assert (found or "").startswith(why or ".") if why else found is None
