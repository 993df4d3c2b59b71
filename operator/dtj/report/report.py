"""A report: runs, groups of runs, comparisons with a baseline, and notes for the reader."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dtj.report.comparison import EXAMPLES_TOLERANCE, compare, find_baseline
from dtj.report.cost import Price, cost_notes
from dtj.report.entries import Entry, check_fields, entry_of_run, groups_of
from dtj.report.facts import FIELDS, Fact, options_of_run
from dtj.report.run import Run
from dtj.report.summary import Summary, summarise
from dtj.report.utilisation import Usage, usage_of

WITHOUT_ROWS = (
    "dtj writes rows for a program that reports its steps by dtj_trainer.progress.report, logs to TensorBoard below "
    "its working directory, or prints lines such as step=100 loss=0.5: docs/curves.md."
)


@dataclass(frozen=True)
class Report:
    """The content of a report, independent of the form."""

    summaries: Sequence[Summary]
    runs: Sequence[Entry]
    groups: Sequence[Entry]
    """The groups; empty if each group would have one run and the user requested no grouping."""
    group_fields: Sequence[str]
    total_time: bool
    """Whether total times are compared, because each ended run has a total time; otherwise training times are."""
    price: Price | None
    notes: Sequence[str]
    utilisation: Sequence[Usage]
    """What each rank of each run used; empty where dtj-launch kept no files of it."""


def make_report(
    runs: Sequence[Run],
    *,
    group_by: Sequence[str] = (),
    baseline: str | None = None,
    price: Price | None = None,
) -> Report:
    """Make a report of runs. group_by: fields, and options of the programs such as `--lr` or `lr`; by default the
    fields that distinguish kinds of runs.

    Raises Unusable for a field that no run has, NotFound for a baseline that does not exist.
    """
    summaries = [summarise(run) for run in runs]
    fields = tuple(name.removeprefix("--") for name in group_by) or FIELDS
    if group_by:
        options = [options_of_run(run) for run in runs]
        check_fields(summaries, fields, {name for each in options for name in each})
        summaries = [_with_options(*each, fields) for each in zip(summaries, options, strict=True)]
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
    utilisation = [usage for run in runs for usage in usage_of(run.name, run.utilisation)]
    notes = [
        *_notes(summaries, groups or entries, total_time=total_time, price=price),
        *_on_utilisation(runs, utilisation),
    ]
    return Report(summaries, entries, groups, fields, total_time, price, notes, utilisation)


def _with_options(summary: Summary, options: Mapping[str, Fact], fields: Sequence[str]) -> Summary:
    """Return a summary whose facts have the options of the program that are fields and no facts otherwise."""
    named = {name: options[name] for name in fields if name in options and summary.facts.get(name) is None}
    return replace(summary, facts={**summary.facts, **named})


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
        yield from cost_notes(runs, price)


def _on_runs(runs: Sequence[Summary]) -> Iterator[str]:
    if empty := [run.name for run in runs if run.steps_per_second is None]:
        yield (f"{_list(empty)} has fewer than two rows of training: its rates are unknown. {WITHOUT_ROWS}")
    if unfinished := [run.name for run in runs if not run.ended]:
        yield (
            f"{_list(unfinished)} has not ended: it counts in the rates, not in accuracy and cost; "
            "its training time, if shown, is an estimate from the rate so far."
        )
    for run in runs:
        if run.left_out:
            lines = "1 line" if run.left_out == 1 else f"{run.left_out} lines"
            yield f"{run.name} has {lines} of metrics that can't be read: left out."
    for run in runs:
        ranks = {row.ranks for start in run.starts for row in start.rows} - {None}
        if len(ranks) > 1:
            numbers = _list(sorted(map(str, ranks)))
            yield f"{run.name} ran on {numbers} ranks in turn; the tables show the last number."
    for run in runs:
        if run.skipped:
            yield (
                f"{run.name} left examples that can't be read out of its steps, {run.skipped} times over all ranks "
                "and attempts."
            )
    if any(run.bandwidth for run in runs):
        yield (
            "Bandwidth: bytes of gradients that a rank gives to the exchange, divided by the time from its first "
            "gradient until all are averaged. The network may be faster."
        )
    if any(run.rank_steps for run in runs):
        yield "A step of a rank lasts from the request for its batch to the end of its update, in the last attempt."
    if len({run.facts.get("updates") for run in runs} - {None}) > 1:
        yield (
            "A synchronous step trains a batch on every worker, an asynchronous step a batch on one worker: "
            "compare examples/s, not step/s."
        )


def _on_groups(entries: Sequence[Entry]) -> Iterator[str]:
    for entry in entries:
        names = ("model", "batch", "workers", "ps", "data", "trainingExamples")
        mixed = [name for name in names if len({run.facts.get(name) for run in entry.runs}) > 1]
        amounts = [run.examples for run in entry.runs if run.examples is not None]
        if amounts and max(amounts) > min(amounts) * (1 + EXAMPLES_TOLERANCE):
            mixed.append("number of examples")
        if mixed:
            yield f"The group {entry.label} has runs that differ in {_list(mixed)}."


def _on_comparisons(entries: Sequence[Entry], time: str) -> Iterator[str]:
    if any(entry.comparison for entry in entries):
        yield (
            f"Speed-up is the ratio of examples/s, speed-up of time the ratio of the {time} times; efficiency is "
            "the speed-up divided by the ratio of the numbers of ranks."
        )
    for entry in entries:
        comparison = entry.comparison
        if comparison and comparison.differences:
            yield (
                f"{entry.label} and its baseline {comparison.baseline} are different trainings: "
                f"{_list(comparison.differences)}."
            )
        if comparison and (shared := comparison.shared_processors):
            processors = "1 processor" if shared == 1 else f"{shared} processors"
            yield (
                f"The ranks of {entry.label} shared {processors}, and its baseline {comparison.baseline} had as many "
                "with fewer ranks: no speed-up is to be expected."
            )


def _on_utilisation(runs: Sequence[Run], utilisation: Sequence[Usage]) -> Iterator[str]:
    if utilisation:
        yield (
            "Utilisation: CPUs and GPUs in use are means over the time, memory is the most at one time; GPUs are "
            "those of the rank's pod."
        )
    for run in runs:
        if run.utilisation_unread:
            yield (
                f"{run.name} has {run.utilisation_unread} more files of utilisation, of pods or of earlier attempts: "
                "left out, because a report reads at most 64 MiB of them."
            )


def _list(words: Iterable[str]) -> str:
    return ", ".join(words)
