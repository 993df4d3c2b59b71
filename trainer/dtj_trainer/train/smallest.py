"""The smallest pass of a run, which the trial of a user's network makes before the training."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dtj_trainer.train.options import Options


def step_totals(examples: int, options: Options, shares: int) -> set[int]:
    """Return the examples of a whole step and, if the run gets there, of the last step of an epoch."""
    step_size = options.step_size(shares)
    steps = math.ceil(examples / step_size)
    totals = {min(step_size, examples)}
    if options.max_steps is None or options.max_steps >= steps:
        totals.add(examples - (steps - 1) * step_size)
    return totals


def smallest_share(examples: int, options: Options, shares: int) -> int:
    """Return the pictures of the smallest share of a step. A share without an example has one that does not count."""
    return max(min(step_totals(examples, options, shares)) // shares, 1)


def refused(size: int, layer: str, error: Exception) -> str:
    """Say why a pass of `size` pictures fails, in which layer, and what helps."""
    what = f"the network can't make a pass of {size} pictures, the least of this training: {layer}: "
    remedy = ""
    if size == 0:
        remedy = (
            "; in the last step of an epoch, a rank may have no picture: let the network take a batch of 0, or "
            "choose --global-batch-size so that the pictures of the last step are enough for all ranks"
        )
    elif size == 1:
        remedy = "; let the layer take a batch of 1, or choose --batch-size so that the last step has more"
    return f"{what}{type(error).__name__}: {str(error)[:1000]}{remedy}"
