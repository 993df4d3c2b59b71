"""Curves as SVG inside an HTML page, in the colours of the page's theme. All functions are pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from dtj.report.curves import Point
from dtj.report.html import said
from dtj.report.number_text import number_text, tick_texts

COLOURS = 6
"""Colours of the theme: the classes c1 to c6."""
_DASHES = ("", "8 4", "2 3", "10 3 2 3")
_WIDTH, _HEIGHT = 600, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 10, 24
"""The least margins."""
_TICKS = 5
_GAP = 6
"""Between a text and its axis."""
_CHARACTER = 7
"""The width of a digit in the widest of the fonts in which browsers draw the texts."""


def drawing(title: str, curves: Mapping[str, Sequence[Point]], restarts: Sequence[int]) -> str:
    """Return curves over steps. curves: points by the name of the curve. restarts: steps that get a dashed line.

    A step that a later attempt repeated has the value of the later attempt.
    """
    lines = {
        name: sorted({step: value for step, value, _ in points}.items()) for name, points in curves.items()
    }
    steps = [float(step) for line in lines.values() for step, _ in line]
    values = [value for line in lines.values() for _, value in line]
    if not steps:
        return ""
    up = _Axis(values, _HEIGHT - _BOTTOM, _TOP)
    left = max(_LEFT, 2 * _GAP + _width([text for _, text in up.ticks()]))
    right = max(_RIGHT, _width([number_text(max(steps))]) / 2)
    across = _Axis(steps, left, _WIDTH - right)
    parts = [*_grid(across, up), *_restarts(across, restarts)]
    for number, line in enumerate(lines.values()):
        points = " ".join(f"{across.place(step):.1f},{up.place(value):.1f}" for step, value in line)
        parts.append(f'<polyline {_look(number)} points="{points}"/>')
        if len(line) == 1:
            step, value = line[0]
            parts.append(
                f'<circle class="{_colour(number)}" cx="{across.place(step):.1f}" cy="{up.place(value):.1f}" r="2"/>'
            )
    label = f"{title} over steps; the table below has the last values"
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{said(label)}">{"".join(parts)}</svg>'
    )


def key(number: int) -> str:
    """Return the line that stands for a curve in a legend."""
    return (
        '<svg class="key" viewBox="0 0 40 12" aria-hidden="true">'
        f'<line {_look(number)} x1="0" y1="6" x2="40" y2="6"/></svg>'
    )


def _look(number: int) -> str:
    """Return the attributes of a curve: its colour, and dashes where several curves have the colour."""
    dashes = _DASHES[number // COLOURS % len(_DASHES)]
    return f'class="curve {_colour(number)}"' + (f' stroke-dasharray="{dashes}"' if dashes else "")


class _Axis:
    """Places numbers between two edges of the drawing."""

    def __init__(self, values: Sequence[float], first: float, last: float) -> None:
        least, most = min(values), max(values)
        largest = max(abs(least), abs(most))
        if most - least <= max(largest * 1e-12, 1e-280):
            half = largest / 2 if largest > 1e-270 else 0.5
            least, most = least - half, most + half
        self.least, self.most = least, most
        self.first, self.last = first, last

    def place(self, value: float) -> float:
        share = (value - self.least) / (self.most - self.least)
        return self.first + share * (self.last - self.first)

    def ticks(self) -> list[tuple[float, str]]:
        """Return about _TICKS round numbers and their texts."""
        raw = (self.most - self.least) / _TICKS
        size = 10.0 ** math.floor(math.log10(raw))
        distance = size * next(factor for factor in (1, 2, 5, 10) if size * factor >= raw * 0.999)
        first = math.ceil(self.least / distance)
        found = (number * distance for number in range(first, first + 2 * _TICKS + 1))
        ticks = [value for value in found if value <= self.most]
        return list(zip(ticks, tick_texts(ticks, distance), strict=True))


def _grid(across: _Axis, up: _Axis) -> Iterator[str]:
    for value, text in up.ticks():
        y = up.place(value)
        yield f'<line class="grid" x1="{across.first}" x2="{across.last}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{across.first - _GAP}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'
    for value, text in across.ticks():
        x = across.place(value)
        yield f'<text x="{x:.1f}" y="{_HEIGHT - 6}" text-anchor="middle">{text}</text>'


def _width(texts: Sequence[str]) -> int:
    return max(map(len, texts)) * _CHARACTER


def _restarts(across: _Axis, restarts: Sequence[int]) -> Iterator[str]:
    for step in restarts:
        if across.least <= step <= across.most:
            x = across.place(step)
            yield f'<line class="restart" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>'


def _colour(number: int) -> str:
    return f"c{number % COLOURS + 1}"
