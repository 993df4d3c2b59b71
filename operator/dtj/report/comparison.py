"""Speed-up and efficiency of a run or group against a baseline, and the facts in which they differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from dtj.api.errors import NotFound
from dtj.report.entries import Comparison, Entry

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
    """Return the processors of more ranks, if the baseline's fewer ranks had as many; None with GPUs."""
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
