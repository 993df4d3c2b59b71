"""The form of a network for pictures of one size."""

from __future__ import annotations

from enum import Enum


class NetworkForm(Enum):
    """The published networks are for pictures of 224x224, and divide the side by 32. Smaller pictures need less.

    Each form leaves about 4 to 7 rows and columns to the last convolutions. The networks keep strides and poolings
    of the published ones but for the first, so that all forms but SMALL have the published weights' shapes.
    """

    SMALL = 8
    """Below 64 pixels, such as 28 or 32: the side is divided by 8."""
    MEDIUM = 16
    """From 64 pixels, such as 100: the side is divided by 16."""
    LARGE = 32
    """From 160 pixels, such as 224: the published form."""


def form_of(height: int, width: int) -> NetworkForm:
    """Return the form for pictures of this size; the shorter side decides."""
    side = min(height, width)
    return NetworkForm.LARGE if side >= 160 else NetworkForm.MEDIUM if side >= 64 else NetworkForm.SMALL
