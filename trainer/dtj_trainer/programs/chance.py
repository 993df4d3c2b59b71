"""What a step leaves to chance, as a function of where it is: nothing to save, nothing to restore."""

from __future__ import annotations

import numpy as np


def seed_of(seed: int, step: int, rank: int) -> int:
    """The seed of a rank's generators in a step, 64 bits.

    Ranks and steps draw independently. A resumed run draws what the uninterrupted one would; on another number of
    ranks each rank that both have draws the same in the same step.
    """
    return int(np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0])
