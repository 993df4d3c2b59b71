"""Random numbers as functions of a position, so that no generator's state must be saved."""

from __future__ import annotations

import numpy as np


def seed_of(seed: int, step: int, rank: int) -> int:
    """Return the seed of a rank's generators in a step, 64 bits.

    Ranks and steps have independent seeds. A resumed run uses the same seeds as an uninterrupted one. After a change
    of the number of ranks, a rank that exists in both runs has the same seed in the same step, and a new rank has
    seeds that no other rank has.
    """
    return int(np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0])


def chances_of(seed: int, epoch: int, ids: np.ndarray) -> np.ndarray:
    """Return 64 random bits for each example in an epoch: uint64, (ids,).

    They depend on seed, epoch and the example's number only, whichever rank and worker asks. The numbers are those of
    SplitMix64 (Steele et al., 2014, "Fast Splittable Pseudorandom Number Generators") at the place `id` of a stream
    that seed and epoch begin: a generator for each example would take a hundred times as long.
    """
    begin: np.ndarray = np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)
    bits: np.ndarray = begin + (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits ^= bits >> np.uint64(31)
    return bits
