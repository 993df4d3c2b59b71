"""Pictures changed at random, so that a network sees more of them than there are."""

from __future__ import annotations

import numpy as np

_PADDING = 4
"""Pixels by which a picture is shifted at most."""


def shift_and_flip(pixels: np.ndarray, chance: np.random.Generator) -> np.ndarray:
    """Each picture shifted by up to _PADDING pixels (black comes in), and mirrored half of the time.

    `pixels`: (batch, channels, height, width).
    """
    count, _, height, width = pixels.shape
    edges = (_PADDING, _PADDING)
    padded = np.pad(pixels, ((0, 0), (0, 0), edges, edges))
    down = chance.integers(0, 2 * _PADDING + 1, (count,))
    right = chance.integers(0, 2 * _PADDING + 1, (count,))
    mirrored = chance.integers(0, 2, (count,)).astype(bool)
    rows = down[:, None] + np.arange(height)
    columns = right[:, None] + np.arange(width)
    columns = np.where(mirrored[:, None], columns[:, ::-1], columns)
    # Advanced indices around the slice put (batch, rows, columns) first and channels last.
    each = np.arange(count)[:, None, None]
    return np.ascontiguousarray(padded[each, :, rows[:, :, None], columns[:, None, :]].transpose(0, 3, 1, 2))
