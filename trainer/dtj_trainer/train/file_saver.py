"""Checkpoints and the final model of a training whose whole state rank 0 writes into a single file.

On a resume, rank 0 chooses the checkpoint, and each rank loads the copy on its own disk.

Every pod has restored the job's newest checkpoint before its ranks started. Rank 0 sends its state only if a rank has
no copy, or a different one.
"""

from __future__ import annotations

import logging
import zipfile
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from dtj_trainer import contract
from dtj_trainer.artifacts import checkpoints
from dtj_trainer.data.sharding import Sharding
from dtj_trainer.train.background_save import BackgroundSave
from dtj_trainer.train.protocols import Position, Saver
from dtj_trainer.train.state_file import identity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np

    from dtj_trainer.data.spread import Stock
    from dtj_trainer.train.options import TrainingOptions
    from dtj_trainer.train.protocols import Ranks
    from dtj_trainer.train.schedule import Ramp

log = logging.getLogger(__name__)

SHARDED_RUN = "run.json"
"""The file that describes the run in a checkpoint of shards, which a divided network writes."""


class Offer(NamedTuple):
    """The checkpoint that rank 0 proposes to all ranks for the resume."""

    step: int
    identity: str
    run: dict[str, Any]
    """The checkpoint's description of its run; see `FileSaver.write_state`."""


class FileSaver(Saver, ABC):
    """See Saver. Each framework has a subclass that writes, reads and sends the state."""

    file: ClassVar[str]
    """The name of the state file, a zip archive, in a checkpoint."""

    _ranks: Ranks

    def __init__(
        self,
        options: TrainingOptions,
        blocks: np.ndarray | int,
        ranks: Ranks,
        classes: Sequence[str] = (),
        stock: Stock | None = None,
    ) -> None:
        self._options, self._ranks, self._named = options, ranks, tuple(classes)
        sharding = Sharding(blocks, 1, rank=0, ranks=1, seed=options.seed, stock=stock)
        self._training_examples, self._order = sharding.examples, sharding.name
        self._background = BackgroundSave()

    @abstractmethod
    def write_state(self, path: Path, run: dict[str, Any]) -> None:
        """Write weights, optimizer and `run`, which is plain data."""

    def stage(self, run: dict[str, Any]) -> Callable[[Path], None] | None:
        """Copy what `write_state` writes. Return a function that writes the copy to a path, in any thread.

        Returns None if the state can't be copied.
        """
        del run
        return None

    @abstractmethod
    def read_run(self, path: Path) -> dict[str, Any]:
        """Read the `run` of `write_state` without the rest of the file, whatever its size."""

    @abstractmethod
    def load_state(self, path: Path) -> None:
        """Load weights and optimizer from a file of `write_state`.

        Ends the process if the state belongs to another optimizer.
        """

    @abstractmethod
    def share_state(self) -> None:
        """Give every rank the weights and the optimizer's state of rank 0."""

    @abstractmethod
    def digest(self) -> str:
        """Return the sha256 of the bytes of all weights and statistics, ordered by name."""

    @abstractmethod
    def write_model(self, folder: Path, facts: Mapping[str, object]) -> None:
        """Write the final model, with `facts` in its description."""

    @property
    def busy(self) -> bool:
        """See Saver."""
        return self._background.busy

    def save(self, at: Position, ramp: Ramp, accuracy: float | None, *, final: bool, wait: bool) -> None:
        """See Saver."""
        del final  # Not needed: the position shows whether the training is complete.
        if self._ranks.rank != 0:
            return
        run = run_at(at, ramp, self._options, self._training_examples, self._order, self._named)
        self._background.wait()
        step = at.step
        if not wait and self._options.async_save and (write := self.stage(run)):
            self._background.begin(
                lambda: checkpoints.save(step, lambda folder: write(folder / self.file), accuracy)
            )
        else:
            checkpoints.save(step, lambda folder: self.write_state(folder / self.file, run), accuracy)

    def close(self) -> None:
        """See Saver."""
        self._background.close()

    def export(self, at: Position, accuracy: float | None) -> dict[str, object]:
        """See Saver. Compares the ranks' weights first."""
        digest, size = self.digest(), self._ranks.size
        self._ranks.same_on_all(digest)
        log.info("the weights are the same on all %d ranks; their sha256: %s", size, digest)
        facts = model_facts(at, accuracy, size, digest)
        if self._ranks.rank == 0:
            folder = Path(contract.root()) / contract.MODEL
            self.write_model(folder, facts)
            log.info("the model is in %s", folder)
        return facts

    def resume(self) -> tuple[Position, dict[str, Any] | None]:
        """See Saver. Ends the process if rank 0's newest checkpoint belongs to another training."""
        offer: Offer | None = self._ranks.broadcast(self._offer() if self._ranks.rank == 0 else None)
        if offer is None:
            self.share_state()
            return Position(), None
        loaded = self._load_copy(offer)
        if self._ranks.rank == 0 and not loaded:
            raise SystemExit(
                f"rank 0 can't resume from the checkpoint of step {offer.step}: its file {self.file} was removed or "
                "replaced"
            )
        without = self._ranks.size - round(self._ranks.total([float(loaded)], "checkpoint")[0])
        if without:
            if self._ranks.rank == 0:
                log.info(
                    "%d ranks have no copy of the checkpoint of step %d: rank 0 sends its state",
                    without,
                    offer.step,
                )
            self.share_state()
        at = position_of(offer.run)
        if self._ranks.rank == 0:
            log.info("resuming from the checkpoint of step %d, epoch %d", at.step, at.epoch + 1)
        return at, offer.run.get("ramp")

    def _offer(self) -> Offer | None:
        newest = checkpoints.newest()
        if newest is None:
            return None
        path = newest.path / self.file
        if (newest.path / SHARDED_RUN).is_file():
            raise SystemExit(
                f"the checkpoint {newest.path} holds shards of a divided network: resume with --fsdp (one rank is "
                "enough), --tensor-parallel or --pipeline-stages, or start anew (artifacts.resume: Never)"
            )
        if not path.is_file():
            raise SystemExit(
                f"the checkpoint {newest.path} was not written by this program: it has no {path.name}"
            )
        run = self.read_run(path)
        if refusal := why_not(run, self._options, self._training_examples, self._order, self._named):
            raise SystemExit(
                f"the checkpoint {newest.path} {refusal}, or start anew (artifacts.resume: Never)"
            )
        return Offer(newest.step, identity(path), run)

    def _load_copy(self, offer: Offer) -> bool:
        """Load this rank's own copy of the proposed checkpoint; return whether it has one."""
        path = _copy_of(offer, self.file)
        if path is None:
            return False
        try:
            self.load_state(path)
        except Exception:
            if self._ranks.rank == 0:
                raise
            log.warning("the copy of the checkpoint at %s can't be read", path, exc_info=True)
            return False
        return True


def run_at(
    at: Position,
    ramp: Ramp,
    options: TrainingOptions,
    training_examples: int,
    order: str,
    classes: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the description of a run, as plain data. A checkpoint stores it, and `why_not` compares two."""
    return {
        "name": options.model,
        "optimizer": options.optimizer,
        "position": [at.step, at.epoch, at.examples],
        "trainingExamples": training_examples,
        "order": order,
        "orderRanks": at.order_ranks,
        "classes": list(classes),
        "ramp": ramp.plain(),
    }


def position_of(run: dict[str, Any]) -> Position:
    """Return the position that a checkpoint's description of its run has."""
    step, epoch, examples = run["position"]
    return Position(step, epoch, examples, run.get("orderRanks", 0))


def model_facts(at: Position, accuracy: float | None, ranks: int, digest: str) -> dict[str, object]:
    """Return what the description of the final model says about the training."""
    return {
        "accuracy": accuracy,
        "steps": at.step,
        "epochs": at.epoch,
        "worldSize": ranks,
        "weightsSha256": digest,
    }


def why_not(
    run: dict[str, Any],
    options: TrainingOptions,
    training_examples: int,
    order: str,
    classes: Sequence[str] = (),
) -> str | None:
    """Return why a training can't resume from a checkpoint of `run`, with the remedy; None if it can.

    order: `Sharding.name` of the training. classes: the names of the classes, by label.
    """
    if run["name"] != options.model:
        return f"is of a {run['name']}, not of a {options.model}: give the same --model"
    # Use defaults: checkpoints of old releases lack `optimizer`, and those of the oldest lack `trainingExamples`.
    if run.get("optimizer", options.optimizer) != options.optimizer:
        return f"was written with --optimizer={run['optimizer']}, not {options.optimizer}: give the same --optimizer"
    if differing := other_classes(run.get("classes", ()), classes):
        return differing
    _, _, examples = run["position"]
    before = run.get("trainingExamples", training_examples)
    if examples and before != training_examples:
        return (
            f"is from the middle of an epoch of {before} training examples, but the data has "
            f"{training_examples} now: give the same data"
        )
    if examples and run.get("order", order) != order:
        return (
            "is from the middle of an epoch whose examples had another order: give the same --seed, and the same "
            "data in the same shards"
        )
    return None


def other_classes(before: Sequence[str], now: Sequence[str]) -> str | None:
    """Return why a label means another class now than in a checkpoint; None if none does, or without names."""
    if not before or not now or tuple(before) == tuple(now):
        return None
    if all(name.isdecimal() for name in before) or all(name.isdecimal() for name in now):
        return None
    label = next((at for at, pair in enumerate(zip(before, now, strict=False)) if len({*pair}) > 1), None)
    if label is None:
        return f"has {len(before)} classes, and the data has {len(now)} now: give the same data and --classes"
    return (
        f"has the class {before[label]!r} for label {label}, which is {now[label]!r} now: give the same data, and "
        "the same --classes in the same order"
    )


def _copy_of(offer: Offer, file: str) -> Path | None:
    for saved in checkpoints.saved():
        path = saved.path / file
        if saved.step == offer.step:
            try:
                return path if identity(path) == offer.identity else None
            except (OSError, zipfile.BadZipFile):
                return None
    return None
