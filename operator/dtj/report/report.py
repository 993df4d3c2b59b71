"""A whole report: runs, groups of them, how they compare, and what its reader has to know."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from dtj.report.comparison import AS_MUCH, compare, find_baseline
from dtj.report.entries import Entry, Price, check_fields, entry_of_run, groups_of
from dtj.report.facts import FIELDS
from dtj.report.run import Run
from dtj.report.summary import Summary, summarise


@dataclass(frozen=True)
class Report:
    """The content of a report, independent of the form."""

    summaries: Sequence[Summary]
    runs: Sequence[Entry]
    groups: Sequence[Entry]
    """The groups; empty if each group would have one run and the user requested no grouping."""
    group_fields: Sequence[str]
    total_time: bool
    """The jobs' times are known, and are what is compared; otherwise those of the trainings."""
    price: Price | None
    notes: Sequence[str]


def make_report(
    runs: Sequence[Run],
    *,
    group_by: Sequence[str] = (),
    baseline: str | None = None,
    price: Price | None = None,
) -> Report:
    """Make a report of runs. group_by: fields; by default the fields that distinguish kinds of runs.

    Raises Unusable for a field that no run has, NotFound for a baseline that does not exist.
    """
    summaries = [summarise(run) for run in runs]
    fields = tuple(group_by) or FIELDS
    check_fields(summaries, fields)
    entries = [entry_of_run(summary, price) for summary in summaries]
    groups = groups_of(summaries, fields, price)
    totals = [summary.total_seconds for summary in summaries if summary.ended]
    total_time = bool(totals) and None not in totals
    if baseline is not None:
        find = find_baseline(baseline, entries, groups)
        entries, groups = (
            [_compared(entry, find(entry), total_time=total_time) for entry in each]
            for each in (entries, groups)
        )
    if not group_by and len(groups) == len(entries):
        groups = []
    notes = [*_notes(summaries, groups or entries, total_time=total_time, price=price)]
    return Report(summaries, entries, groups, fields, total_time, price, notes)


def _compared(entry: Entry, baseline: Entry | None, *, total_time: bool) -> Entry:
    comparison = None if baseline is None else compare(entry, baseline, total_time=total_time)
    return replace(entry, comparison=comparison)


def _notes(
    runs: Sequence[Summary],
    entries: Sequence[Entry],
    *,
    total_time: bool,
    price: Price | None,
) -> Iterator[str]:
    yield "± of a run is the deviation over its intervals, of a group that over its runs."
    yield from _on_runs(runs)
    yield from _on_groups(entries)
    yield from _on_comparisons(entries, "total" if total_time else "training")
    if price:
        yield (
            f"Cost: time × workers × {price.currency}{price.amount:g} an hour, of one node a worker, no other node; "
            "the time is the total time, where it is not known that of the training."
        )


def _on_runs(runs: Sequence[Summary]) -> Iterator[str]:
    if empty := [run.name for run in runs if run.steps_per_second is None]:
        yield f"{_list(empty)} has no two rows of training: no rate is known."
    if unfinished := [run.name for run in runs if not run.ended]:
        yield (
            f"{_list(unfinished)} has not come to an end: counted in the rates, not in accuracy and cost; "
            "its training time, where given, is an estimate at the rate so far."
        )
    for run in runs:
        if run.left_out:
            lines = "1 line" if run.left_out == 1 else f"{run.left_out} lines"
            yield f"{run.name} has {lines} of metrics that can't be read: left out."
    for run in runs:
        ranks = {row.ranks for start in run.starts for row in start.rows} - {None}
        if len(ranks) > 1:
            yield f"{run.name} ran on {_list(sorted(map(str, ranks)))} ranks in turn; the tables have the last."
    if len({run.facts.get("updates") for run in runs} - {None}) > 1:
        yield (
            "A step of synchronous updates is a batch of every worker, one of asynchronous updates the batch of a "
            "single worker: compare examples/s."
        )


def _on_groups(entries: Sequence[Entry]) -> Iterator[str]:
    for entry in entries:
        names = ("model", "batch", "workers", "ps", "data", "trainingExamples")
        mixed = [name for name in names if len({run.facts.get(name) for run in entry.runs}) > 1]
        amounts = [run.examples for run in entry.runs if run.examples is not None]
        if amounts and max(amounts) > min(amounts) * (1 + AS_MUCH):
            mixed.append("numbers of examples trained on")
        if mixed:
            yield f"The group {entry.label} has runs of different {_list(mixed)}."


def _on_comparisons(entries: Sequence[Entry], time: str) -> Iterator[str]:
    if any(entry.comparison for entry in entries):
        yield (
            f"Speed-up is that of examples/s, speed-up of time that of the {time} time; efficiency is the "
            "speed-up divided by how many times as many ranks there are."
        )
    for entry in entries:
        comparison = entry.comparison
        if comparison and comparison.differences:
            yield (
                f"{entry.label} is not the training of {comparison.baseline} made faster: "
                f"{_list(comparison.differences)}."
            )


def _list(words: Iterable[str]) -> str:
    return ", ".join(words)
