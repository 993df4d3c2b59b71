"""Checkpoints and the final model of a training whose whole state rank 0 writes into a single file.

How a training goes on: rank 0 chooses the checkpoint, each rank reads the copy of it on its own disk.

Every pod has restored the job's newest checkpoint before its ranks started. Only where a rank has no copy, or
another one, do rank 0's weights travel.
"""

from __future__ import annotations

import logging
import zipfile
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from dtj_trainer import contract
from dtj_trainer.artifacts import checkpoints
from dtj_trainer.programs.protocols import Position
from dtj_trainer.programs.state_file import identity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dtj_trainer.programs.options import Options
    from dtj_trainer.programs.protocols import Ranks
    from dtj_trainer.programs.schedule import Ramp

log = logging.getLogger(__name__)


class Offer(NamedTuple):
    """The checkpoint from which rank 0 wants all ranks to go on."""

    step: int
    identity: str
    run: dict[str, Any]
    """What the checkpoint says of its run; see `FileSaver.write_state`."""


class FileSaver(ABC):
    """See Saver. A subclass for each framework writes, reads and sends the state."""

    file: ClassVar[str]
    """The name of the file, a zip archive, in a checkpoint."""

    _ranks: Ranks

    def __init__(self, options: Options, training_examples: int, ranks: Ranks) -> None:
        self._options, self._training_examples, self._ranks = options, training_examples, ranks

    @abstractmethod
    def write_state(self, path: Path, run: dict[str, Any]) -> None:
        """Write weights, optimizer and `run`, which is plain data."""

    @abstractmethod
    def read_run(self, path: Path) -> dict[str, Any]:
        """The `run` that `write_state` was given, without the rest, whatever its size."""

    @abstractmethod
    def load_state(self, path: Path) -> None:
        """Take over weights and optimizer from what `write_state` wrote.

        Ends the process when the state is of another optimizer.
        """

    @abstractmethod
    def share_state(self) -> None:
        """Give every rank the weights and the optimizer's state of rank 0."""

    @abstractmethod
    def digest(self) -> str:
        """The sha256 of all weights and statistics, byte for byte, in the order of their names."""

    @abstractmethod
    def write_model(self, folder: Path, facts: Mapping[str, object]) -> None:
        """Write the final model, with `facts` in its description."""

    def save(self, at: Position, ramp: Ramp, accuracy: float | None, *, final: bool) -> None:
        """See Saver."""
        del final  # The position says whether anything is left to train.
        run = {
            "name": self._options.model,
            "optimizer": self._options.optimizer,
            "position": [at.step, at.epoch, at.examples],
            "trainingExamples": self._training_examples,
            "ramp": ramp.plain(),
        }
        if self._ranks.rank == 0:
            checkpoints.save(at.step, lambda folder: self.write_state(folder / self.file, run), accuracy)

    def export(self, at: Position, accuracy: float | None) -> dict[str, object]:
        """See Saver. Compares the ranks' weights first."""
        digest, size = self.digest(), self._ranks.size
        self._ranks.same_on_all(digest)
        log.info("the weights are the same on all %d ranks; sha256 of this one's: %s", size, digest)
        facts: dict[str, object] = {
            "accuracy": accuracy,
            "steps": at.step,
            "epochs": at.epoch,
            "worldSize": size,
            "weightsSha256": digest,
        }
        if self._ranks.rank == 0:
            folder = Path(contract.root()) / contract.MODEL
            self.write_model(folder, facts)
            log.info("the model is in %s", folder)
        return facts

    def resume(self) -> tuple[Position, dict[str, Any] | None]:
        """See Saver. Ends the process when the newest checkpoint of rank 0 is of another training."""
        offer: Offer | None = self._ranks.broadcast(self._offer() if self._ranks.rank == 0 else None)
        if offer is None:
            self.share_state()
            return Position(), None
        loaded = self._load_copy(offer)
        if self._ranks.rank == 0 and not loaded:
            raise SystemExit(f"the checkpoint of step {offer.step} can't be read any more")
        without = self._ranks.size - round(self._ranks.total([float(loaded)], "checkpoint")[0])
        if without:
            if self._ranks.rank == 0:
                log.info(
                    "%d ranks have no copy of the checkpoint of step %d: it is sent", without, offer.step
                )
            self.share_state()
        at = Position(*offer.run["position"])
        if self._ranks.rank == 0:
            log.info("going on from the checkpoint of step %d, epoch %d", at.step, at.epoch + 1)
        return at, offer.run.get("ramp")

    def _offer(self) -> Offer | None:
        newest = checkpoints.newest()
        if newest is None:
            return None
        path = newest.path / self.file
        if not path.is_file():
            raise SystemExit(
                f"the checkpoint {newest.path} was not written by this program: it has no {path.name}"
            )
        run = self.read_run(path)
        if refusal := why_not(run, self._options, self._training_examples):
            raise SystemExit(
                f"the checkpoint {newest.path} {refusal}, or start anew (artifacts.resume: Never)"
            )
        return Offer(newest.step, identity(path), run)

    def _load_copy(self, offer: Offer) -> bool:
        """Load this rank's own copy of the offered checkpoint; whether it has one."""
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


def why_not(run: dict[str, Any], options: Options, training_examples: int) -> str | None:
    """Why a training can't go on from a checkpoint of `run`, and what to do; None when it can."""
    if run["name"] != options.model:
        return f"is of a {run['name']}, not of a {options.model}: give the same --model"
    # Releases before did not write the optimizer, and still earlier ones not the number of examples.
    if run.get("optimizer", options.optimizer) != options.optimizer:
        return "was written with another --optimizer: give the same"
    _, _, examples = run["position"]
    before = run.get("trainingExamples", training_examples)
    if examples and before != training_examples:
        return (
            f"is from the middle of an epoch of {before} training examples, but the data has "
            f"{training_examples} now: give the same data"
        )
    return None


def _copy_of(offer: Offer, file: str) -> Path | None:
    for saved in checkpoints.saved():
        path = saved.path / file
        if saved.step == offer.step:
            try:
                return path if identity(path) == offer.identity else None
            except (OSError, zipfile.BadZipFile):
                return None
    return None
