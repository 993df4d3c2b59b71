"""Types of a program's arguments, for argparse's `type`."""

from __future__ import annotations

import argparse
from itertools import pairwise


class _Number:
    """A number with a lower bound, for argparse's `type`."""

    def __init__(self, kind: type[int] | type[float], *, zero: bool) -> None:
        self._kind = kind
        self._zero = zero

    def __call__(self, text: str) -> float:
        """Convert the text, or raise argparse's error."""
        try:
            value = self._kind(text)
        except ValueError:
            wanted = "a whole number" if self._kind is int else "a number"
            raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}") from None
        if not (value > 0 or (self._zero and value == 0)):
            raise argparse.ArgumentTypeError(f"{text} must be {'0 or more' if self._zero else 'more than 0'}")
        return value


def positive(kind: type[int] | type[float]) -> _Number:
    """Accept numbers greater than 0, for argparse's `type`."""
    return _Number(kind, zero=False)


def not_negative(kind: type[int] | type[float]) -> _Number:
    """Accept numbers of 0 or more, for argparse's `type`."""
    return _Number(kind, zero=True)


def share(text: str) -> float:
    """Accept numbers from 0 to below 1, for argparse's `type`."""
    value = not_negative(float)(text)
    if value >= 1:
        raise argparse.ArgumentTypeError(f"{text} must be less than 1")
    return value


def step_range(text: str) -> tuple[int, int]:
    """Accept `A:B`, the numbers of the first and the last step, for argparse's `type`."""
    first, separator, last = text.partition(":")
    if not (separator and first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last)):
        raise argparse.ArgumentTypeError(
            f"{text!r} must be A:B, the first and the last step, with 1 <= A <= B"
        )
    return int(first), int(last)


def epochs(text: str) -> tuple[float, ...]:
    """Accept ascending epochs with commas between them, for argparse's `type`."""
    listed = tuple(positive(float)(each.strip()) for each in text.split(","))
    if any(before >= after for before, after in pairwise(listed)):
        raise argparse.ArgumentTypeError(f"{text!r} must be ascending epochs, such as 82,123")
    return listed


def names(text: str) -> tuple[str, ...]:
    """Accept different names with commas between them, for argparse's `type`."""
    listed = tuple(name.strip() for name in text.split(","))
    if "" in listed or len(set(listed)) != len(listed):
        raise argparse.ArgumentTypeError(
            f"{text!r} must be names with commas between them, none empty or twice"
        )
    return listed
