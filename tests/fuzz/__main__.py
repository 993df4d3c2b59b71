"""`make fuzz`: random jobs through webhook, job file, plan and reconciler. Exit code 1: a job caused a fault."""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import time
from pathlib import Path

from tests.fuzz.specs import MOST_REPLICAS, made
from tests.fuzz.trial import PASSES, Seen, tried

MOST_SECONDS = 1.0
"""Processor time of a step: a review, a file, a plan, a pass."""
MOST_MEGABYTES = 400
_STEPS = ("review", "job file", "check", "plan", "summary", "pass")
_KEPT = Path("build/fuzz")


def megabytes() -> float:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def look(seed: int, number: int) -> Seen:
    """Try the job of a number, and say what is wrong with it."""
    job = made(seed, number)
    before = megabytes()
    seen = tried(
        job, made(seed, number + 1) if number % 4 == 0 else None, random.Random(f"weather {seed}/{number}")
    )
    for step in _STEPS:
        if (took := seen.seconds.get(step, 0.0)) > MOST_SECONDS:
            seen.wrong.append(f"{step}: {took:.1f} s of processor time")
    if before <= MOST_MEGABYTES < megabytes():
        seen.wrong.append(f"memory: {megabytes():.0f} MB, {before:.0f} before this job")
    if seen.wrong:
        _KEPT.mkdir(parents=True, exist_ok=True)
        text = repr(job)
        (_KEPT / f"{seed}-{number}.txt").write_text(text.encode("utf-8", "replace").decode())
        print(f"seed {seed}, job {number}: {'; '.join(seen.wrong)}\n  {text[:1000]}", flush=True)
    return seen


def main() -> None:
    """Read the arguments, try the jobs, print what was seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", type=int, help="the number of one job, to try it alone")
    given = parser.parse_args()
    numbers = range(given.jobs) if given.only is None else [given.only]
    print(
        f"seed {given.seed}: {len(numbers)} jobs, {MOST_REPLICAS} replicas of a role at most, {PASSES} passes each"
    )
    total = Seen()
    wrong = 0
    for done, number in enumerate(numbers, 1):
        seen = look(given.seed, number)
        wrong += bool(seen.wrong)
        total.what += seen.what
        for step, took in seen.seconds.items():
            total.seconds[step] = max(took, total.seconds.get(step, 0.0))
        if done % 1000 == 0:
            print(f"{done} jobs, {wrong} of them wrong, {megabytes():.0f} MB", file=sys.stderr, flush=True)
    print(json.dumps(dict(sorted(total.what.items())), indent=1))
    for step in _STEPS:
        print(f"longest {step}: {total.seconds.get(step, 0.0):.2f} s of processor time")
    print(f"most memory: {megabytes():.0f} MB\njobs with something wrong: {wrong}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
