"""Rows of a report: a run each, or a group of runs that are alike."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dtj.api.errors import Unusable
from dtj.report.facts import FIELDS, Fact
from dtj.report.summary import Spread, Summary

_PRICE = re.compile(r"(?P<currency>[^\d\s.,-]*)\s*(?P<amount>\d+(\.\d+)?)\s*(/\s*h)?")


@dataclass(frozen=True)
class Price:
    """What a worker's node costs an hour."""

    amount: float
    currency: str = ""


def read_price(text: str) -> Price:
    """The price in `0.90`, `0.90/h` or `$0.90/h`. Raises Unusable."""
    found = _PRICE.fullmatch(text.strip())
    if not found:
        raise Unusable(f"{text!r} is no price", "give what a worker's node costs an hour, as in 0.90/h")
    return Price(float(found["amount"]), found["currency"])


@dataclass(frozen=True)
class Comparison:
    """An entry against its baseline. None: one of the two does not have the figure."""

    baseline: str
    speedup: float | None
    """The ratio of the examples per second."""
    time_speedup: float | None
    """The ratio of the times to the end; None if the two trained on different numbers of examples."""
    efficiency: float | None
    """speedup divided by the ratio of the numbers of ranks."""
    differences: Sequence[str]
    """The facts that differ. With a difference, the speed-up does not compare the same training."""


@dataclass(frozen=True)
class Entry:
    """A run, or the runs of a group: every figure a mean, of a group with its deviation over the runs."""

    label: str
    facts: Mapping[str, Fact]
    runs: Sequence[Summary]
    examples: Spread | None
    """The number of examples in the training."""
    steps_per_second: Spread | None
    examples_per_second: Spread | None
    training_seconds: Spread | None
    estimated: bool
    total_seconds: Spread | None
    seconds: Spread | None
    """The total time of each run, else its training time."""
    accuracy: Spread | None
    cost: Spread | None
    restarts: int
    key: Mapping[str, Fact] = field(default_factory=dict)
    """The common facts of the runs of a group; empty for a single run."""
    comparison: Comparison | None = None
    """The comparison with the baseline; None without a baseline."""


def entry_of_run(run: Summary, price: Price | None) -> Entry:
    """The entry of one run; the deviations of its rates are over its intervals."""
    entry = _entry(run.name, run.facts, [run], price)
    return replace(entry, steps_per_second=run.steps_per_second, examples_per_second=run.examples_per_second)


def groups_of(runs: Sequence[Summary], fields: Sequence[str], price: Price | None) -> list[Entry]:
    """The runs that are alike in `fields`, as entries in the order of their values."""
    found: dict[tuple[Fact, ...], list[Summary]] = {}
    for run in runs:
        found.setdefault(tuple(run.facts.get(name) for name in fields), []).append(run)
    entries = []
    for values in sorted(found, key=lambda values: [_order(value) for value in values]):
        members = found[values]
        key = dict(zip(fields, values, strict=True))
        names = {name: None for member in members for name in member.facts}
        facts = {name: _common([member.facts.get(name) for member in members]) for name in names}
        entry = _entry(_label(key), facts, members, price)
        entries.append(replace(entry, key=key))
    return entries


def check_fields(runs: Sequence[Summary], fields: Sequence[str]) -> None:
    """Raise Unusable for a field of which no run says anything."""
    known = {name for run in runs for name, value in run.facts.items() if value is not None}
    for name in fields:
        if name not in known and name not in FIELDS:
            raise Unusable(f"no run has the field {name}", f"they have {', '.join(sorted(known))}")


def spread(values: Sequence[float]) -> Spread | None:
    """Mean and sample deviation; None of no value, no deviation of one."""
    if not values:
        return None
    return Spread(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)


def cost(run: Summary, price: Price) -> float | None:
    """Time × workers × price; None of a run that has not ended."""
    workers = run.facts.get("workers")
    if run.seconds is None or not isinstance(workers, int):
        return None
    return run.seconds / 3600 * workers * price.amount


def _entry(label: str, facts: Mapping[str, Fact], runs: Sequence[Summary], price: Price | None) -> Entry:
    def over_runs(figure: Callable[[Summary], float | None]) -> Spread | None:
        return spread([value for run in runs if (value := figure(run)) is not None])

    def mean(of: Spread | None) -> float | None:
        return None if of is None else of.mean

    return Entry(
        label=label,
        facts=facts,
        runs=runs,
        examples=over_runs(lambda run: run.examples),
        steps_per_second=over_runs(lambda run: mean(run.steps_per_second)),
        examples_per_second=over_runs(lambda run: mean(run.examples_per_second)),
        training_seconds=over_runs(lambda run: run.training_seconds),
        estimated=any(run.estimated for run in runs),
        total_seconds=over_runs(lambda run: run.total_seconds if run.ended else None),
        seconds=over_runs(lambda run: run.seconds),
        accuracy=over_runs(lambda run: run.accuracy if run.ended else None),
        cost=over_runs(lambda run: cost(run, price)) if price else None,
        restarts=sum(run.restarts for run in runs),
    )


def _label(key: Mapping[str, Fact]) -> str:
    parts = []
    for name, value in key.items():
        if value is not None:
            parts.append(f"{name} {value}" if isinstance(value, int) else str(value))
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
