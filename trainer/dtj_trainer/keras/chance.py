"""The random numbers of Keras' layers as a function of step and rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dtj_trainer.train.chance import seed_of

if TYPE_CHECKING:
    import keras


def draw_anew(model: keras.Model, seed: int, step: int, rank: int) -> None:
    """Seed the generators of layers such as dropout for a step of a rank; see `seed_of`."""
    weights = {id(each) for each in model.weights}  # Other variables are the states of generators.
    states = [each for each in model.variables if id(each) not in weights]
    if states:
        high, low = divmod(seed_of(seed, step, rank), 2**32)
        for place, state in enumerate(states):
            state.assign(np.array([high, (low + place) % 2**32], np.uint32))
