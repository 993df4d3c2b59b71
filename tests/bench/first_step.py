"""`python -m tests.bench.first_step`: the stages from `kubectl apply` to the first step on the test cluster."""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import urllib3

from dtj_trainer import contract
from tests.bench.figures import table
from tests.bench.machine import machine
from tests.bench.targets import Target, verdicts
from tests.cluster import demo
from tests.cluster.jobs import EXAMPLE, Job, Manifest, Namespace, example, until
from tests.cluster.progress import note

PARAMETER_SERVER = EXAMPLE.with_name("fashion-mnist-ps.yaml")
TORCH_DISTRIBUTED = EXAMPLE.with_name("fashion-mnist-ddp.yaml")
IMAGES = (*demo.IMAGES, "--image=trainer-tensorflow")
ARGUMENTS = ["--model=cnn", "--epochs=20", "--batch-size=64", "--log-seconds=0"]
TARGETS = tuple(
    Target(f"first-step/{strategy}/but-containers-and-imports/2s", strategy, 2.0)
    for strategy in ("horovod", "torch-distributed", "parameter-server")
)
# What takes the time of the node and of the frameworks: the rest is dtj's, and Kubernetes'.
NOT_OURS = ("container", "imports")
_LOOKS_SECONDS = 0.02
_LONGEST_SECONDS = 180.0
Moments = dict[str, float]


@dataclass(frozen=True)
class Pods:
    """Some pods of a job, after they trained: what they tell of when they did what."""

    job: Job
    names: Sequence[str]

    def all_reached(self, phase: str) -> float:
        """When the last of them reached a phase, as their own reports say."""
        pods = [pod for pod in self.job.pods() if pod["metadata"]["name"] in self.names]
        return max(_seconds(_report(pod)["phases"][phase]) for pod in pods)

    def all_said(self, pattern: str, times: int | None = None) -> float:
        """When something like this was said for the so manieth time, or once for each pod."""
        said = [at for at, text in self.lines() if re.search(pattern, text)]
        return said[(times or len(self.names)) - 1]

    def lines(self) -> list[tuple[float, str]]:
        """What their containers said, and when, in that order."""
        logs = [self.job.namespace.kubectl("logs", name, "--timestamps") for name in self.names]
        parts = (line.partition(" ") for log in logs for line in log.splitlines())
        return sorted((_seconds(at), text) for at, _, text in parts)


def _report(pod: Manifest) -> dict[str, Any]:
    url = f"http://{pod['status']['podIP']}:{contract.PROGRESS_PORT}/progress"
    found: dict[str, Any] = urllib3.request("GET", url, timeout=5).json()
    return found


def _seconds(at: str) -> float:
    return datetime.fromisoformat(at).timestamp()


def horovod(job: Job) -> Moments:
    """The ends of the parts of a launcher and two workers."""
    workers = Pods(job, [f"{job.name}-worker-{index}" for index in range(2)])
    launcher = Pods(job, [f"{job.name}-launcher-0"])
    ranks = len(workers.names)
    seen = made(job, "workers", workers, "launcher", launcher)
    answers = r"all \d+ hosts answer after (\S+) s"
    peers = launcher.all_said(answers)
    (waited,) = (float(found[1]) for _, text in launcher.lines() if (found := re.search(answers, text)))
    return seen | {
        "workers: container, Python": workers.all_reached("started"),
        "workers: look for a checkpoint": workers.all_reached("restored"),
        "workers: sshd": workers.all_said("is ready for ssh"),
        "launcher: container, Python": peers - waited,
        "wait for peers": peers,
        "mpirun, ssh": workers.all_said(r"rank \d+ runs as process"),
        "ranks: imports, MPI_Init": launcher.all_said(r"one of \d+ ranks", ranks),
        "workers: data from S3": workers.all_said("staged t10k-labels"),
        "ranks: data unpacked, model, first step": launcher.all_said("step 1/"),
    }


def torch_distributed(job: Job) -> Moments:
    """The ends of the parts of two workers of a rank each."""
    workers = Pods(job, [f"{job.name}-worker-{index}" for index in range(2)])
    seen = placed(job, "workers", workers)
    trains(job)
    return seen | {
        "workers: container, Python": workers.all_reached("started"),
        "workers: look for a checkpoint": workers.all_reached("restored"),
        "wait for peers": workers.all_reached("peersReady"),
        "ranks: imports, process group": workers.all_said(r"rank \d+ of \d+, one of"),
        "workers: data from S3": workers.all_said("staged t10k-labels"),
        "ranks: data unpacked, model, first step": workers.all_said("step 1/", 1),
    }


def parameter_server(job: Job) -> Moments:
    """The ends of the parts of a chief, two workers and a ps."""
    workers = [f"{job.name}-worker-{index}" for index in range(2)]
    servers, chief = Pods(job, [*workers, f"{job.name}-ps-0"]), Pods(job, [f"{job.name}-chief-0"])
    return made(job, "servers", servers, "chief", chief) | {
        "servers: container, Python": servers.all_reached("started"),
        "servers: look for a checkpoint": servers.all_reached("programStarted"),
        "servers: imports": servers.all_said("this is (worker|parameter server)"),
        "workers: data from S3": Pods(job, workers).all_said("staged t10k-labels"),
        "workers: data unpacked; servers": servers.all_said("serves at"),
        "chief: container, Python": chief.all_reached("started"),
        "chief: looks for a checkpoint": chief.all_reached("programStarted"),
        "chief: imports": chief.all_said("this is chief"),
        "chief: model, first step": chief.all_said(r"step \d+/"),
    }


def made(job: Job, of_first: str, first: Pods, of_last: str, last: Pods) -> Moments:
    """When its pods were there and had nodes: those that are made first and the one that waits for them. Then waits
    until it trains.
    """
    (waits,) = last.names
    moments = placed(job, of_first, first) | {
        f"operator makes the {of_last}": seen(job, lambda pods: waits in pods),
        f"{of_last}: scheduler": seen(job, lambda pods: _has_node(pods[waits])),
    }
    trains(job)
    return moments


def placed(job: Job, of: str, waited: Pods) -> Moments:
    """When these pods were there, had nodes, and ran."""
    return {
        "kubectl, API, operator": seen(job, lambda pods: all(name in pods for name in waited.names)),
        f"{of}: scheduler": seen(job, lambda pods: all(_has_node(pods[name]) for name in waited.names)),
        f"{of}: containers run": seen(job, lambda pods: all(_runs(pods[name]) for name in waited.names)),
    }


def trains(job: Job) -> None:
    """Wait for the first step."""
    until("the first step", lambda: job.status.get("progress", {}).get("step"), _LONGEST_SECONDS)


def _has_node(pod: Manifest) -> bool:
    return "nodeName" in pod["spec"]


def _runs(pod: Manifest) -> bool:
    return bool(pod["status"].get("phase") == "Running")


def seen(job: Job, there: Callable[[dict[str, Manifest]], bool]) -> float:
    """When something was first true of the job's pods, by their names."""

    def look() -> float | None:
        return time.time() if there({pod["metadata"]["name"]: pod for pod in job.pods()}) else None

    return until("the job's pods", look, _LONGEST_SECONDS, _LOOKS_SECONDS)


def split(began: float, moments: Moments) -> dict[str, float]:
    """Seconds of each part, in the order in which they ended: each from the end of the one before it."""
    order = sorted(moments, key=moments.__getitem__)
    ends = [began, *(moments[name] for name in order)]
    return {name: ends[index + 1] - ends[index] for index, name in enumerate(order)}


def ours(parts: dict[str, float]) -> float:
    """Seconds of the parts that are neither the node's nor the frameworks'."""
    return sum(seconds for name, seconds in parts.items() if not any(part in name for part in NOT_OURS))


def one(namespace: Namespace, job: Manifest, moments: Callable[[Job], Moments]) -> dict[str, float]:
    """A job's parts."""
    name = job["metadata"]["name"]
    began = time.time()
    applied = namespace.apply(job)
    try:
        parts = split(began, moments(applied))
    finally:
        namespace.kubectl("delete", "dtj", name)
        until("its pods to be gone", lambda: not namespace.list("pods"), _LONGEST_SECONDS)
    note(f"{name}: the first step after {sum(parts.values()):.1f} s")
    return parts


STRATEGIES: dict[str, tuple[Path, Manifest, Callable[[Job], Moments]]] = {
    "horovod": (EXAMPLE, {"worker": {"replicas": 2}}, horovod),
    "torch-distributed": (TORCH_DISTRIBUTED, {"worker": {"replicas": 2}}, torch_distributed),
    "parameter-server": (PARAMETER_SERVER, {"worker": {"replicas": 2}, "ps": {}}, parameter_server),
}
"""The example, the replicas and the parts of a job of each strategy."""


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rounds", type=int, default=3, help="jobs of each strategy, in turn (default: %(default)s)"
    )
    parser.add_argument("--cluster", choices=("local", "kind"), default="local")
    given = parser.parse_args()
    demo.bring_up(given.cluster, IMAGES)
    on, namespace = machine(), Namespace("dtj-bench")
    runs: dict[str, list[dict[str, float]]] = {strategy: [] for strategy in STRATEGIES}
    namespace.make()
    try:
        for number in range(given.rounds):
            for strategy, (file, replicas, moments) in STRATEGIES.items():
                job = example(f"{strategy}-{number}", file, args=ARGUMENTS, replicaSpecs=replicas)
                runs[strategy].append(one(namespace, job, moments))
    finally:
        namespace.delete()
    print(f"{on}\n\nSeconds:")
    for strategy, parts in runs.items():
        columns = {
            f"job {number}": each
            | {"in all": sum(each.values()), "but containers, Python, imports": ours(each)}
            for number, each in enumerate(parts, start=1)
        }
        print(f"\n{strategy}:\n\n{table(columns)}")
    figures = {strategy: statistics.median(map(ours, parts)) for strategy, parts in runs.items()}
    print("", *verdicts(TARGETS, figures), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
