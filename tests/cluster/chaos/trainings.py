"""The jobs of the chaos tests: small, with frequent checkpoints, and equal for each strategy."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from botocore.exceptions import ClientError

from dtj_trainer.artifacts import manifest as snapshots
from tests.cluster import parameter_server
from tests.cluster.jobs import (
    EXAMPLE,
    PS_EXAMPLE,
    TORCH_EXAMPLE,
    Artifacts,
    Job,
    Manifest,
    Namespace,
    example,
    stub,
    until,
)

STRATEGIES = ("Horovod", "ParameterServer", "TorchDistributed")
ROLES = {
    "Horovod": ("launcher", "worker"),
    "ParameterServer": ("chief", "worker", "ps", "evaluator"),
    "TorchDistributed": ("worker",),
}
EXAMPLES = {"Horovod": EXAMPLE, "ParameterServer": PS_EXAMPLE, "TorchDistributed": TORCH_EXAMPLE}
# Which pod tells how far the training is.
TELLS = {"Horovod": "worker-0", "ParameterServer": "chief-0", "TorchDistributed": "worker-0"}
TORN = "torn.pt"
# The built-in program. It waits after its first checkpoint until it may go on, so that trainings that start at
# different speeds are hit at the same moment. When told to, it takes memory until the kernel ends it, leaves with
# exit code 0, or dies while it writes a file in place. In the attempt that STUB_TAKES_PORT names, rank 0 of PyTorch
# finds its port taken.
PROGRAM = f"""
import os, pathlib, runpy, signal, socket, sys, threading, time
from dtj_trainer.artifacts import checkpoints

def told(what):
    return pathlib.Path("/dtj/run", what)

def wait_until_told(what):
    while not told(what).exists():
        time.sleep(0.1)

def save(step, *given, **named):
    path = saved(step, *given, **named)
    if os.environ["DTJ_ATTEMPT"] == "1":
        wait_until_told("go-on")
    return path

def take_memory():
    wait_until_told("take-memory")
    told("take-memory").unlink()  # The next process in this pod does not.
    held = []
    while True:
        held.append(b"x" * 50_000_000)

def tear():  # At once: the next save may be the last.
    wait_until_told("tear")
    told("tear").unlink()
    checkpoints.folder().joinpath("{TORN}").write_bytes(b"x" * 1_000_000)
    os.kill(os.getpid(), signal.SIGKILL)

def leave():
    wait_until_told("leave")
    os._exit(0)

saved, checkpoints.save = checkpoints.save, save
for each in (take_memory, tear, leave):
    threading.Thread(target=each, daemon=True).start()
if os.environ.get("STUB_TAKES_PORT") == os.environ["DTJ_ATTEMPT"] and os.environ["RANK"] == "0":
    listener = socket.create_server(("", int(os.environ["MASTER_PORT"])))
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
INTERVAL = 25
"""Steps from a checkpoint to the next one of the ranks of Horovod and PyTorch."""


STUB_STEPS = (800, 3200, 12800)
"""So many, so that the test hits all trainings before the first one ends; on a busy machine the next number."""


def manifest(name: str, strategy: str, stub_steps: int, *, real: bool) -> Manifest:
    """The example with fewer steps, more checkpoints and more lines in metrics.jsonl, or a stub in its place."""
    if not real:
        steps = f"--steps={stub_steps}"
        return stub(name, steps, "--checkpoint-steps=20", "--hold", file=EXAMPLES[strategy])
    job = _example(name, strategy)
    job["spec"]["command"] = ["python", "-c", PROGRAM, job["spec"]["command"][-1]]
    return job


def _example(name: str, strategy: str) -> Manifest:
    if strategy != "ParameterServer":
        args = ["--model=cnn", "--epochs=1", "--max-steps=300", f"--checkpoint-steps={INTERVAL}"]
        args.append("--log-seconds=0.5")
        return example(name, file=EXAMPLES[strategy], args=args)
    more = ("--max-steps=560", "--checkpoint-steps=60", "--log-seconds=0.5")
    return parameter_server.example(name, "Asynchronous", *more)


def in_role(job: Manifest, role: str, template: dict[str, Any]) -> None:
    """Give the pods of a role a template."""
    job["spec"]["replicaSpecs"].setdefault(role, {})["template"] = {"spec": template}


@dataclass(frozen=True)
class Training:
    """A job that runs, and how it is told apart by chance."""

    strategy: str
    job: Job
    chance: random.Random

    @property
    def namespace(self) -> Namespace:
        """Where it runs."""
        return self.job.namespace

    def replicas(self, *roles: str) -> list[str]:
        """Names like `worker-0` of its replicas in these roles, or in all."""
        names = [pod["metadata"]["name"].removeprefix(f"{self.job.name}-") for pod in self.job.pods()]
        return sorted(name for name in names if not roles or name.rpartition("-")[0] in roles)

    def pod(self, replica: str) -> str:
        """The name of a replica's pod."""
        return f"{self.job.name}-{replica}"

    def uid(self, replica: str) -> str:
        """The uid of a replica's pod."""
        return next(
            str(p["metadata"]["uid"]) for p in self.job.pods() if p["metadata"]["name"] == self.pod(replica)
        )

    def step(self) -> int:
        """How far it is, as the program says now."""
        pod = self.pod(TELLS[self.strategy])
        return int(
            json.loads(self.namespace.kubectl("exec", pod, "--", "cat", "/dtj/run/progress.json"))["step"]
        )

    def tell(self, replica: str, what: str) -> None:
        """Tell its program what PROGRAM waits for, or the stub."""
        self.job.tell(replica, what)

    def wait_until_it_saves(self) -> None:
        """Wait for its first checkpoint; all of its pods run then."""
        parameter_server.wait_for_checkpoint(self.job)
        count = len(ROLES[self.strategy]) + 1
        until("all pods", lambda: len(self.job.pods()) == count, 30)

    def go_on(self) -> None:
        """Let it train on from its first checkpoint; fails where it has restarted before anything hit it."""
        assert not any(self.job.status["restarts"].values()), self.job.story()
        self.tell(TELLS[self.strategy], "go-on")


@dataclass(frozen=True)
class Moment:
    """What was known of a training when it was hit."""

    at: datetime
    step: int
    saved: int
    """Step of the newest checkpoint whose manifest was in the bucket."""
    pods: frozenset[str] = frozenset()
    """The uids of its pods."""

    @classmethod
    def of(cls, training: Training) -> Moment:
        """Now."""
        saved = newest_checkpoint(training.job.artifacts())
        return cls(datetime.now(UTC), training.step(), saved, uids(training.job))


def uids(job: Job) -> frozenset[str]:
    """The uids of its pods."""
    return frozenset(pod["metadata"]["uid"] for pod in job.pods())


def newest_checkpoint(artifacts: Artifacts) -> int:
    """Step of the newest checkpoint that is whole; 0 when there is none."""
    return until("the listed checkpoints to stay until they are read", lambda: _newest_listed(artifacts), 20)


def _newest_listed(artifacts: Artifacts) -> int | None:
    """As newest_checkpoint; None when the training deleted a listed checkpoint before the test read its manifest."""
    keys = artifacts.sizes()
    steps = [0]
    for key in keys:
        if key.startswith("checkpoints/") and key.endswith("/manifest.json"):
            try:
                found = snapshots.Manifest.from_json(artifacts.read(key))
            except ClientError as error:
                if error.response["Error"]["Code"] != "NoSuchKey":
                    raise
                return None
            if {f"checkpoints/{file.key}": file.size for file in found.files}.items() <= keys.items():
                steps.append(found.step or 0)
    return max(steps)
