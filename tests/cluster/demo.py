"""`python -m tests.cluster.demo`: the main job on a real cluster, from `kubectl apply` to the model in S3."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.cluster.api_calls import KubectlError
from tests.cluster.jobs import Job, Manifest, Namespace, example
from tests.cluster.progress import note
from tests.cluster.run import exports

ROOT = Path(__file__).parents[2]
NAME = "fashion-mnist"
# What this job needs, and nothing of TensorFlow, which takes some minutes to build.
IMAGES = ("--image=operator", "--image=trainer-horovod")
NAMESPACE = Namespace("dtj-demo")
WANTED_ACCURACY = 0.85
MOST_SECONDS = 900


def main() -> int:
    """0 when the job succeeded and its model is as good as it should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cluster", choices=("local", "kind"), default="local")
    options = parser.parse_args()
    try:
        where = bring_up(options.cluster)
    except subprocess.CalledProcessError as error:
        return error.returncode
    _namespace()
    note("$ kubectl apply -f manifests/examples/fashion-mnist-horovod.yaml")
    job = NAMESPACE.apply(example(NAME, exports=True))
    status = _follow(job)
    if status.get("phase") != "Succeeded":
        print(job.story())
        return 1
    good = _report(job, status)
    print(
        f"\nLook around: {where}; kubectl -n {NAMESPACE.name} describe dtj {NAME}"
        "\nTake it all down: make cluster-down"
    )
    return 0 if good else 1


def bring_up(cluster: str, images: Sequence[str] = IMAGES) -> str:
    """Have a cluster with the operator and these images; the line that tells a shell of it.

    Raises CalledProcessError.
    """
    up = subprocess.run(
        [sys.executable, "-m", "tests.cluster.up", "--cluster", cluster, *images],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    os.environ.update(exports(up.stdout))
    install = [sys.executable, "-m", "tests.cluster.install", "--cluster", cluster, *images]
    subprocess.run(install, cwd=ROOT, check=True)
    return up.stdout.splitlines()[0]


def _namespace() -> None:
    try:
        NAMESPACE.kubectl("get", "serviceaccount", "default")
    except KubectlError:
        NAMESPACE.make()
    NAMESPACE.kubectl("delete", "dtj", NAME, "--ignore-not-found", "--wait", timeout=120)
    NAMESPACE.kubectl(
        "wait", "pods", "--for=delete", f"--selector=dtj.dev/job={NAME}", "--timeout=150s", timeout=160
    )


def _follow(job: Job) -> Manifest:
    """Print the job's status as it moves; returns the last one."""
    begun, shown = time.monotonic(), ""
    while time.monotonic() - begun < MOST_SECONDS:
        status = job.status
        line = _line(status)
        if line != shown:
            print(f"{time.monotonic() - begun:6.1f} s  {line}", flush=True)
            shown = line
        if status.get("phase") in ("Succeeded", "Failed"):
            return status
        time.sleep(0.5)
    print(f"not done after {MOST_SECONDS} s")
    return job.status


def _line(status: Manifest) -> str:
    progress = status.get("progress") or {}
    text = f"{status.get('phase') or 'Pending':<10}"
    if progress and status.get("phase") == "Running":
        figures = {
            "step": f"{progress.get('step', 0)}/{progress.get('totalSteps', '?')}",
            "percent": f"{progress.get('percent', 0):.0f} %",
            "examples/s": f"{progress.get('examplesPerSecond', 0):.0f}",
            "loss": f"{progress.get('loss', float('nan')):.3f}",
        }
        text += "  ".join(f"{name} {value}" for name, value in figures.items())
    elif status.get("phase") != "Succeeded":
        running: Manifest = next((c for c in status.get("conditions", []) if c["type"] == "Running"), {})
        text += running.get("message", "")
    return text


def _report(job: Job, status: Manifest) -> bool:
    artifacts = job.artifacts()
    tested = [row for row in artifacts.metrics() if row.get("accuracy") is not None]
    accuracy = float(tested[-1]["accuracy"])
    print(
        f"\nTest accuracy {accuracy:.4f} (wanted: at least {WANTED_ACCURACY}), from {artifacts.uri}/metrics.jsonl"
    )
    print("\nSeconds from `kubectl apply` until")
    for name, seconds in _phases(job, status):
        print(f"  {name:<28}{seconds:7.1f}")
    print(f"\nIn {artifacts.uri}/")
    for key, size in artifacts.sizes().items():
        print(f"  {size:>10}  {key}")
    return accuracy >= WANTED_ACCURACY


def _phases(job: Job, status: Manifest) -> list[tuple[str, float]]:
    created = _seconds(job.get()["metadata"]["creationTimestamp"])
    launcher = next(pod for pod in job.pods() if pod["metadata"]["name"] == f"{NAME}-launcher-0")
    ended = launcher["status"]["containerStatuses"][0]["state"]["terminated"]
    phases: dict[str, str] = json.loads(ended["message"]).get("phases", {})
    pulled = [
        e for e in NAMESPACE.list("events") if e["reason"] == "Pulled" and NAME in e["involvedObject"]["name"]
    ]
    times: list[tuple[str, Any]] = [
        ("all pods scheduled", _condition(launcher, "PodScheduled")),
        ("images pulled", max((e["lastTimestamp"] for e in pulled), default=None)),
        ("all pods run", status.get("allRunningTime")),
        ("rendezvous: all peers answer", phases.get("peersReady")),
        ("ranks start", phases.get("programStarted")),
        ("first step", phases.get("firstStep")),
        ("program ended", phases.get("programEnded")),
        ("artifacts in the bucket", phases.get("synced")),
        ("done", status["completionTime"]),
    ]
    return [(name, _seconds(at) - created) for name, at in times if at]


def _condition(pod: Manifest, kind: str) -> str | None:
    return next((c["lastTransitionTime"] for c in pod["status"]["conditions"] if c["type"] == kind), None)


def _seconds(at: str) -> float:
    return datetime.fromisoformat(at).timestamp()


if __name__ == "__main__":
    sys.exit(main())
