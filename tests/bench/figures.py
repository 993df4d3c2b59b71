"""Figures from measurements, and a table of the figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share (0 to 1) of all are not above (nearest rank)."""
    if not values:
        raise ValueError("no values")
    return sorted(values)[max(math.ceil(share * len(values)), 1) - 1]


def slope(sizes: Sequence[float], times: Sequence[float]) -> float:
    """By which power of its size a time grows, from the smallest to the largest: 1 is linear."""
    small, large = (
        min(range(len(sizes)), key=sizes.__getitem__),
        max(range(len(sizes)), key=sizes.__getitem__),
    )
    return math.log(times[large] / times[small]) / math.log(sizes[large] / sizes[small])


def shown(value: float) -> str:
    """Three digits that count, and no exponent."""
    if value == 0 or math.isinf(value):
        return f"{value:g}"
    digits = max(2 - math.floor(math.log10(abs(value))), 0)
    return f"{value:.{digits}f}"


def table(columns: Mapping[str, Mapping[str, float]]) -> str:
    """Markdown: a row for each figure, a column for each run; a figure that a run has not is a dash."""
    names = list(dict.fromkeys(name for column in columns.values() for name in column))
    rows = [["", *columns]]
    for name in names:
        rows.append([name, *(shown(column[name]) if name in column else "–" for column in columns.values())])
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    rows.insert(1, ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])])
    return "\n".join(
        "| "
        + " | ".join(
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        + " |"
        for row in rows
    )
