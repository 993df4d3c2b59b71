"""Random numbers of a step as a function of its position, so that no generator state must be saved."""

from __future__ import annotations

import numpy as np


def seed_of(seed: int, step: int, rank: int) -> int:
    """Return the seed of a rank's generators in a step, 64 bits.

    Ranks and steps have independent seeds. A resumed run uses the same seeds as an uninterrupted one. After a change
    of the number of ranks, a rank that exists in both runs has the same seed in the same step.
    """
    return int(np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0])
