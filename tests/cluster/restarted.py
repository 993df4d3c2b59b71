"""Jobs whose ranks are killed: a script that knows nothing of dtj, and what its ranks note."""

from __future__ import annotations

import json
import re
from typing import Any

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

SCRIPT = ROOT / "tests/bench/recovery_program.py"
STRATEGIES = {"TorchDistributed": (TORCH_EXAMPLE, "ddp"), "Horovod": (EXAMPLE, "horovod")}
"""The example of a strategy, and what the script trains by."""
STEPS = "/dtj/run/steps.jsonl"
SAVES_EVERY = 100


def job_of(strategy: str, more: int = SAVES_EVERY, **spec: Any) -> Manifest:
    """A job of two workers whose containers have the script as /app. It ends `more` steps after a restart."""
    file, by = STRATEGIES[strategy]
    manifest = example(
        strategy.lower(),
        file,
        command=["python", f"/app/{SCRIPT.name}", by],
        args=["/dtj/checkpoints", STEPS, str(more)],
        replicaSpecs={"worker": {"replicas": 2, "template": with_script()}},
        **spec,
    )
    del manifest["spec"]["data"]
    return manifest


def bring_script(namespace: Namespace) -> None:
    """Make the ConfigMap that the jobs mount."""
    namespace.kubectl("create", "configmap", "script", f"--from-file={SCRIPT}")


def steps_of(job: Job, worker: int) -> list[Manifest]:
    """What the rank of a worker has noted."""
    try:
        text = job.namespace.kubectl("exec", f"{job.name}-worker-{worker}", "--", "cat", STEPS)
    except KubectlError:
        return []  # The pod does not run yet, or the rank has made no step.
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def wait_for_step(job: Job, step: int = 2 * SAVES_EVERY) -> None:
    """Return when rank 1 has come so far. At step 200, the checkpoint of step 100 is complete."""
    until(f"step {step} of {job.name}", lambda: any(s["step"] >= step for s in steps_of(job, 1)), 240)


def kill_rank(job: Job) -> None:
    """SIGKILL to the program of rank 1."""
    pid = steps_of(job, 1)[-1]["pid"]
    job.namespace.kubectl("exec", f"{job.name}-worker-1", "--", "sh", "-c", f"kill -9 {pid}")


def begun(job: Job, attempt: int = 1, rank: int = 0) -> list[int]:
    """The steps after which the processes of a rank began, by its log in the bucket."""
    log = job.artifacts().read(f"logs/attempt-{attempt}/rank-{rank}.log").decode()
    return [int(step) for step in re.findall(f"rank {rank} begins after step ([0-9]+)", log)]
