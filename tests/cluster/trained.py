"""The main example, trained once for all tests that read a finished training."""

from __future__ import annotations

from dataclasses import dataclass

from tests.cluster.docs_blocks import commands, run
from tests.cluster.jobs import Job, Manifest, Namespace, example, until

NAME = "fashion-mnist"


@dataclass(frozen=True)
class Trained:
    """A job that has succeeded."""

    job: Job
    status: Manifest
    printed: dict[str, str]
    """What each command of docs/using.md and docs/status.md printed, at the moment that the page says."""


def train(namespace: Namespace) -> Trained:
    """Train the example in a namespace, and run the commands of using.md and status.md meanwhile and afterwards."""
    job = namespace.apply(example(NAME, exports=True))
    until("a third of the training", lambda: (job.status.get("progress") or {}).get("percent", 0) >= 30, 240)
    printed = {command: run(command, namespace) for command in commands("while running")}
    status = job.wait(300)
    printed |= {command: run(command, namespace) for command in commands("at the end")}
    return Trained(job, status, printed)
