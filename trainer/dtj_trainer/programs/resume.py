"""How a training goes on: rank 0 chooses the checkpoint, each rank reads the copy of it on its own disk.

Every pod has restored the job's newest checkpoint before its ranks started. Only where a rank has no copy, or
another one, do rank 0's weights travel.
"""

from __future__ import annotations

import logging
import zipfile
from typing import TYPE_CHECKING, Any, NamedTuple

from dtj_trainer.artifacts import checkpoints
from dtj_trainer.programs.state_file import identity

if TYPE_CHECKING:
    from pathlib import Path

    from dtj_trainer.programs.learner import Data, Learner

log = logging.getLogger(__name__)


class Offer(NamedTuple):
    """The checkpoint from which rank 0 wants all ranks to go on."""

    step: int
    identity: str
    run: dict[str, Any]
    """What the checkpoint says of its run; see `Learner.write_state`."""


class Expected(NamedTuple):
    """What a checkpoint has to be of."""

    model: str
    optimizer: str
    training_examples: int


def resume(learner: Learner[Data], expected: Expected) -> dict[str, Any] | None:
    """Have weights and optimizer of rank 0's newest checkpoint on every rank; the run that it is of.

    None: there is no checkpoint, and all ranks have the first weights of rank 0. Ends the process when the
    checkpoint is not what is expected.
    """
    offer: Offer | None = learner.broadcast(_offer(learner, expected) if learner.rank == 0 else None)
    if offer is None:
        learner.share_state()
        return None
    loaded = _load_copy(learner, offer)
    if learner.rank == 0 and not loaded:
        raise SystemExit(f"the checkpoint of step {offer.step} can't be read any more")
    without = learner.ranks - round(learner.total([float(loaded)], "checkpoint")[0])
    if without:
        if learner.rank == 0:
            log.info("%d ranks have no copy of the checkpoint of step %d: it is sent", without, offer.step)
        learner.share_state()
    return offer.run


def _offer(learner: Learner[Data], expected: Expected) -> Offer | None:
    newest = checkpoints.newest()
    if newest is None:
        return None
    path = newest.path / learner.state_file
    if not path.is_file():
        raise SystemExit(
            f"the checkpoint {newest.path} was not written by this program: it has no {path.name}"
        )
    run = learner.read_run(path)
    if refusal := why_not(run, expected):
        raise SystemExit(f"the checkpoint {newest.path} {refusal}, or start anew (artifacts.resume: Never)")
    return Offer(newest.step, identity(path), run)


def why_not(run: dict[str, Any], expected: Expected) -> str | None:
    """Why a training can't go on from a checkpoint of `run`, and what to do; None when it can."""
    if run["name"] != expected.model:
        return f"is of a {run['name']}, not of a {expected.model}: give the same --model"
    # Releases before did not write the optimizer, and still earlier ones not the number of examples.
    if run.get("optimizer", expected.optimizer) != expected.optimizer:
        return "was written with another --optimizer: give the same"
    _, _, examples = run["position"]
    before = run.get("trainingExamples", expected.training_examples)
    if examples and before != expected.training_examples:
        return (
            f"is from the middle of an epoch of {before} training examples, but the data has "
            f"{expected.training_examples} now: give the same data"
        )
    return None


def _load_copy(learner: Learner[Data], offer: Offer) -> bool:
    """Load this rank's own copy of the offered checkpoint; whether it has one."""
    path = _copy_of(offer, learner.state_file)
    if path is None:
        return False
    try:
        learner.load_state(path)
    except Exception:
        if learner.rank == 0:
            raise
        log.warning("the copy of the checkpoint at %s can't be read", path, exc_info=True)
        return False
    return True


def _copy_of(offer: Offer, file: str) -> Path | None:
    for saved in checkpoints.saved():
        path = saved.path / file
        if saved.step == offer.step:
            try:
                return path if identity(path) == offer.identity else None
            except (OSError, zipfile.BadZipFile):
                return None
    return None
