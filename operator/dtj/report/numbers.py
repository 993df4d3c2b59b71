"""Numbers in the lines that programs write, and the one rule by which `dtj` writes numbers for people.

operator/page/src/format.ts has the rule for the page, and tests/number_texts.json has examples of both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Context
from typing import Any

MAX_NUMBER = 1e15
"""The largest number that a row may have. Sums and squares of larger numbers may overflow."""
_LEAST, _MOST = 1e-3, 1e9
"""Numbers outside these bounds are written with a power of ten: 5e-5."""
_MOST_DIGITS = 15
"""The largest number of significant digits. A float has no more."""


def number(value: Any) -> float | None:
    """Return a value that is a number up to ±MAX_NUMBER; None for any other value, such as a loss that is NaN."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if abs(value) <= MAX_NUMBER else None


def number_text(value: float, digits: int = 4, size: float | None = None) -> str:
    """Return a number with at most so many significant digits, but with its whole part in full: 12,345 and 0.05.

    size: the number that decides whether a power of ten is written: by default value, on an axis the largest number.
    """
    if value == 0:
        return "0"
    power = not _LEAST <= (abs(value) if size is None else size) < _MOST
    kept = digits if power else max(digits, len(str(int(abs(value)))))
    # Round the decimal digits of the float, as browsers do. The binary value of 98.705 is slightly less, and would be
    # rounded down.
    rounded = Context(prec=kept, rounding=ROUND_HALF_UP).create_decimal(str(value)).normalize()
    return f"{rounded:e}".replace("e+", "e") if power else f"{rounded:,f}"


def tick_texts(ticks: Sequence[float], apart: float) -> list[str]:
    """Return the texts of an axis: with as many digits as the distance between its ticks needs, all in one form."""
    size = max(apart, *map(abs, ticks))
    digits = min(_MOST_DIGITS, math.floor(math.log10(size / apart)) + 3)
    # Write a tick next to zero as 0: a sum of floats may differ from zero by a rounding error.
    return [number_text(tick if abs(tick) > apart / 1e6 else 0, digits, size) for tick in ticks]
