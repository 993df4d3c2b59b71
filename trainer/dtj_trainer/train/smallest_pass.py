"""The smallest pass of a run, which the trial of a user's network makes before the training."""

from __future__ import annotations

import logging
import math
import random
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dtj_trainer.train.options import TrainingOptions

log = logging.getLogger(__name__)

_NAMED = 8
"""The most weights that a message names."""


def step_totals(examples: int, options: TrainingOptions, shares: int) -> set[int]:
    """Return the examples of a whole step and, if the run gets there, of the last step of an epoch."""
    step_size = options.step_size(shares)
    steps = math.ceil(examples / step_size)
    totals = {min(step_size, examples)}
    if options.max_steps is None or options.max_steps >= steps:
        totals.add(examples - (steps - 1) * step_size)
    return totals


def smallest_share(examples: int, options: TrainingOptions, shares: int) -> int:
    """Return the size of the smallest share of a step. An empty share has size 1: an example of weight 0."""
    return max(min(step_totals(examples, options, shares)) // shares, 1)


def refused(size: int, layer: str, error: Exception) -> str:
    """Return a message: why a pass of `size` pictures fails, in which layer, and the remedy."""
    what = f"the network fails for a batch of {size}, the smallest batch of this training, in {layer}: "
    remedy = ""
    if size == 0:
        remedy = (
            "; in the last step of an epoch, a rank may have no picture: make the network accept a batch of 0, or "
            "choose --global-batch-size so that the last step has a picture for each rank"
        )
    elif size == 1:
        remedy = "; make the layer accept a batch of 1, or choose --batch-size so that the last step has more"
    return f"{what}{type(error).__name__}: {str(error)[:1000]}{remedy}"


def tell_unused(weights: Sequence[str]) -> None:
    """Warn of the weights of a network, by name, that the loss does not depend on."""
    if weights:
        log.warning(
            "no gradient reaches %d weights of the network, which stay as they are: %s",
            *(len(weights), ", ".join(weights[:_NAMED])),
        )


@contextmanager
def same_generators() -> Iterator[None]:
    """Restore the states of Python's and NumPy's random generators at the end: a network may draw from them."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)
