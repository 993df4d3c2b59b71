"""The one rule by which `dtj` writes numbers for people; operator/page/src/format.ts has it for the page of `dtj ui`.

tests/number_texts.json has examples, which both have to meet.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Context

_LEAST, _MOST = 1e-3, 1e9
"""Numbers outside these bounds are written with a power of ten: 5e-5."""
_MOST_DIGITS = 15
"""A float has no more."""


def number_text(value: float, digits: int = 4, size: float | None = None) -> str:
    """Return a number with at most so many significant digits, but with its whole part in full: 12,345 and 0.05.

    size: decides whether the number has a power of ten; by default the number itself. On an axis it is the largest.
    """
    if value == 0:
        return "0"
    power = not _LEAST <= (abs(value) if size is None else size) < _MOST
    kept = digits if power else max(digits, len(str(int(abs(value)))))
    # From the digits that people see of a float, as browsers do: 98.705 is a little less.
    rounded = Context(prec=kept, rounding=ROUND_HALF_UP).create_decimal(str(value)).normalize()
    return f"{rounded:e}".replace("e+", "e") if power else f"{rounded:,f}"


def tick_texts(ticks: Sequence[float], apart: float) -> list[str]:
    """Return the texts of an axis: with as many digits as the distance between its ticks needs, all in one form."""
    size = max(apart, *map(abs, ticks))
    digits = min(_MOST_DIGITS, math.floor(math.log10(size / apart)) + 3)
    # A sum of floats may miss zero by the last bit.
    return [number_text(tick if abs(tick) > apart / 1e6 else 0, digits, size) for tick in ticks]
