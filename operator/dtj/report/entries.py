"""The rows of a report: one run, or a group of runs with equal facts."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dtj.api.errors import Unusable
from dtj.report.cost import Price, cost
from dtj.report.facts import FIELDS, Fact
from dtj.report.summary import Spread, Summary

_NUMBER = re.compile(r"[-+.\d][-+.\deE]*")


@dataclass(frozen=True)
class Comparison:
    """The comparison of an entry with its baseline. A figure is None if the entry or the baseline lacks it."""

    baseline: str
    speedup: float | None
    """The examples per second of the entry, divided by those of the baseline."""
    time_speedup: float | None
    """The time of the baseline, divided by that of the entry; None if their numbers of examples differ."""
    efficiency: float | None
    """speedup divided by the ratio of the numbers of ranks."""
    differences: Sequence[str]
    """The facts that differ. With a difference, the speed-up does not compare the same training."""
    shared_processors: int | None = None
    """The number of processors, if the entry has more ranks than the baseline on no more processors."""


@dataclass(frozen=True)
class Entry:
    """A run or a group of runs. Each figure of a group is the mean over its runs, with the deviation."""

    label: str
    facts: Mapping[str, Fact]
    runs: Sequence[Summary]
    examples: Spread | None
    """The number of examples in the training."""
    steps_per_second: Spread | None
    examples_per_second: Spread | None
    bandwidth: Spread | None
    """Bytes of gradients per second that a rank exchanged."""
    training_seconds: Spread | None
    estimated: bool
    total_seconds: Spread | None
    accuracy: Spread | None
    cost: Spread | None
    restarts: int
    in_place: int
    """How many of the restarts were in place."""
    skipped: int
    """The number of times that an example was left out of a training step because the example can't be read."""
    key: Mapping[str, Fact] = field(default_factory=dict)
    """The common facts of the runs of a group; empty for a single run."""
    comparison: Comparison | None = None
    """The comparison with the baseline; None without a baseline."""


def entry_of_run(run: Summary, price: Price | None) -> Entry:
    """Return the entry of one run. The deviations of its rates are over the intervals of the run."""
    return replace(
        _entry(run.name, run.facts, [run], price),
        steps_per_second=run.steps_per_second,
        examples_per_second=run.examples_per_second,
        bandwidth=run.bandwidth,
    )


def groups_of(runs: Sequence[Summary], fields: Sequence[str], price: Price | None) -> list[Entry]:
    """Return a group for each combination of values of `fields`, sorted by the values."""
    runs_by_values: dict[tuple[Fact, ...], list[Summary]] = {}
    for run in runs:
        runs_by_values.setdefault(tuple(run.facts.get(name) for name in fields), []).append(run)
    entries = []
    for values in sorted(runs_by_values, key=lambda values: [_order(value) for value in values]):
        members = runs_by_values[values]
        key = dict(zip(fields, values, strict=True))
        names = {name: None for member in members for name in member.facts}
        facts = {name: _common([member.facts.get(name) for member in members]) for name in names}
        entry = _entry(_label(key), facts, members, price)
        entries.append(replace(entry, key=key))
    return entries


def check_fields(runs: Sequence[Summary], fields: Sequence[str], options: Collection[str]) -> None:
    """Raise Unusable for a field that is neither a fact of a run nor an option of a program."""
    known = {name for run in runs for name, value in run.facts.items() if value is not None}
    for name in fields:
        if name not in known and name not in FIELDS and name not in options:
            raise Unusable(
                f"no run has the field {name}, and no program has the option --{name}",
                f"the runs have {', '.join([*sorted(known), *(f'--{option}' for option in sorted(options))])}",
            )


def spread(values: Sequence[float]) -> Spread | None:
    """Return the mean and the sample deviation: None without values, no deviation for a single value."""
    if not values:
        return None
    return Spread(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)


def _cost(runs: Sequence[Summary], price: Price) -> Spread | None:
    """Return the cost of the runs that have ended; None if one of these costs is unknown."""
    costs = [cost(run, price) for run in runs if run.seconds is not None]
    return None if None in costs else spread([each for each in costs if each is not None])


def _entry(label: str, facts: Mapping[str, Fact], runs: Sequence[Summary], price: Price | None) -> Entry:
    def over_runs(figure: Callable[[Summary], float | None]) -> Spread | None:
        return spread([value for run in runs if (value := figure(run)) is not None])

    def mean(value: Spread | None) -> float | None:
        return None if value is None else value.mean

    return Entry(
        label=label,
        facts=facts,
        runs=runs,
        examples=over_runs(lambda run: run.examples),
        steps_per_second=over_runs(lambda run: mean(run.steps_per_second)),
        examples_per_second=over_runs(lambda run: mean(run.examples_per_second)),
        bandwidth=over_runs(lambda run: mean(run.bandwidth)),
        training_seconds=over_runs(lambda run: run.training_seconds),
        estimated=any(run.estimated for run in runs),
        total_seconds=over_runs(lambda run: run.total_seconds if run.ended else None),
        accuracy=over_runs(lambda run: run.accuracy if run.ended else None),
        cost=_cost(runs, price) if price else None,
        restarts=sum(run.restarts for run in runs),
        in_place=sum(run.in_place for run in runs),
        skipped=sum(run.skipped for run in runs),
    )


def _label(key: Mapping[str, Fact]) -> str:
    parts = []
    for name, value in key.items():
        if value is not None:
            text = str(value)
            parts.append(f"{name} {text}" if _NUMBER.fullmatch(text) else text or name)
    return ", ".join(parts) or "all"


def _common(values: Sequence[Fact]) -> Fact:
    """Return the common value, or a text with all distinct values."""
    distinct = sorted(set(values), key=_order)
    if len(distinct) == 1:
        return distinct[0]
    return ", ".join("–" if value is None else str(value) for value in distinct)


def _order(value: Fact) -> tuple[int, int, str]:
    if value is None:
        return 0, 0, ""
    return (1, value, "") if isinstance(value, int) else (2, 0, value)
