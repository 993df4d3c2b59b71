"""Objects that went while the API server could not be watched.

A watch that begins anew after a gap (410 Gone) lists what is there; kopf does not notice what is not any more, and
its indices show it for ever. So what they know is held against the API server's own list from time to time.
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
    """A view that may show objects that are gone."""

    hidden: Mapping[str, Set[str]]
    """What it does not show although it knows of it: uids by kind."""

    def known(self) -> Mapping[str, Mapping[str, Key]]:
        """What it knows of, hidden or not: by kind, the uid of each object and the job that it belongs to."""


async def lay_ghosts(
    view: Haunted, there: Callable[[str], Awaitable[Set[str]]], changed: Callable[[Key], None]
) -> None:
    """Hide what is gone. there: the uids that the API server has of a kind. changed: told each job concerned.

    Raises ApiError.
    """
    for kind, known in view.known().items():
        # Listed after it was known: what is not among it is gone, not new. What an answer was wrong about comes back.
        gone = known.keys() - await there(kind) if known else frozenset()
        before = view.hidden.get(kind, frozenset())
        view.hidden = {**view.hidden, kind: gone}
        for uid in gone ^ before:
            if uid in known:
                _log.warning("%s %s went unseen, or is there again", kind, uid)
                changed(known[uid])


async def keep_laying_ghosts(
    view: Haunted,
    there: Callable[[str], Awaitable[Set[str]]],
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
