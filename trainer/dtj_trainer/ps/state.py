"""A checkpoint of a parameter server training: written by the chief, read by the next chief and the evaluator.

TensorFlow's asynchronous checkpoints also take variables on parameter servers, but a thread of the chief writes them,
in files that depend on the number of servers.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from dtj_trainer.artifacts import checkpoints
from dtj_trainer.train.file_saver import other_classes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

VARIABLES = "variables.npz"
TRAINING = "training.json"


class NotOurCheckpoint(Exception):
    """A checkpoint can't be used for this training. The message says why and names the remedy."""


@dataclass
class TrainingState:
    """The position of a training, and what is trained.

    `examples` of the epoch `epoch` (from 0) are done. `trained` and `seconds` are totals of all attempts, without
    what was lost between checkpoints; so is `applied_twice`, the batches that were applied again after a worker was
    lost. `final`: no checkpoint follows. `shape` is (height, width, channels). `order` is `Sharding.name`.
    """

    model: str
    shape: tuple[int, int, int]
    classes: int
    optimizer: str
    training_examples: int
    step: int = 0
    epoch: int = 0
    examples: int = 0
    trained: int = 0
    seconds: float = 0.0
    applied_twice: int = 0
    order: str = ""
    class_names: tuple[str, ...] = ()
    final: bool = False


def save(state: TrainingState, write_vectors: Callable[[Path], None]) -> Path:
    """Write a checkpoint. `write_vectors` writes `Parameters.vectors` to a path, as `numpy.savez` would."""

    def write(folder: Path) -> None:
        write_vectors(folder / VARIABLES)
        (folder / TRAINING).write_text(json.dumps(asdict(state), indent=1) + "\n")

    return checkpoints.save(state.step, write)


def load(folder: Path) -> tuple[TrainingState, dict[str, np.ndarray]]:
    """Read a checkpoint of `save`. Raises NotOurCheckpoint; OSError if the checkpoint is being removed."""
    if not (folder / TRAINING).is_file() and folder.is_dir():
        raise NotOurCheckpoint(
            f"the checkpoint {folder} was not written by this program: it has no {TRAINING}"
        )
    try:
        content = json.loads((folder / TRAINING).read_bytes())
        tuples = {"shape": tuple(content["shape"]), "class_names": tuple(content.get("class_names", ()))}
        state = TrainingState(**content | tuples)
        with np.load(folder / VARIABLES) as held:
            return state, dict(held)
    except (ValueError, TypeError, KeyError) as error:
        raise NotOurCheckpoint(f"the checkpoint {folder} can't be read: {error}") from error


def check(saved: TrainingState, present: TrainingState, folder: Path) -> None:
    """Raise NotOurCheckpoint if `saved` does not belong to the training that `present` describes."""
    if saved.model != present.model:
        why = f"is of a {saved.model}, not of a {present.model}: give the same --model"
    elif saved.optimizer != present.optimizer:
        why = f"was trained by {saved.optimizer}, not by {present.optimizer}: give the same --optimizer"
    elif (saved.shape, saved.classes) != (present.shape, present.classes):
        why = (
            f"is for pictures of {saved.shape} in {saved.classes} classes, but the data has {present.shape} in "
            f"{present.classes}: give the same data"
        )
    elif differing := other_classes(saved.class_names, present.class_names):
        why = differing
    elif saved.examples and saved.training_examples != present.training_examples:
        why = (
            f"is from the middle of an epoch of {saved.training_examples} training examples, but the data has "
            f"{present.training_examples} now: give the same data"
        )
    elif saved.examples and saved.order not in ("", present.order):
        why = (
            "is from the middle of an epoch whose examples had another order: give the same --seed, and the same "
            "data in the same shards"
        )
    else:
        return
    raise NotOurCheckpoint(f"the checkpoint {folder} {why}, or start anew (artifacts.resume: Never)")
