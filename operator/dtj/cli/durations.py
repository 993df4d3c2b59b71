"""Durations as text: reading and printing."""

from __future__ import annotations

import re
from typing import Annotated

import typer

_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"\d+(\.\d+)?|(\d+(\.\d+)?[smhd])+")
_PART = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")


def seconds_of(text: str) -> float:
    """Return the seconds of `90`, `90s`, `10m`, `1h` or `1h30m`. Raises typer.BadParameter for anything else."""
    if not _DURATION.fullmatch(text):
        raise typer.BadParameter(
            f"{text!r} is no duration: give seconds, or a duration such as 90s, 10m or 1h30m"
        )
    return sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(text))


TimeoutOption = Annotated[
    float | None,
    typer.Option(
        parser=seconds_of, metavar="DURATION", help="Give up after this: 90s, 10m, 1h; by default never."
    ),
]


def brief(seconds: float) -> str:
    """Return a duration in at most two units, as kubectl shows ages: 45s, 12m30s, 3h5m, 4d12h."""
    whole = max(int(seconds), 0)
    if whole < 120:
        return f"{whole}s"
    if whole < 3600:
        return _in_two(whole, 60, "m", 1, "s")
    if whole < 48 * 3600:
        return _in_two(whole, 3600, "h", 60, "m")
    return _in_two(whole, 86400, "d", 3600, "h")


def _in_two(whole: int, large: int, large_unit: str, small: int, small_unit: str) -> str:
    rest = whole % large // small
    return f"{whole // large}{large_unit}" + (f"{rest}{small_unit}" if rest else "")
