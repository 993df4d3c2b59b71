"""Ranks that are killed start again in their pods, in jobs of scripts that know nothing of dtj.

The rules of a restart in place are tested with agents on loopback: tests/trainer/test_restart_in_place.py.
"""

from __future__ import annotations

import json
import re

import pytest

from tests.cluster.jobs import (
    EXAMPLE,
    ROOT,
    TORCH_EXAMPLE,
    Job,
    KubectlError,
    Manifest,
    Namespace,
    example,
    until,
    with_script,
)

pytestmark = pytest.mark.cluster
SCRIPT = ROOT / "tests/bench/recovery_program.py"
BY = {"TorchDistributed": (TORCH_EXAMPLE, "ddp"), "Horovod": (EXAMPLE, "horovod")}
"""The example of a strategy, and what the script trains by."""
STEPS = "/dtj/run/steps.jsonl"
SAVES_EVERY = 100


def job_of(strategy: str) -> Manifest:
    """A job of two workers whose containers have the script as /app."""
    file, by = BY[strategy]
    manifest = example(
        strategy.lower(),
        file,
        command=["python", f"/app/{SCRIPT.name}", by],
        args=["/dtj/checkpoints", STEPS, str(SAVES_EVERY)],
        replicaSpecs={"worker": {"replicas": 2, "template": with_script()}},
        runPolicy={"restartStrategy": "InPlaceRestart"},
    )
    del manifest["spec"]["data"]
    return manifest


def steps_of(job: Job, worker: int) -> list[Manifest]:
    """What the rank of a worker has noted."""
    try:
        text = job.namespace.kubectl("exec", f"{job.name}-worker-{worker}", "--", "cat", STEPS)
    except KubectlError:
        return []  # The pod does not run yet, or the rank has made no step.
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def begun(job: Job, rank: int) -> list[int]:
    """The steps after which the processes of a rank began, by its log."""
    log = job.artifacts().read(f"logs/attempt-1/rank-{rank}.log").decode()
    return [int(step) for step in re.findall(f"rank {rank} begins after step ([0-9]+)", log)]


def test_killed_ranks_train_again_in_their_pods(namespace: Namespace) -> None:
    namespace.kubectl("create", "configmap", "script", f"--from-file={SCRIPT}")
    jobs = [namespace.apply(job_of(strategy)) for strategy in BY]
    born = {}
    for job in jobs:
        # The checkpoint of step 100 is complete by then.
        steps = until(
            "step 200", lambda job=job: [s for s in steps_of(job, 1) if s["step"] >= 200] or None, 240
        )
        born[job.name] = {pod["metadata"]["uid"] for pod in job.pods()}
        namespace.kubectl("exec", f"{job.name}-worker-1", "--", "sh", "-c", f"kill -9 {steps[0]['pid']}")
    for job in jobs:
        status = job.wait(240)
        first, again = begun(job, 0)
        assert begun(job, 1) == [first, again]
        assert first == 0 < again
        assert again % SAVES_EVERY == 0, "the step of a checkpoint"
        assert status["restarts"] == {"application": 1, "inPlace": 1, "infrastructure": 0}
        assert status["attempt"] == 1
        assert {pod["metadata"]["uid"] for pod in job.pods()} == born[job.name]
        (event,) = job.wait_for_event("RestartedInPlace")
        assert "rank 1" in event["message"]
        assert "SIGKILL" in event["message"]
