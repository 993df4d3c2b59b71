"""Random augmentation of pictures."""

from __future__ import annotations

import numpy as np

_PADDING = 4
"""The largest shift of a picture, in pixels."""


def shift_and_flip(pixels: np.ndarray, chance: np.random.Generator) -> np.ndarray:
    """Shift each picture by up to _PADDING pixels (black fills the border), and mirror it with probability 0.5.

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
    # With advanced indices around the slice, numpy returns (batch, rows, columns, channels).
    each = np.arange(count)[:, None, None]
    return np.ascontiguousarray(padded[each, :, rows[:, :, None], columns[:, None, :]].transpose(0, 3, 1, 2))
