"""Two jobs that hold a part of what they need each: which one gives its nodes back, so that the other starts.

For jobs whose pods nobody places together (`schedulingPolicy.gang: None`), and only before all of an attempt run.
Jobs have turns. The turn of a job is as early as it was made, or gave way last: so the younger of two that block each
other gives way, the older one starts with what that held, and one that does not fit at all goes to the end and blocks
nobody for ever. Each time a job is more patient, up to 16 times, so that jobs that wait for others to end keep still.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

_MOST_DOUBLINGS = 4


@dataclass(frozen=True)
class Contender:
    """A job that holds nodes and needs more, or gave them back."""

    name: str
    """With its namespace."""
    uid: str
    turn: datetime
    """When it was made, or gave way last."""
    kinds: frozenset[str]
    """The resources of which jobs want more than there is."""
    times: int = 0
    """How often it gave way since all of it ran."""
    stuck_since: datetime | None = None
    """Since when it holds some nodes, and no node takes another of its pods."""
    starved_since: datetime | None = None
    """Since when no node takes any of its pods."""
    gave_way: bool = False
    """Whether it gave its nodes back and has not begun again."""

    @property
    def order(self) -> tuple[datetime, str]:
        """Whose turn is before whose."""
        return self.turn, self.uid

    def patience(self, first: float) -> float:
        """Seconds for which it is stuck before it gives way."""
        return float(first * 2 ** min(self.times, _MOST_DOUBLINGS))


@dataclass(frozen=True)
class Turn:
    """What the others mean for a job."""

    gives_way_to: str | None = None
    """The job that can start then."""
    waits: str | None = None
    """Why none of its pods is to be made now, in words."""
    look_again: float | None = None
    """Seconds."""


NO_RIVAL = Turn()
"""Others mean nothing for it."""


def turn(mine: Contender, others: Iterable[Contender], now: datetime, patience: float) -> Turn:
    """Whether a job goes on, gives way, or waits. patience: seconds, of one that has never given way."""
    rivals = [each for each in others if each.uid != mine.uid and each.kinds & mine.kinds]
    before = [each for each in rivals if each.order < mine.order]
    if mine.gave_way:
        return _waiting(mine, before, now, patience)
    if mine.stuck_since is None:
        return Turn()
    # Those that could start with what it holds, should it not start with what they gave back.
    behind = [
        each
        for each in rivals
        if each.starved_since is not None or (each.gave_way and each.order > mine.order)
    ]
    stuck = [each for each in before if each.stuck_since is not None]
    left = []
    if stuck:
        both = max(mine.stuck_since, min(each.stuck_since for each in stuck if each.stuck_since))
        left.append((mine.patience(patience) - (now - both).total_seconds(), min(stuck, key=_order)))
    if behind:
        alone = max(mine.stuck_since, *(each.starved_since or each.turn for each in behind))
        left.append((mine.patience(patience) - (now - alone).total_seconds(), min(behind, key=_order)))
    due, other = min(left, key=lambda each: each[0], default=(None, None))
    if due is None or other is None:
        return Turn()
    return Turn(gives_way_to=other.name) if due <= 0 else Turn(look_again=due)


def _waiting(mine: Contender, before: Sequence[Contender], now: datetime, patience: float) -> Turn:
    waited = (now - mine.turn).total_seconds()
    first = patience / 2 - waited
    if first > 0:
        # The nodes are free when its pods have ended; their new owner is then placed before it asks again.
        return Turn(waits="it gave its nodes back", look_again=first)
    longest = 2 * mine.patience(patience) - waited
    blocking = [each for each in before if each.gave_way or each.stuck_since is not None]
    if longest <= 0 or not blocking:
        return Turn()
    name = min(blocking, key=_order).name
    return Turn(
        waits=f"it gave its nodes back, and {name} is before it", look_again=min(longest, patience / 4)
    )


def _order(each: Contender) -> tuple[datetime, str]:
    return each.order
