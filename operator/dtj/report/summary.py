"""The summary of one run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from dtj.api.status import Phase
from dtj.report.facts import Fact, Pods, arguments_of, facts_of, job_spec, pods_by_role
from dtj.report.numbers import MAX_NUMBER
from dtj.report.progress import Interval, Start, starts
from dtj.report.run import Row, Run

_MOST_RANKS = 64
"""Rows of ranks that a run may have in a report: as many as the trainer writes."""


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
    pods: Mapping[str, Pods] | None
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
    """Bytes a second that a rank gave to the exchange of gradients, over the run's intervals."""
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
    starts: Sequence[Start]
    left_out: int
    """The number of unreadable lines in the metrics files."""
    skipped: int = 0
    """The number of times that an example was left out of a training step because it can't be read."""
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
        starts=parts,
        left_out=run.left_out,
        skipped=_skipped(run.rows),
        gpus=_has_gpus(run),
        rank_steps=rank_steps(run.rows),
    )


def rank_steps(rows: Sequence[Row]) -> list[RankSteps]:
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


def _accuracy(rows: Sequence[Row]) -> float | None:
    accuracies = [row.number("accuracy") for row in rows if row.kind == "test"]
    return accuracies[-1] if accuracies else None


def _skipped(rows: Sequence[Row]) -> int:
    """Return the sum over the training rows of all attempts, each of which counts since the row before it."""
    found = (_amount(row.values.get("skippedExamples")) for row in rows if row.kind == "train")
    return int(sum(each or 0.0 for each in found))


def _has_gpus(run: Run) -> bool:
    roles = ((run.job or {}).get("spec") or {}).get("replicaSpecs") or {}
    with_pods = [role for role in roles.values() if role and role.get("replicas", 1)]
    return any(role.get("gpus") for role in with_pods) or any(line.gpus for line in run.utilisation)


def _started(run: Run) -> float | None:
    times = [row.time for row in run.rows[:1]]
    if run.status and run.status.start_time:
        # The resumption of a suspended job overwrites its start time.
        times.append(datetime.fromisoformat(run.status.start_time).timestamp())
    return min(times, default=None)


def _total_seconds(run: Run) -> float | None:
    status, started = run.status, _started(run)
    if status is None or status.start_time is None or status.completion_time is None or started is None:
        return None
    return datetime.fromisoformat(status.completion_time).timestamp() - started
