"""What the looks at a folder have shown of one file, folder or link that differs from the last picture."""

from __future__ import annotations

from dataclasses import dataclass

from dtj_trainer.artifacts.look import SECOND, Look, Node

BUSY_CHANGES, BUSY_WITHIN = 4, 30 * SECOND
"""A file that changed so often within the time is busy."""


@dataclass
class Track:
    """What is known of a node that differs from the last picture."""

    began_ns: int
    """A time before the difference began, or before the last one did if the node had settled: that of a look."""
    changes: tuple[int, ...] = ()
    """When it changed, at most the last BUSY_CHANGES times."""
    open_since: int | None = None
    size_when_opened: int = 0
    closed_since: int | None = None
    """The look that first found the present content closed."""
    seen_ns: int = 0
    """The look that first found the present content."""

    def forget_times(self, now: int) -> None:
        """Restart all waits, because the clock was set back."""
        self.changes, self.seen_ns, self.began_ns = (), now, min(self.began_ns, now)
        self.open_since = None if self.open_since is None else now
        self.closed_since = None if self.closed_since is None else now

    def follow(self, node: Node, before: Look, look: Look, settle_ns: int) -> None:
        """Update the track of a node by a look, compared with the look before."""
        if not node.same(before.nodes.get(node.path)):
            if self.closed_since is not None and before.at_ns - self.closed_since >= settle_ns:
                self.began_ns = before.at_ns
            self.seen_ns = look.at_ns
            self.changes = (*self.changes, min(node.changed_ns, look.at_ns))[-BUSY_CHANGES:]
            self.closed_since = None
        if node.inode not in look.open:
            self.open_since, self.closed_since = None, self.closed_since or look.at_ns
        elif self.open_since is None:
            self.open_since, self.size_when_opened, self.closed_since = look.at_ns, node.size, None

    def often(self) -> bool:
        """Return whether the node has changed so often that it may be busy."""
        return len(self.changes) == BUSY_CHANGES

    def busy(self, now: int) -> bool:
        """Return whether the node changes all the time."""
        return self.often() and now - self.changes[0] <= BUSY_WITHIN
