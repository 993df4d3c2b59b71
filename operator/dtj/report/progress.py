"""What of a run counts: each step once, as its last attempt made it, and no time in which nothing was trained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from dtj.report.run import Row


@dataclass(frozen=True)
class Interval:
    """Between two rows while it trained. Times are seconds since 1970."""

    begin: float
    end: float
    steps: float
    examples: float | None
    """None where the program does not say."""

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.begin


@dataclass(frozen=True)
class Start:
    """The rows that the program wrote from one start of it to its end."""

    rows: Sequence[Row]
    kept_steps: float
    """Steps after this one were made again by a later start."""

    @property
    def seconds(self) -> float:
        """From its first row to its last."""
        # A machine's clock may be set back.
        return max(self.rows[-1].time - self.rows[0].time, 0.0)

    def losses(self) -> list[tuple[float, float]]:
        """Time and training loss of each row whose step counts."""
        rows = [row for row in self.rows if row.kind == "train" and row.step <= self.kept_steps]
        return [(row.time, loss) for row in rows if (loss := row.number("loss")) is not None]

    def intervals(self) -> Iterator[Interval]:
        """Between rows of training; from the first of them on, since a framework compiles before it."""
        for before, after in pairwise(self.rows):
            trained = after.kind == "train" and before.kind != "start" and after.step > before.step
            if not trained or after.time <= before.time or before.step >= self.kept_steps:
                continue
            share = min(1.0, (self.kept_steps - before.step) / (after.step - before.step))
            seconds = (after.time - before.time) * share
            if before.time + seconds <= before.time:
                # Shorter than the times are exact.
                continue
            examples = _examples(before, after)
            yield Interval(
                before.time,
                before.time + seconds,
                (after.step - before.step) * share,
                None if examples is None else examples * share,
            )


def starts(rows: Sequence[Row]) -> list[Start]:
    """The rows by start of the program. What a later one made again does not count for those before it."""
    parts: list[list[Row]] = []
    for row in rows:
        if not parts or _begins_anew(parts[-1][-1], row):
            parts.append([])
        parts[-1].append(row)
    found: list[Start] = []
    kept = float("inf")
    for part in reversed(parts):
        found.insert(0, Start(part, kept))
        kept = min(kept, part[0].step)
    return found


def _begins_anew(last: Row, row: Row) -> bool:
    other_attempt = row.values.get("attempt", 1) != last.values.get("attempt", 1)
    return row.kind == "start" or other_attempt or row.step < last.step


def _examples(before: Row, after: Row) -> float | None:
    first, last = before.number("examples"), after.number("examples")
    if first is not None and last is not None:
        return last - first if last >= first else None
    rate = after.number("examplesPerSecond")
    return None if rate is None else rate * (after.time - before.time)
