"""Benchmark of `dtj serve`: `make bench-serve`.

All figures are of one run on this machine: the bare session, dtj, a minimal server, LitServe and TorchServe, in turn,
the median of the rounds. Clients, server and session share the processors; only one server runs at a time.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from tests.bench.figures import table
from tests.bench.machine import machine
from tests.bench.serve_load import Measured
from tests.bench.serve_models import make_models
from tests.bench.serve_rounds import KINDS, Bench, Figures, middle, rounds
from tests.bench.targets import Target, verdicts

SIDES = (28, 32)
RIVALS = {"litserve": 1.15, "torchserve": 2.0}


def _ratio(name: str, bound: float, *, at_least: bool = True) -> Target:
    return Target(name, name, bound, at_least=at_least, of_a_ratio=True)


def targets() -> list[Target]:
    """The bounds."""
    found = []
    for side in SIDES:
        of = f"resnet18-{side}"
        for kind in KINDS:
            many, one = (0.8 if kind == "json" else 0.85), (0.85 if kind == "binary" else 0.75)
            found.append(_ratio(f"dtj/session {of}, {kind}, 32 clients", many))
            found.append(_ratio(f"dtj/session {of}, {kind}, 1 client", one))
            found.append(_ratio(f"p99 x rate/32 {of}, {kind}", 1.5, at_least=False))
        found += [_ratio(f"dtj/{rival} {of}, picture", bound) for rival, bound in RIVALS.items()]
    found.append(_ratio("dtj/minimal cnn-28, binary", 0.6))
    found.append(_ratio("dtj/without batches cnn-28, binary", 1.7))
    return found


def ratios(found: Mapping[str, list[Measured]]) -> Figures:
    """The figures that have bounds, of those rows that ran."""
    rates, figures = middle(found), Figures()
    for side in SIDES:
        of = f"resnet18-{side}"
        single = rates[f"session {of}, batches of 1"]
        best = max(single, rates[f"session {of}, batches of 32"])
        for kind in KINDS:
            many = f"dtj {of}, {kind}, 32 clients"
            figures[f"dtj/session {of}, {kind}, 32 clients"] = rates[many] / best
            figures[f"dtj/session {of}, {kind}, 1 client"] = rates[f"dtj {of}, {kind}, 1 clients"] / single
            figures[f"p99 x rate/32 {of}, {kind}"] = median(each.p99 * each.rate / 32 for each in found[many])
        for rival in RIVALS:
            theirs = [
                rate for name, rate in rates.items() if name.startswith(f"{rival} (") and f" {of}," in name
            ]
            if theirs:
                figures[f"dtj/{rival} {of}, picture"] = rates[f"dtj {of}, picture, 32 clients"] / max(theirs)
    ours = rates["dtj cnn-28, binary, 32 clients"]
    for other in ("minimal", "without batches"):
        figures[f"dtj/{other} cnn-28, binary"] = ours / rates[f"{other} cnn-28, binary, 32 clients"]
    return figures


def shown(found: Mapping[str, list[Measured]]) -> str:
    """A table of the rates and of the times of answers."""
    times = {
        name: median(each.p99 for each in measured) * 1e3
        for name, measured in found.items()
        if not name.startswith("session")
    }
    return table({"answers/s": middle(found), "p99, ms": times})


def main() -> int:
    """Measure and print; 1 where a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=3.0, help="of a measurement (default: %(default)s)")
    given = parser.parse_args()
    before, threads = machine(), len(os.sched_getaffinity(0))
    with TemporaryDirectory(prefix="dtj-bench-") as name:
        make_models(Path(name))
        with Bench(Path(name), threads, given.seconds) as bench:
            found = rounds(bench, given.rounds)
            failures = bench.failures
    print(f"{before}\n\n{threads} threads of a session; the median of {given.rounds} rounds.\n")
    print(shown(found))
    print("\n".join(["", *failures, *(lines := verdicts(targets(), ratios(found)))]))
    return int(any(line.endswith("missed") for line in lines))


if __name__ == "__main__":
    sys.exit(main())
