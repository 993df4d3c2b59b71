"""Options that a command of `dtj` and the program that it starts both have."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable
from typing import NamedTuple


class Option(NamedTuple):
    """An option `--name`. `default`: None if `about` describes it. `least`: the smallest number; None for a text.

    A flag has the kind `bool`, and is off by default. `choices`: the only texts, if there are any.
    """

    name: str
    kind: type[int] | type[float] | type[str] | type[bool]
    default: int | float | str | None
    metavar: str
    about: str
    least: float | None = None
    choices: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The name as an identifier of Python."""
        return self.name.replace("-", "_")

    def fault(self, value: float) -> str | None:
        """Say what is wrong with a number; None for a good one."""
        if self.least is None or self.least <= value < math.inf:
            return None
        return f"--{self.name}={value} has to be at least {self.least:g}, and finite"


def add_options(parser: argparse.ArgumentParser, options: Iterable[Option]) -> None:
    """Add options to the command line of a program."""
    for option in options:
        if option.kind is bool:
            parser.add_argument(f"--{option.name}", action="store_true", help=option.about)
            continue
        shown = "" if option.default is None else " (default: %(default)s)"
        parser.add_argument(
            f"--{option.name}",
            type=option.kind,
            default=option.default,
            metavar=option.metavar or None,
            choices=option.choices or None,
            help=option.about + shown,
        )
