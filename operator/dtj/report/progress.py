"""The steps and the training time of a run. A repeated step counts once, in its last repetition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from dtj.report.run import Row

SOURCE = "source"
"""The value of the rows that dtj wrote for a program that writes none."""


_OF_ANY_ROW = {"kind", "time", "attempt", "step", "unit", "examples", "epoch", SOURCE}


@dataclass(frozen=True)
class Interval:
    """The training between two rows. Times are in seconds since 1970."""

    begin: float
    end: float
    steps: float
    examples: float | None
    """The number of examples; None if the rows do not contain that number."""
    bandwidth: float | None = None
    """Bytes a second of the exchange of gradients, as a rank gave them; None if the row does not say it."""

    @property
    def seconds(self) -> float:
        """The duration in seconds."""
        return self.end - self.begin


@dataclass(frozen=True)
class Start:
    """The rows that the program wrote between one of its starts and the following end."""

    rows: Sequence[Row]
    kept_steps: float
    """A later start repeated the steps after this step."""

    @property
    def seconds(self) -> float:
        """Seconds from the first row to the last row."""
        # The clock of the machine may have been set back.
        return max(self.rows[-1].time - self.rows[0].time, 0.0)

    def losses(self) -> list[tuple[float, float]]:
        """Return the time and the training loss of each row whose step counts."""
        rows = [row for row in self.rows if row.kind == "train" and row.step <= self.kept_steps]
        return [(row.time, loss) for row in rows if (loss := row.number("loss")) is not None]

    def _moving(self) -> list[Row]:
        """Return the rows without those at whose time the step may have been further: it was read before."""
        rows: list[Row] = []
        # A bar without measures may have been of other work, such as a download before the training.
        measured = any(map(_is_measured, self.rows))
        for row in self.rows:
            if measured and SOURCE in row.values and not _is_measured(row):
                continue
            if not rows or SOURCE not in row.values or row.step > rows[-1].step:
                rows.append(row)
        return rows

    def intervals(self) -> Iterator[Interval]:
        """Yield the intervals between training rows. Frameworks compile before the first training row."""
        for before, after in pairwise(self._moving()):
            trained = after.kind == "train" and before.kind != "start" and after.step > before.step
            if not trained or after.time <= before.time or before.step >= self.kept_steps:
                continue
            share = min(1.0, (self.kept_steps - before.step) / (after.step - before.step))
            seconds = (after.time - before.time) * share
            if before.time + seconds <= before.time:
                # The interval is shorter than the precision of the times.
                continue
            examples = _examples(before, after)
            yield Interval(
                before.time,
                before.time + seconds,
                (after.step - before.step) * share,
                None if examples is None else examples * share,
                after.number("reducedBytesPerSecond"),
            )


def starts(rows: Sequence[Row]) -> list[Start]:
    """Group the rows by start of the program. A repeated step counts only for the last start that ran the step."""
    parts: list[list[Row]] = []
    for row in rows:
        if not parts or _begins_anew(parts[-1][-1], row):
            parts.append([])
        parts[-1].append(row)
    kept_starts: list[Start] = []
    kept_steps = float("inf")
    for part in reversed(parts):
        kept_starts.insert(0, Start(part, kept_steps))
        kept_steps = min(kept_steps, part[0].step)
    return kept_starts


def _is_measured(row: Row) -> bool:
    return row.kind == "train" and not row.values.keys() <= _OF_ANY_ROW


def _begins_anew(last: Row, row: Row) -> bool:
    other_attempt = row.values.get("attempt", 1) != last.values.get("attempt", 1)
    # Rows that dtj found out are of several lines or files, of which one may be late.
    went_back = row.step < last.step and SOURCE not in row.values
    return row.kind == "start" or other_attempt or went_back


def _examples(before: Row, after: Row) -> float | None:
    first, last = before.number("examples"), after.number("examples")
    if first is not None and last is not None:
        return last - first if last >= first else None
    rate = after.number("examplesPerSecond")
    return None if rate is None else rate * (after.time - before.time)
