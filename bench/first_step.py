"""`python -m bench.first_step`: from `kubectl apply` to the first step on the tests' cluster, split."""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import time
from collections.abc import Callable
from datetime import datetime

from tests.cluster.demo import bring_up
from tests.cluster.jobs import Job, Namespace, example, until
from tests.cluster.progress import note

from bench.figures import table
from bench.machine import machine
from bench.targets import Target, verdicts

TARGETS = (Target("first-step/but-containers-and-imports/2s", "the rest", 2.0),)
_LOOKS_SECONDS = 0.02
_LONGEST_SECONDS = 180.0
# What takes the time of the node and of the frameworks: the rest is dtj's, and Kubernetes'.
NOT_OURS = ("worker: container, Python", "launcher: container, Python", "imports, MPI_Init")


def split(job: Job, applied: float) -> dict[str, float]:
    """Seconds of each part, in order. applied: when `kubectl apply` began."""
    workers = [f"{job.name}-worker-{index}" for index in range(2)]
    launcher = f"{job.name}-launcher-0"
    moments = {
        "API, operator": seen(job, lambda pods: all(name in pods for name in workers)),
        "scheduler": seen(job, lambda pods: all(pods[name] for name in workers)),
        "operator makes the launcher": seen(job, lambda pods: launcher in pods),
        "launcher: scheduler": seen(job, lambda pods: bool(pods[launcher])),
    }
    trained = until("the first rows", lambda: job.status.get("progress", {}).get("step"), _LONGEST_SECONDS)
    note(f"step {trained} is known {time.time() - applied:.1f} s after the job was applied")
    worker, launch, both = logged(job, workers[0]), logged(job, launcher), logged(job, workers[0], launcher)
    moments |= {
        "worker: container, Python": worker(""),
        "worker: until it is ready": worker(r"is ready for"),
        "launcher: container, Python": launch(""),
        "wait for peers": launch(r"answer after"),
        "mpirun": both(r"rank 0 runs as process"),
        "imports, MPI_Init": both(r"one of \d+ ranks"),
        "data, first steps": both(r"step \d+/"),
    }
    order = sorted(moments, key=moments.__getitem__)
    ends = [applied, *(moments[name] for name in order)]
    return {name: ends[index + 1] - ends[index] for index, name in enumerate(order)}


def seen(job: Job, there: Callable[[dict[str, str]], bool]) -> float:
    """When something was first true of the job's pods, by their names: the node of each, or nothing."""

    def look() -> float | None:
        pods = {pod["metadata"]["name"]: pod["spec"].get("nodeName", "") for pod in job.pods()}
        return time.time() if there(pods) else None

    return until("the job's pods", look, _LONGEST_SECONDS, _LOOKS_SECONDS)


def logged(job: Job, *pods: str) -> Callable[[str], float]:
    """When one of these pods' containers first said something like this."""
    lines = sorted(
        line for pod in pods for line in job.namespace.kubectl("logs", pod, "--timestamps").splitlines()
    )

    def when(pattern: str) -> float:
        line = next(line for line in lines if re.search(pattern, line.partition(" ")[2]))
        return datetime.fromisoformat(line.partition(" ")[0]).timestamp()

    return when


def one(namespace: Namespace, name: str) -> dict[str, float]:
    """A job's parts."""
    job = example(name, args=["--model=cnn", "--epochs=20", "--batch-size=64", "--log-seconds=0"])
    applied = time.time()
    made = namespace.apply(job)
    try:
        return split(made, applied)
    finally:
        namespace.kubectl("delete", "dtj", name, "--wait=false")


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rounds", type=int, default=3, help="jobs, one after the other (default: %(default)s)"
    )
    parser.add_argument("--cluster", choices=("local", "kind"), default="local")
    given = parser.parse_args()
    bring_up(given.cluster)
    on, namespace = machine(), Namespace("dtj-bench")
    namespace.make()
    try:
        runs = []
        for number in range(given.rounds):
            runs.append(one(namespace, f"first-{number}"))
            until("its pods to be gone", lambda: not namespace.list("pods"), _LONGEST_SECONDS)
    finally:
        namespace.delete()
    columns = {f"job {number + 1}": run | {"in all": sum(run.values())} for number, run in enumerate(runs)}
    rest = [sum(seconds for name, seconds in run.items() if name not in NOT_OURS) for run in runs]
    print(f"{on}\n\nSeconds:\n\n{table(columns)}\n")
    print("\n".join(verdicts(TARGETS, {"the rest": statistics.median(rest)})))
    return 0


if __name__ == "__main__":
    sys.exit(main())
