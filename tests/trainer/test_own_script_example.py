"""The example manifests/examples/own-script/train.py, run in this process in place of each rank."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.trainer.conftest import REPOSITORY

pytestmark = pytest.mark.torch
SCRIPT = REPOSITORY / "manifests/examples/own-script/train.py"
POINTS_OF_AN_ARM = 76
"""152 in all: dealt out to 3 ranks they would be 51, 51 and 50, which are 2, 2 and 1 batches of 50."""


class Ranks(ModuleType):
    """`horovod.torch` of one rank, which hears its own word for that of all; counts the steps."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__("horovod.torch")
        self.steps = 0
        self.rank, self.local_rank, self.size = lambda: rank, lambda: rank, lambda: size
        self.Sum = "sum"

    def init(self) -> None:
        """Nothing to connect."""

    def broadcast_object(self, value: Any, root_rank: int, name: str) -> Any:
        """Needs the name: Horovod calls a value without one by its type, which is not the same on all ranks."""
        return value

    def broadcast_parameters(self, *_: Any, **__: Any) -> None:
        """All have them."""

    def allreduce(self, value: Any, **_: Any) -> Any:
        return value

    def DistributedOptimizer(self, optimizer: torch.optim.Optimizer, **_: Any) -> torch.optim.Optimizer:
        optimizer.register_step_post_hook(self._count)
        return optimizer

    def _count(self, *_: Any) -> None:
        self.steps += 1


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs the script with few points in a folder of `tmp_path`, as one of its ranks."""
    script = tmp_path / "train.py"
    text = SCRIPT.read_text()
    assert text.count("4000") == 3
    script.write_text(text.replace("4000", str(POINTS_OF_AN_ARM)))

    def as_rank(folder: str, *, epochs: int, rank: int = 0, size: int = 1) -> Ranks:
        ranks = Ranks(rank, size)
        place = tmp_path / folder
        options = [f"--epochs={epochs}", f"--checkpoints={place}/checkpoints", f"--model={place}/model"]
        package = ModuleType("horovod")
        package.torch = ranks
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, "horovod", package)
            patch.setitem(sys.modules, "horovod.torch", ranks)
            patch.setattr(sys, "argv", [str(script), *options])
            runpy.run_path(str(script), run_name="__main__")
        return ranks

    return as_rank


def test_all_ranks_make_equally_many_steps(run):
    steps = {run(f"rank-{rank}", epochs=1, rank=rank, size=3).steps for rank in range(3)}
    assert len(steps) == 1, "one of the ranks would wait for the others for ever"
    assert steps.pop() > 0


def test_a_resumed_run_is_the_uninterrupted_one(run, tmp_path):
    run("straight", epochs=3)
    run("resumed", epochs=1)
    assert run("resumed", epochs=3).steps == 2 * 4
    left, right = (torch.load(tmp_path / name / "model/spirals.pt") for name in ("straight", "resumed"))
    for name, value in left.items():
        assert torch.equal(value, right[name]), name


def test_files_get_their_names_when_they_are_complete(run, tmp_path, monkeypatch):
    written: list[str] = []
    save = torch.save
    monkeypatch.setattr(
        torch, "save", lambda state, path: (written.append(Path(path).name), save(state, path))
    )
    run("run", epochs=2)
    assert written
    assert all(name.startswith(".") or name.endswith(".tmp") for name in written)
    there = sorted(path.relative_to(tmp_path / "run").as_posix() for path in (tmp_path / "run").rglob("*.*"))
    assert there == ["checkpoints/epoch-1.pt", "checkpoints/epoch-2.pt", "model/spirals.pt"]
