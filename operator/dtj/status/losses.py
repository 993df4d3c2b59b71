"""Detect from the pods that an attempt, or some of its replicas, can't go on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from dtj.api.status import JobStatus
from dtj.status.creation import is_begun
from dtj.status.draft import Draft
from dtj.status.failure import Loss, attempt_loss, early_end
from dtj.status.observed import Expected
from dtj.status.pods import PodView
from dtj.status.replacement import replica_loss, told_apart
from dtj.status.times import seconds_since
from dtj_trainer.contract.failure_class import FailureClass


def pods_loss(
    draft: Draft, expected: Expected, pods: Sequence[PodView], missing: Sequence[str], gone: Sequence[str]
) -> Loss | None:
    """Return why the attempt, or some of its replicas, can't go on; None if the pods show no reason.

    missing: names of pods that no longer exist. gone: the missing pods whose loss counts.
    """
    old, attempt = draft.job.status, draft.job.status.current_attempt
    if expected.restarts_with is not None:
        loss = replica_loss(attempt, old, expected, pods, gone)
        return loss and told_apart(loss, old, expected, draft.now)
    existing = {pod.name for pod in pods}
    if (expected.all_or_nothing and existing) or is_begun(old, expected.created_last, existing):
        loss = attempt_loss(attempt, pods, missing, expected.decides)
        return loss and _port_told_apart(loss, old)
    return _early(attempt, expected, pods)


def _port_told_apart(loss: Loss, old: JobStatus) -> Loss:
    """The loss, put down to the program if the port of the attempt before, which was another one, was in use too."""
    before, failure = old.failure, loss.failure
    if before is None or before.attempt != (failure.attempt or 0) - 1:
        return loss
    kinds = {before.failure_class, failure.failure_class}
    return replace(loss, infrastructure=False) if kinds == {FailureClass.PORT_IN_USE} else loss


def _early(attempt: int, expected: Expected, pods: Sequence[PodView]) -> Loss | None:
    """Return a loss before any rank started: a pod that ended by itself. The operator recreates a deleted pod."""
    staying = [pod for pod in pods if not pod.deleting]
    done = (pod for pod in staying if pod.succeeded and pod.name not in expected.decides)
    return attempt_loss(attempt, staying, (), expected.decides) or next(
        (early_end(attempt, pod) for pod in done), None
    )


def settle_left(loss: Loss, now: datetime) -> float:
    """Return the seconds until the operator stops waiting for another cause of an uncertain loss."""
    if not loss.settle or loss.finished is None:
        return 0.0
    wait = loss.settle - seconds_since(loss.finished, now)
    # The clock of the node may be far ahead of the operator's. Do not wait until the operator's clock catches up.
    return wait if wait <= 2 * loss.settle else 0.0
