"""A report: runs, groups of runs, their comparison with a baseline, and notes for the reader.

`dtj report` and the page of `dtj ui` make reports. `tables`, `pictures`, `documents` and `data` show a report.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dtj.api.errors import NotFound
from dtj.report.cost import Price, cost_notes
from dtj.report.entries import Comparison, Entry, check_fields, entry_of_run, groups_of
from dtj.report.facts import FIELDS, Fact, options_of_run
from dtj.report.run import Run
from dtj.report.summary import Summary, summarise
from dtj.report.utilisation import RankUtilisation, usage_of

_COMPARED_FACTS = {
    "model": "model",
    "data": "data",
    "trainingExamples": "training examples",
    "batch": "batch size",
}
"""The facts that must be equal for a meaningful speed-up, and their names in messages."""

EXAMPLES_TOLERANCE = 0.01
"""Times are compared only if the numbers of examples differ by at most this fraction."""

Baseline = Callable[[Entry], Entry | None]
"""A function that returns the baseline of an entry, or None if the entry has no baseline."""


def find_baseline(text: str, runs: Sequence[Entry], groups: Sequence[Entry]) -> Baseline:
    """Return the function that gives the baseline of an entry.

    text: the name of a run, the label of a group, or FIELD=VALUE. For FIELD=VALUE, the baseline of an entry is the
    group that has this value and otherwise the facts of the entry. Raises NotFound if no run or group matches.
    """
    for entry in [*runs, *groups]:
        if entry.label == text:
            return lambda _: entry
    name, separator, value = text.partition("=")
    matching = [group for group in groups if separator and str(group.facts.get(name)) == value]
    if not matching:
        raise NotFound(
            f"no run or group is called {text}, and no group matches it as FIELD=VALUE",
            f"give {', '.join(entry.label for entry in [*runs, *groups])}, or FIELD=VALUE such as workers=1",
        )

    def counterpart(entry: Entry) -> Entry | None:
        for group in matching:
            others = group.key.keys() - {name}
            if all(group.facts.get(other) == entry.facts.get(other) for other in others):
                return group
        return None

    return counterpart


def compare(entry: Entry, baseline: Entry, *, total_time: bool) -> Comparison:
    """Compare an entry with its baseline. total_time: whether to compare total times instead of training times."""
    speedup = time_speedup = efficiency = None
    if entry.examples_per_second and baseline.examples_per_second and baseline.examples_per_second.mean:
        speedup = entry.examples_per_second.mean / baseline.examples_per_second.mean
    own_time, baseline_time = (
        each.total_seconds if total_time else each.training_seconds for each in (entry, baseline)
    )
    examples, baseline_examples = entry.examples, baseline.examples
    same_examples = (
        not examples
        or not baseline_examples
        or math.isclose(examples.mean, baseline_examples.mean, rel_tol=EXAMPLES_TOLERANCE)
    )
    if own_time and baseline_time and own_time.mean and same_examples:
        time_speedup = baseline_time.mean / own_time.mean
    ranks, baseline_ranks = entry.facts.get("ranks"), baseline.facts.get("ranks")
    if speedup is not None and isinstance(ranks, int) and isinstance(baseline_ranks, int):
        efficiency = speedup * baseline_ranks / ranks
    differences = [
        f"{label} {_fact_text(entry, name)} against {_fact_text(baseline, name)}"
        for name, label in _COMPARED_FACTS.items()
        if entry.facts.get(name) != baseline.facts.get(name)
    ]
    if examples and baseline_examples and not same_examples:
        differences.append(f"trained on {examples.mean:,.0f} examples against {baseline_examples.mean:,.0f}")
    shared = _shared_processors(entry, baseline)
    return Comparison(baseline.label, speedup, time_speedup, efficiency, differences, shared)


def _shared_processors(entry: Entry, baseline: Entry) -> int | None:
    """Return the number of processors, if the entry has more ranks than the baseline on no more processors."""
    ranks, processors = (
        [each.facts.get(name) for each in (entry, baseline)] for name in ("ranks", "processors")
    )
    if any(run.gpus for each in (entry, baseline) for run in each.runs):
        return None
    match ranks, processors:
        case [int(more), int(fewer)], [int(found), int(of_baseline)] if more > fewer and found <= of_baseline:
            return found
    return None


def _fact_text(entry: Entry, name: str) -> str:
    value = entry.facts.get(name)
    return "unknown" if value is None else str(value)


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
    utilisation: Sequence[RankUtilisation]
    """The utilisation of each rank of each run; empty if dtj-launch has written no files about it."""


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
    """Return a summary with more facts: the values of the program's options that are fields of the report."""
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
    yield "± is the standard deviation: for a run over its intervals, for a group over its runs."
    yield from _on_runs(runs)
    yield from _on_groups(entries)
    yield from _on_comparisons(entries, "total" if total_time else "training")
    if price:
        yield from cost_notes(runs, price)


def _on_runs(runs: Sequence[Summary]) -> Iterator[str]:
    if empty := [run.name for run in runs if run.steps_per_second is None]:
        yield (
            f"The rates of {_list(empty)} are unknown: there are fewer than two rows of training. {WITHOUT_ROWS}"
        )
    if unfinished := [run.name for run in runs if not run.ended]:
        yield (
            f"{_list(unfinished)} has not ended. Its rates are shown, but no accuracy and no cost. "
            "Its training time, if shown, is an estimate from the rate so far."
        )
    for run in runs:
        if run.left_out:
            lines = "1 line" if run.left_out == 1 else f"{run.left_out} lines"
            yield f"{run.name} has {lines} of metrics that can't be read and are left out."
    for run in runs:
        ranks = {row.ranks for start in run.starts for row in start.rows} - {None}
        if len(ranks) > 1:
            numbers = _list(sorted(map(str, ranks)))
            yield f"{run.name} ran on {numbers} ranks, one number after the other; the tables show the last number."
    for run in runs:
        if run.skipped:
            yield (
                f"{run.name} left out examples that can't be read, {run.skipped} times over all ranks and attempts."
            )
    if any(run.bandwidth for run in runs):
        yield (
            "Bandwidth: bytes of gradients that a rank exchanges, divided by the time from its first gradient until "
            "all are averaged. The network may be faster."
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
                f"The ranks of {entry.label} shared {processors}, and the fewer ranks of its baseline "
                f"{comparison.baseline} had as many: no speed-up is to be expected."
            )


def _on_utilisation(runs: Sequence[Run], utilisation: Sequence[RankUtilisation]) -> Iterator[str]:
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
