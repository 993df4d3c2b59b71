"""The decision of a pass over a job, from a snapshot. Pure: for a large job, this code runs in a thread.

`reconciler` calls `decide` once in a pass. `status.evaluate` decides, and `delegate` turns the decision into
requests.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dtj.api.job import Job
from dtj.api.pod_template import gpus_of
from dtj.api.shape import stored_shape
from dtj.reconcile.actions import Action
from dtj.reconcile.record import recorded
from dtj.reconcile.snapshot import Snapshot
from dtj.reconcile.tensorboard import tensorboard_status
from dtj.status.decision import Decision
from dtj.status.evaluate import evaluate
from dtj.status.mpijob import with_launcher


@dataclass(frozen=True)
class Decided:
    """The decision of a pass, and the actions that carry the decision out."""

    decision: Decision
    todo: list[Action]
    """The actions in order. The pass carries them out after it has stored the status."""
    wants_record: bool = False
    """Whether the job needs a record pod."""


def decide(seen: Snapshot) -> Decided:
    """Compute the status of a job and the actions that follow from the status."""
    job, plan, pods = seen.job, seen.plan, seen.observed.pods
    shape = plan.shape if plan else stored_shape(job)
    if shape is not None and (shape.handed_over or not shape.planned):
        # mpi-operator runs the launcher as a Kubernetes Job. The shape needs the pod name that this Job has chosen.
        shape = with_launcher(shape, pods, job.attempt)
    decision = evaluate(job, shape, seen.faults, seen.observed, seen.now)
    if plan and isinstance(job, Job):
        board = tensorboard_status(job, plan, seen.boards, seen.no_tensorboard)
        update: dict[str, object] = {"tensorboard": board}
        if not decision.status.conditions.finished:
            update["gpus"] = gpus_of(job.spec, plan.shape.roles)
        decision = replace(decision, status=decision.status.model_copy(update=update))
    decision, wants_record = recorded(seen, decision)
    again = soonest(decision.look_again, seen.delegate.look_again(decision.status, seen.now))
    decision = replace(decision, look_again=again)
    return Decided(decision, seen.delegate.actions(seen, decision), wants_record)


def soonest(*waits: float | None) -> float | None:
    """Return the shortest of these waits in seconds, or None when all are None."""
    return min((wait for wait in waits if wait is not None), default=None)
