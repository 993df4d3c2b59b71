"""Jobs that went while the API server could not be watched.

A watch that begins anew after a gap (410 Gone) lists what is there; kopf does not notice what is not any more, and
its index of jobs shows it for ever. So what that knows is held against the API server's own list from time to time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Set
from typing import Protocol

from dtj.cluster.port import ApiError
from dtj.reconcile.view import Key

_log = logging.getLogger(__name__)


class Haunted(Protocol):
    """A view that may show jobs that are gone."""

    hidden: Set[str]
    """Uids of jobs that it does not show although it knows of them."""

    def known(self) -> Mapping[str, Key]:
        """The uid of each job that it knows of, hidden or not, and its name."""


async def lay_ghosts(
    view: Haunted, there: Callable[[], Awaitable[Set[str]]], changed: Callable[[Key], None]
) -> None:
    """Hide what is gone. there: uids of the API server's jobs. changed: told each job concerned. Raises ApiError."""
    known = view.known()
    # Listed after it was known: what is not among it is gone, not new. What an answer was wrong about comes back.
    gone = known.keys() - await there() if known else frozenset()
    before = view.hidden
    view.hidden = gone
    for uid in gone ^ before:
        if uid in known:
            _log.warning("job %s went unseen, or is there again", uid)
            changed(known[uid])


async def keep_laying_ghosts(
    view: Haunted,
    there: Callable[[], Awaitable[Set[str]]],
    changed: Callable[[Key], None],
    interval: float,
) -> None:
    """Do so every `interval` seconds, also when the API server fails meanwhile."""
    while True:
        await asyncio.sleep(interval)
        try:
            await lay_ghosts(view, there, changed)
        except ApiError as error:
            _log.warning("what went unseen is not known: %s", error)
