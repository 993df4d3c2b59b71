"""The summary of one run: its steps and training time, in which a repeated step counts once, and its rates and ends.

`entries` makes the rows of a report of summaries. `run` reads the rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from dtj.api.status import Phase
from dtj.report.facts import Fact, RolePods, arguments_of, facts_of, job_spec, pods_by_role
from dtj.report.numbers import MAX_NUMBER
from dtj.report.run import MetricsRow, Run

SOURCE = "source"
"""The field that marks rows that dtj wrote, from the output or the TensorBoard files of a program without rows."""


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
    """Bytes of gradients that a rank exchanges per second; None if the row does not contain the number."""

    @property
    def seconds(self) -> float:
        """The duration in seconds."""
        return self.end - self.begin


@dataclass(frozen=True)
class ProgramStart:
    """The rows that the program wrote between one of its starts and the following end."""

    rows: Sequence[MetricsRow]
    kept_steps: float
    """The last step that counts in this attempt. A later attempt repeated the steps after it."""

    @property
    def seconds(self) -> float:
        """Seconds from the first row to the last row."""
        # A negative time counts as 0: the clock of the machine may have been set back.
        return max(self.rows[-1].time - self.rows[0].time, 0.0)

    def losses(self) -> list[tuple[float, float]]:
        """Return the time and the training loss of each row whose step counts."""
        rows = [row for row in self.rows if row.kind == "train" and row.step <= self.kept_steps]
        return [(row.time, loss) for row in rows if (loss := row.number("loss")) is not None]

    def _moving(self) -> list[MetricsRow]:
        """Return the rows without those of an old step: dtj may read a step some time after the program wrote it."""
        rows: list[MetricsRow] = []
        # Ignore rows without measurements if other rows have some: a download's progress bar may have written them.
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


def starts(rows: Sequence[MetricsRow]) -> list[ProgramStart]:
    """Group the rows by start of the program. A repeated step counts only for the last start that ran the step."""
    parts: list[list[MetricsRow]] = []
    for row in rows:
        if not parts or _begins_anew(parts[-1][-1], row):
            parts.append([])
        parts[-1].append(row)
    kept_starts: list[ProgramStart] = []
    kept_steps = float("inf")
    for part in reversed(parts):
        kept_starts.insert(0, ProgramStart(part, kept_steps))
        kept_steps = min(kept_steps, part[0].step)
    return kept_starts


def _is_measured(row: MetricsRow) -> bool:
    return row.kind == "train" and not row.values.keys() <= _OF_ANY_ROW


def _begins_anew(last: MetricsRow, row: MetricsRow) -> bool:
    other_attempt = row.values.get("attempt", 1) != last.values.get("attempt", 1)
    # A smaller step in rows that dtj wrote is no restart: dtj may read the lines and files of a program late.
    went_back = row.step < last.step and SOURCE not in row.values
    return row.kind == "start" or other_attempt or went_back


def _examples(before: MetricsRow, after: MetricsRow) -> float | None:
    first, last = before.number("examples"), after.number("examples")
    if first is not None and last is not None:
        return last - first if last >= first else None
    rate = after.number("examplesPerSecond")
    return None if rate is None else rate * (after.time - before.time)


_MOST_RANKS = 64
"""The largest number of ranks of a run with rows in a report. The trainer writes no more."""


@dataclass(frozen=True)
class Spread:
    """A mean, and the sample's standard deviation where there are several values."""

    mean: float
    deviation: float | None = None


@dataclass(frozen=True)
class RankSteps:
    """The steps of one rank in the last attempt."""

    rank: int
    steps: int
    seconds: Spread
    """The seconds of a step."""


@dataclass(frozen=True)
class Summary:
    """The figures of one run. Rates cover only the time between training rows. Times are in seconds."""

    name: str
    facts: dict[str, Fact]
    pods: Mapping[str, RolePods] | None
    """The pods of each role that has pods; None if they are unknown."""
    started: float | None
    """The start of the run in seconds since 1970; None if the start is unknown."""
    arguments: str | None
    """The arguments of the program; None if the job is unknown or has no arguments."""
    ended: bool
    """Whether the training completed."""
    steps: int
    examples: float | None
    """The number of examples in the training so far. Each step counts once."""
    steps_per_second: Spread | None
    """Global steps. The deviation is over the run's intervals, weighted by their length."""
    examples_per_second: Spread | None
    """Examples of all ranks together."""
    bandwidth: Spread | None
    """Bytes of gradients per second that a rank exchanged, over the run's intervals."""
    training_seconds: float | None
    """The time from the first row to the last row of rank 0 or the chief, without the time between attempts."""
    estimated: bool
    """Whether training_seconds is an estimate for the whole training, from the rate so far."""
    total_seconds: float | None
    """The time from the start of the job to its completion; None if the status is unknown or has no completion."""
    accuracy: float | None
    """The last accuracy on test data, from the evaluator if the job has an evaluator."""
    attempts: int
    restarts: int
    starts: Sequence[ProgramStart]
    left_out: int
    """The number of unreadable lines in the metrics files."""
    in_place: int = 0
    """How many of the restarts were in place."""
    skipped: int = 0
    """The number of times that an example was left out of a training step because the example can't be read."""
    gpus: bool = False
    """Whether the job asks for GPUs, or its pods had some."""
    rank_steps: Sequence[RankSteps] = ()
    """The steps of the slowest ranks, by rank; empty before the end of the run."""

    @property
    def seconds(self) -> float | None:
        """The total time, or the training time if the total time is unknown; None if the run has not ended."""
        return (self.total_seconds or self.training_seconds) if self.ended else None

    def intervals(self) -> list[Interval]:
        """Return the intervals of all starts, in the order of time."""
        return [interval for start in self.starts for interval in start.intervals()]


def summarise(run: Run) -> Summary:
    """Return the summary of a run."""
    parts = starts(run.rows)
    intervals = [interval for part in parts for interval in part.intervals()]
    status = run.status
    steps_per_second = _over_time([(each.steps, each.seconds) for each in intervals])
    ended = any(row.kind == "end" for row in run.rows) or (
        status is not None and status.phase == Phase.SUCCEEDED
    )
    spent = sum(part.seconds for part in parts) if parts else None
    step = parts[-1].rows[-1].step if parts else 0
    total_steps = parts[-1].rows[0].number("totalSteps") if parts else None
    estimated = False
    if not ended and spent is not None and total_steps and steps_per_second:
        spent += max(total_steps - step, 0) / steps_per_second.mean
        estimated = True
    restarts = len(parts) - 1 if parts else 0
    spec = job_spec(run)
    facts = facts_of(run, spec)
    return Summary(
        name=run.name,
        facts=facts,
        pods=pods_by_role(run, spec, facts),
        started=_started(run),
        arguments=arguments_of(run),
        ended=ended,
        steps=step,
        examples=next((n for row in reversed(run.rows) if (n := row.number("examples")) is not None), None),
        steps_per_second=steps_per_second,
        examples_per_second=_over_time(
            [(each.examples, each.seconds) for each in intervals if each.examples is not None]
        ),
        bandwidth=_over_time(
            [
                (each.bandwidth * each.seconds, each.seconds)
                for each in intervals
                if each.bandwidth is not None
            ]
        ),
        training_seconds=spent if ended or estimated else None,
        estimated=estimated,
        total_seconds=_total_seconds(run),
        accuracy=_accuracy([*run.rows, *run.evaluator_rows]),
        attempts=max(
            [*(int(row.number("attempt") or 1) for row in run.rows), status.attempt if status else 1]
        ),
        restarts=status.restarts.of_training if status else restarts,
        in_place=(status and status.restarts.in_place) or 0,
        starts=parts,
        left_out=run.left_out,
        skipped=_skipped(run.rows),
        gpus=_has_gpus(run),
        rank_steps=rank_steps(run.rows),
    )


def rank_steps(rows: Sequence[MetricsRow]) -> list[RankSteps]:
    """Return the `stepTimes` of the last `end` row. Leave out entries that are not as the trainer writes them."""
    ends = [row for row in rows if row.kind == "end"]
    entries = ends[-1].values.get("stepTimes") if ends else None
    if not isinstance(entries, list):
        return []
    figures = []
    for entry in entries[:_MOST_RANKS]:
        values = [
            _amount(entry.get(name) if isinstance(entry, dict) else None)
            for name in ("rank", "steps", "mean", "deviation")
        ]
        if None not in values:
            rank, steps, mean, deviation = (value or 0.0 for value in values)
            figures.append(RankSteps(int(rank), int(steps), Spread(mean, deviation)))
    return figures


def _amount(value: object) -> float | None:
    """Return a number from 0 to MAX_NUMBER; None for any other value."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if 0 <= value <= MAX_NUMBER else None


def _over_time(intervals: Sequence[tuple[float, float]]) -> Spread | None:
    """Return the rate over all intervals, and the deviation of the rates, weighted by seconds.

    intervals: (amount, seconds) of each.
    """
    seconds = sum(each for _, each in intervals)
    if not seconds:
        return None
    mean = sum(amount for amount, _ in intervals) / seconds
    if len(intervals) < 2:
        return Spread(mean)
    squares = sum(each * (amount / each - mean) ** 2 for amount, each in intervals)
    return Spread(mean, math.sqrt(squares / seconds * len(intervals) / (len(intervals) - 1)))


def _accuracy(rows: Sequence[MetricsRow]) -> float | None:
    accuracies = [row.number("accuracy") for row in rows if row.kind == "test"]
    return accuracies[-1] if accuracies else None


def _skipped(rows: Sequence[MetricsRow]) -> int:
    """Return the sum of skipped examples over the training rows. A row counts the examples since the previous row."""
    found = (_amount(row.values.get("skippedExamples")) for row in rows if row.kind == "train")
    return int(sum(each or 0.0 for each in found))


def _has_gpus(run: Run) -> bool:
    roles = ((run.job or {}).get("spec") or {}).get("replicaSpecs") or {}
    with_pods = [role for role in roles.values() if role and role.get("replicas", 1)]
    return any(role.get("gpus") for role in with_pods) or any(line.gpus for line in run.utilisation)


def _started(run: Run) -> float | None:
    times = [row.time for row in run.rows[:1]]
    if run.status and run.status.start_time:
        # The resumption of a suspended job overwrites its start time, so take the earliest known time.
        times.append(datetime.fromisoformat(run.status.start_time).timestamp())
    return min(times, default=None)


def _total_seconds(run: Run) -> float | None:
    status, started = run.status, _started(run)
    if status is None or status.start_time is None or status.completion_time is None or started is None:
        return None
    return datetime.fromisoformat(status.completion_time).timestamp() - started
