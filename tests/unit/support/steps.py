"""Measures the work of code in function calls, which are equal on every machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def steps(do: Callable[[], Any]) -> int:
    """Return the number of function calls that `do` makes, including calls of C functions."""
    count = 0

    def counted(_: Any, event: str, __: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        do()
    finally:
        sys.setprofile(before)
    return count
