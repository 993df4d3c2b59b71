"""The progress of long commands: one line for each step on stderr, with its seconds."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class ClusterError(Exception):
    """Something a person has to know; printed without a traceback."""


def note(text: str) -> None:
    """One line on stderr; stdout is for the exports only."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def step(title: str) -> Iterator[Callable[[str], None]]:
    """Print the title, what `say` is told meanwhile, and the seconds it took."""
    begun = time.monotonic()
    note(f"{title} …")
    yield lambda text: note(f"  {time.monotonic() - begun:5.0f} s  {text}")
    seconds = time.monotonic() - begun
    if seconds >= 1:
        note(f"  {seconds:5.1f} s  done")


def wait_for(
    what: str,
    ready: Callable[[], bool],
    *,
    seconds: float,
    every: float = 0.1,
    on_timeout: Callable[[], str] = lambda: "",
) -> None:
    """Poll until `ready`; after `seconds`, say what was waited for and what `on_timeout` knows of it."""
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            detail = on_timeout()
            raise ClusterError(f"waited {seconds:.0f} s for {what}" + (f":\n{detail}" if detail else ""))
        time.sleep(every)
