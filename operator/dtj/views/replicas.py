"""The state and the ranks of a replica, and the code of a job, in a few words. All functions are pure.

`cli` shows the state in its colour, the page without one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dtj.api.git_annotations import code_words, git_state_of
from dtj.api.strategies import rules_of
from dtj.views.figures import UNKNOWN

if TYPE_CHECKING:
    from dtj.client import DistributedTrainingJob, Pod


class ReplicaState(NamedTuple):
    """What a replica does, or how it ended."""

    words: str
    colour: str
    """The name of a colour of a terminal; empty: no colour."""


def replica_state(pod: Pod) -> ReplicaState:
    """Return what a replica does, or how it ended, with the reason that Kubernetes gives, if any."""
    if pod.exit_code == 0:
        return ReplicaState("Succeeded", "green")
    if pod.disrupted:
        return ReplicaState(pod.reason, "magenta")
    if pod.exit_code is not None:
        return ReplicaState(_failed(pod), "red")
    if pod.deleting:
        return ReplicaState("Ending", "yellow")
    if pod.reason:
        return ReplicaState(pod.reason, "yellow")
    if pod.phase == "Running":
        return ReplicaState("Running", "cyan") if pod.ready else ReplicaState("Running, not ready", "yellow")
    if pod.phase == "Pending":
        return ReplicaState("Starting" if pod.node else "Waits for a node", "yellow")
    return ReplicaState(pod.phase, {"Succeeded": "green", "Failed": "red"}.get(pod.phase, ""))


def ranks_of(job: DistributedTrainingJob, pod: Pod) -> str:
    """Return the ranks that run in a pod."""
    ranks = rules_of(job.spec).ranks_of(job.spec, pod.role, pod.index)
    if not ranks:
        return UNKNOWN
    return str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]}-{ranks[-1]}"


def code_of_job(job: DistributedTrainingJob) -> str | None:
    """Return the digest of a job's code, and its commit if one is known; None if the program is in the image."""
    code = job.spec.code
    return code_words(code.digest, git_state_of(job.metadata.annotations)) if code else None


def _failed(pod: Pod) -> str:
    how = f"signal {pod.signal}" if pod.signal else f"exit code {pod.exit_code}"
    return f"{pod.reason} ({how})" if pod.reason not in ("", "Error") else f"Failed ({how})"
