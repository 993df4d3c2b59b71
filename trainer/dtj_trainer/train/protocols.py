"""Protocols between the training loop and the frameworks: a model, the ranks and a saver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from dtj_trainer.data.sharding import Share
    from dtj_trainer.train.schedule import Ramp

Data = TypeVar("Data")
DataIn = TypeVar("DataIn", contravariant=True)


NAMED = 8
"""The most ranks and weights that a message names."""


class RanksDiverged(Exception):
    """The ranks' weights differ, although every step averaged their gradients."""


@dataclass
class Position:
    """The position of a run: steps made, the epoch, and how many examples of the epoch all ranks have done.

    `order_ranks`: how many ranks began the epoch, for `Sharding.begun`; 0 if no checkpoint has the number.
    """

    step: int = 0
    epoch: int = 0
    examples: int = 0
    order_ranks: int = 0


class StepParts(NamedTuple):
    """Sums over `steps` of a rank: the seconds of each part, those of the exchange of gradients, and bytes.

    `communication` is what the exchange adds to the step; `exchanging` is the exchange from the first gradient to the
    last, most of it beside the backward pass. `reduced` counts the bytes of gradients that the rank contributed.
    """

    steps: float = 0.0
    forward: float = 0.0
    backward: float = 0.0
    communication: float = 0.0
    optimizer: float = 0.0
    exchanging: float = 0.0
    reduced: float = 0.0


TOP = 5
"""How many best answers count for the top-5 accuracy. Sets with so few classes have no top-5 accuracy."""


class Tested(NamedTuple):
    """Sums over the examples of a test: right answers, losses, and labels among the five best answers."""

    right: float = 0.0
    loss: float = 0.0
    top5: float = 0.0


class Model(Protocol[DataIn]):
    """A network with its optimizer, as one rank trains it."""

    def train(self, data: DataIn, share: Share, rate: float, step: int) -> None:
        """Make a step with the mean gradient over all examples of the step on all ranks.

        `step` counts the steps before this one. The network's random numbers, as for dropout, follow from seed, step
        and rank.
        """

    def try_export(self) -> None:
        """Begin to find out, beside the first steps, whether the trained model can be exported."""
        return

    def settle(self) -> int:
        """Wait until every step that `train` began has ended; return the number of steps that were applied twice."""
        return 0

    def take_sums(self) -> Sequence[float]:
        """Return loss, right answers and examples of this rank's steps that have ended since the last call.

        If the model counts them, a fourth number follows: the examples whose label is among the five best answers.
        """

    def take_parts(self) -> StepParts:
        """Return the parts of this rank's steps since the last call, if the model measures them."""
        return StepParts()

    def average_statistics(self) -> None:
        """Average over the ranks what each rank gathered from its own batches, such as BatchNorm's statistics."""

    def fingerprints(self, *, weights_alone: bool) -> Mapping[str, str]:
        """Return a digest of each weight that other ranks have too, by name; none if ranks share no weights.

        After `average_statistics`, statistics have digests too, unless `weights_alone`.
        """
        del weights_alone
        return {}


class PictureModel(Model[Data], Protocol[Data]):
    """A picture classifier. Pixels are uint8, (batch, channels, height, width)."""

    @property
    def tests_together(self) -> bool:
        """Whether `test` exchanges data between ranks: every rank then makes each call, even without pictures."""
        return False

    def prepare(self, pixels: np.ndarray, labels: np.ndarray) -> Data:
        """Convert a batch to the form that `train` takes. Threads call the method ahead of time."""

    def test(self, pixels: np.ndarray, labels: np.ndarray) -> Tested:
        """Return the sums over these pictures."""


class Ranks:
    """The exchange between the processes that train together. This base class is for a single process."""

    rank, size = 0, 1

    @property
    def data_rank(self) -> int:
        """The number of this rank's share of the examples. Ranks of one divided network have the same number."""
        return self.rank

    @property
    def data_size(self) -> int:
        """The number of shares of the examples."""
        return self.size

    @property
    def counts(self) -> bool:
        """Whether this rank's sums are counted: of the ranks with the same share, only one is."""
        return True

    def total(self, values: Sequence[float], name: str) -> list[float]:
        """Return the sum of each value over all ranks, bit for bit the same on each of them."""
        del name  # A single rank has nothing to match; subclasses match the ranks' calls by name.
        return list(values)

    def broadcast(self, value: Any) -> Any:
        """Return rank 0's `value` on every rank. For small objects: `value` is pickled and copied several times."""
        return value

    def gather(self, value: Any, name: str) -> list[Any]:
        """Return the `value` of each rank, ordered by rank. For small objects."""
        del name
        return [value]

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.total([0.0], "barrier")

    def same_on_all(self, digest: str, of_each: Mapping[str, str] | None = None) -> None:
        """Raise RanksDiverged on every rank unless all ranks give the same digest of their weights.

        `of_each`: digests of the single weights by name, of which the error names those that differ.
        """
        digests = self.gather(digest, "weights")
        unlike = [rank for rank, each in enumerate(digests) if each != digests[0]]
        if not unlike:
            return
        own = dict(of_each or {})
        first: dict[str, str] = self.broadcast(own)
        different = [name for name in sorted({*own, *first}) if own.get(name) != first.get(name)]
        names = sorted({name for found in self.gather(different[:NAMED], "names") for name in found})
        listed = ", ".join(f"rank {rank}: {digests[rank][:12]}" for rank in [0, *unlike][:NAMED])
        which = f": {', '.join(names[:NAMED])}" if names else ""
        raise RanksDiverged(
            f"the ranks have different weights{which} (sha256: {listed}); a possible cause is a forward pass that "
            "changes a weight"
        )


class Saver(Protocol):
    """Checkpoints and the final model. All ranks make each call; the saver decides which ranks write."""

    def resume(self) -> tuple[Position, dict[str, Any] | None]:
        """Load the newest checkpoint, or rank 0's initial weights, on all ranks; return the position,
        and the ramp of the rate as plain data.
        """

    def prepare_saves(self) -> None:
        """Prepare saves beside the training. The loop calls this method after the slow first step."""
        return

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written beside the training."""
        return False

    def save(self, at: Position, ramp: Ramp, accuracy: float | None, *, final: bool, wait: bool) -> None:
        """Write a checkpoint. `accuracy` is from a test at this step. No checkpoint follows a `final` one.

        At most one checkpoint is written at a time: the call first waits for the one before, and raises what its
        writing raised. With `wait` the checkpoint is complete at the return. Otherwise the call may return once the
        state is copied.
        """

    def close(self) -> None:
        """Wait for the checkpoint that is being written, and log an error of it."""
        return

    def export(self, at: Position, accuracy: float | None) -> Mapping[str, object]:
        """Write the final model; return the facts in its description. Raises RanksDiverged."""
