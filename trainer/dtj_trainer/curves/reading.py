"""What a program said of its training at one moment, and the rows of metrics.jsonl that keep it. Pure."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_VALUES = 64
"""Values of one reading; further ones are left out."""
LONGEST_NAME = 64
_NO_NAME = re.compile(r"[^\w.\-@]+", re.ASCII)
_KINDS = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "eval": "validation",
    "evaluation": "validation",
    "test": "test",
}
_SAME = {
    "lr": "learningRate",
    "learning_rate": "learningRate",
    "acc": "accuracy",
    "categorical_accuracy": "accuracy",
}
_OF_A_ROW = frozenset(("kind", "time", "attempt", "step", "epoch", "source", "worldSize"))


@dataclass(frozen=True)
class TrainingReading:
    """What a program reported of its training. `step`, `total` and `epoch` count from 1."""

    step: int | None = None
    total: int | None = None
    epoch: float | None = None
    examples: int | None = None
    """Examples trained with, where the program counts them in place of steps."""
    values: Mapping[str, float] = field(default_factory=dict)
    """The measures by the program's own names, such as `train/loss` or `val_acc`."""
    leads: bool = True
    """Whether the step is that of the training: a line about something else may name a step of its own."""
    anew: bool = False
    """Whether the steps of the readings before were of other work, such as a download."""


def rows_of(values: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Return the values by the kind of their row, under the names that the rows of the built-in programs have.

    `val_loss`, `eval/loss` and `test_accuracy` are the loss and the accuracy of another kind of row than `train`.
    Values that JSON does not have are left out, as are those beyond MOST_VALUES.
    """
    rows: dict[str, dict[str, float]] = {}
    for name, value in list(values.items())[:MOST_VALUES]:
        if math.isfinite(value):
            kind, own = _kind_and_name(name)
            if own and own not in _OF_A_ROW:
                rows.setdefault(kind, {})[own] = value
    return rows


def _kind_and_name(name: str) -> tuple[str, str]:
    parts = [part for part in re.split(r"[/ ]+|(?<=[a-z])_(?=[a-z])", name.strip(), maxsplit=1) if part]
    kind = _KINDS.get(parts[0].lower()) if len(parts) == 2 else None
    if kind is None and len(parts) == 2 and (kind := _KINDS.get(parts[1].lower())):
        parts.reverse()  # `Loss/train`, as in PyTorch's tutorials.
    own = _NO_NAME.sub("_", parts[1] if kind else name.strip()).strip("_")[:LONGEST_NAME]
    return kind or "train", _SAME.get(
        own.lower(), own.lower() if own.lower() in ("loss", "accuracy") else own
    )


def loss_of(trained: Mapping[str, float]) -> float | None:
    """Return the loss among the values of a row of training; None where several could be it, as of a GAN."""
    losses = {name.lower(): value for name, value in trained.items() if "loss" in name.lower()}
    for name in ("loss", "total_loss", "loss_total"):
        if name in losses:
            return losses[name]
    return next(iter(losses.values())) if len(losses) == 1 else None
