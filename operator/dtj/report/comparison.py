"""Speed-up and efficiency against a baseline, and where the two are not alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from dtj.api.errors import NotFound
from dtj.report.entries import Comparison, Entry

_ALIKE = {"model": "model", "data": "data", "trainingExamples": "training examples", "batch": "batch size"}
"""The facts that must be equal for a meaningful speed-up, and their names in messages."""

AS_MUCH = 0.01
"""Compare times only if the numbers of examples differ by at most this fraction."""

Baseline = Callable[[Entry], Entry | None]
"""Returns the baseline of an entry, or None if the entry has no baseline."""


def find_baseline(given: str, runs: Sequence[Entry], groups: Sequence[Entry]) -> Baseline:
    """What `given` names: a run, a group by its label, or FIELD=VALUE. With that last one each entry is compared with
    the group that has this value and is alike otherwise. Raises NotFound.
    """
    for entry in [*runs, *groups]:
        if entry.label == given:
            return lambda _: entry
    name, separator, value = given.partition("=")
    chosen = [group for group in groups if separator and str(group.facts.get(name)) == value]
    if not chosen:
        raise NotFound(
            f"no run or group is called {given}, and no group has such a value",
            f"the baseline may be {', '.join(entry.label for entry in [*runs, *groups])}, or as in workers=1",
        )

    def counterpart(entry: Entry) -> Entry | None:
        for group in chosen:
            others = group.key.keys() - {name}
            if all(group.facts.get(other) == entry.facts.get(other) for other in others):
                return group
        return None

    return counterpart


def compare(entry: Entry, baseline: Entry, *, total_time: bool) -> Comparison:
    """Compare an entry with its baseline; with `total_time` by the jobs' times, else by the trainings'."""
    speedup = time_speedup = efficiency = None
    if entry.examples_per_second and baseline.examples_per_second and baseline.examples_per_second.mean:
        speedup = entry.examples_per_second.mean / baseline.examples_per_second.mean
    own, theirs = (each.total_seconds if total_time else each.training_seconds for each in (entry, baseline))
    done, before = entry.examples, baseline.examples
    as_much = not done or not before or math.isclose(done.mean, before.mean, rel_tol=AS_MUCH)
    if own and theirs and own.mean and as_much:
        time_speedup = theirs.mean / own.mean
    ranks, fewer = entry.facts.get("ranks"), baseline.facts.get("ranks")
    if speedup is not None and isinstance(ranks, int) and isinstance(fewer, int):
        efficiency = speedup * fewer / ranks
    differences = [
        f"{said} {_said(entry, name)} against {_said(baseline, name)}"
        for name, said in _ALIKE.items()
        if entry.facts.get(name) != baseline.facts.get(name)
    ]
    if done and before and not as_much:
        differences.append(f"trained on {done.mean:.0f} examples against {before.mean:.0f}")
    return Comparison(baseline.label, speedup, time_speedup, efficiency, differences)


def _said(entry: Entry, name: str) -> str:
    value = entry.facts.get(name)
    return "unknown" if value is None else str(value)
