"""Numbers in the lines that programs write."""

from __future__ import annotations

from typing import Any

MAX_NUMBER = 1e15
"""The largest number that a row may have. Sums and squares of larger numbers may overflow."""


def number(value: Any) -> float | None:
    """Return a value that is a number up to ±MAX_NUMBER; None for any other value, such as a loss that is NaN."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if abs(value) <= MAX_NUMBER else None
