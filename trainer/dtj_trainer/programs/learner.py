"""What a training loop asks of a framework: one rank's network, and what the ranks do together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np

    from dtj_trainer.data.sharding import Share

Data = TypeVar("Data")


class RanksDiverged(Exception):
    """The ranks' weights are not the same, although every step averaged their gradients."""


class Learner(Protocol[Data]):
    """A network with its optimizer on one rank. Pixels are uint8, (batch, channels, height, width)."""

    rank: int
    ranks: int
    state_file: str
    """The file of a checkpoint."""

    def prepare(self, pixels: np.ndarray, labels: np.ndarray) -> Data:
        """A batch as `train` takes it. Called by threads, ahead of time."""

    def train(self, data: Data, share: Share, rate: float, step: int) -> None:
        """Make a step with the mean gradient over all examples that the ranks have in it.

        `step` counts the steps before this one. What the network leaves to chance, such as dropout, follows from
        seed, step and rank.
        """

    def take_sums(self) -> list[float]:
        """Loss, right answers and examples of this rank's steps since the last call."""

    def test(self, pixels: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
        """How many right answers, and the sum of the losses."""

    def average_statistics(self) -> None:
        """Make what each rank has gathered from its own batches, BatchNorm's statistics, the same on all."""

    def total(self, values: Sequence[float], name: str) -> list[float]:
        """The sum of each value over all ranks, bit for bit the same on each of them."""

    def barrier(self) -> None:
        """Wait for all ranks."""

    def check_identical(self) -> str:
        """The digest of the weights; raises RanksDiverged, on every rank, when they are not the same on all."""

    def write_state(self, path: Path, run: dict[str, Any]) -> None:
        """Write weights, optimizer and `run`, which is plain data."""

    def read_run(self, path: Path) -> dict[str, Any]:
        """The `run` that `write_state` was given, without the rest, whatever its size."""

    def load_state(self, path: Path) -> None:
        """Take over weights and optimizer from what `write_state` wrote.

        Ends the process when the state is of another optimizer.
        """

    def broadcast(self, value: Any) -> Any:
        """What rank 0 gives, a small object, on every rank."""

    def share_state(self) -> None:
        """Give every rank the weights and the optimizer's state of rank 0."""

    def write_model(self, folder: Path, facts: dict[str, object]) -> None:
        """Write the final model, with `facts` in its description."""


def same_on_all(digests: Sequence[str]) -> None:
    """Raise RanksDiverged unless all ranks, in order, have the same digest."""
    if len(set(digests)) > 1:
        listed = ", ".join(f"rank {rank}: {digest[:12]}" for rank, digest in enumerate(digests))
        raise RanksDiverged(f"the ranks have different weights: {listed}")
