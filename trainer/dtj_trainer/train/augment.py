"""Random augmentation of pictures."""

from __future__ import annotations

import numpy as np

_PADDING = 4
"""The largest shift of a picture, in pixels."""


def shift_and_flip(pixels: np.ndarray, chances: np.ndarray) -> np.ndarray:
    """Shift each picture by up to _PADDING pixels (black fills the border), and mirror it with probability 0.5.

    `pixels`: (batch, channels, height, width). `chances`: uint64, (batch,): the random bits of each picture.
    """
    count, _, height, width = pixels.shape
    edges = (_PADDING, _PADDING)
    padded = np.pad(pixels, ((0, 0), (0, 0), edges, edges))
    down, right = (_below(2 * _PADDING + 1, chances >> np.uint64(shift)) for shift in (0, 24))
    mirrored = (chances >> np.uint64(63)).astype(bool)
    rows = down[:, None] + np.arange(height)
    columns = right[:, None] + np.arange(width)
    columns = np.where(mirrored[:, None], columns[:, ::-1], columns)
    # With advanced indices around the slice, numpy returns (batch, rows, columns, channels).
    each = np.arange(count)[:, None, None]
    return np.ascontiguousarray(padded[each, :, rows[:, :, None], columns[:, None, :]].transpose(0, 3, 1, 2))


def _below(limit: int, bits: np.ndarray) -> np.ndarray:
    """Map the lowest 24 bits of each value evenly to the numbers from 0 to `limit` - 1."""
    return ((bits & np.uint64(0xFFFFFF)) * np.uint64(limit) >> np.uint64(24)).astype(np.int64)
