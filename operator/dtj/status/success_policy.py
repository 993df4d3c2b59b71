"""Decides when the training is done, and how long the evaluator may continue afterwards.

`evaluate` calls the functions after the decisive pods have succeeded. `completed` remembers single replicas that have
succeeded before. The deletion of the job and its pods is in `clean_up`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dtj.api.names import together
from dtj.api.reasons import Reason
from dtj.api.shape import Shape
from dtj.api.spec import CleanPodPolicy
from dtj.api.status import ArtifactsStatus, Condition, ConditionType, JobStatus, Phase, ProgressStatus
from dtj.status.decision import Decision, PodChanges
from dtj.status.draft import Draft
from dtj.status.failure import Loss, attempt_loss, describe, is_complete, read_termination, reported
from dtj.status.observed import Observed
from dtj.status.pods import Exit, PodSet, PodView
from dtj.status.restart_policy import evaluator_lost
from dtj.status.times import seconds_since
from dtj_trainer.contract import END_FILE
from dtj_trainer.contract.history import NOTHING_KEPT

# Read the state and the results of the evaluator from its pod and its reports.


def has_ended(evaluator: PodView) -> bool:
    """Return whether the evaluator's program has ended for good."""
    return (
        evaluator.succeeded
        or evaluator.exit is not None
        or evaluator.disrupted
        or evaluator.phase == "Failed"
    )


def has_seen(evaluation: ProgressStatus | None, artifacts: ArtifactsStatus | None) -> bool:
    """Return whether the evaluator has measured the newest checkpoint."""
    last = artifacts.checkpoint.step if artifacts and artifacts.checkpoint else None
    seen = evaluation.step if evaluation else None
    return last is not None and seen is not None and seen >= last


def last_checkpoint(artifacts: ArtifactsStatus | None) -> str | None:
    """Return the name of the newest checkpoint for messages: its step, or else that of its folder.

    The operator can't find out whether the evaluator has seen a checkpoint without a step.
    """
    last = artifacts.checkpoint if artifacts else None
    if last is None:
        return None
    return (last.uri or "").rpartition("/")[2] if last.step is None else str(last.step)


def measured(evaluator: PodView | None, evaluation: ProgressStatus | None) -> ProgressStatus | None:
    """Return the evaluator's last measurement, from its termination message or from its last report."""
    if evaluator is None or evaluator.exit is None:
        return evaluation
    progress, _ = reported(read_termination(evaluator.exit))
    return progress or evaluation


def _is_nothing_kept(ends: Iterable[Exit], artifacts: ArtifactsStatus | None) -> bool:
    """Return whether dtj-launch reported its uploads at the end and named neither a checkpoint nor a model.

    ends: the exits of the pods whose success is the job's success. artifacts: the known content of the bucket; None
    for a job without artifacts. The result is False for an image without dtj_trainer, which reports no uploads.
    """
    if artifacts is None or artifacts.checkpoint is not None or artifacts.model is not None:
        return False
    return any(reported(read_termination(end))[1] is not None for end in ends)


def is_trained(old: JobStatus, shape: Shape, named: Mapping[str, PodView]) -> bool:
    """Return whether the training completed. Once the status stores the completion, its pods may be deleted."""
    return _stored(old) is not None or all(
        name in named and is_complete(named[name]) for name in shape.decisive
    )


def after_training(
    draft: Draft,
    shape: Shape,
    observed: Observed,
    named: Mapping[str, PodView],
    deadline: float | None,
    lost: Loss | None,
) -> Decision:
    """Wait for the evaluator, or finish the job as succeeded.

    deadline: seconds until the deadline of the job, if the job has one. lost: why the evaluator has to restart.
    """
    evaluator = named.get(shape.evaluator or "")
    evaluation = measured(evaluator, observed.evaluation)
    artifacts = draft.artifacts
    draft.all_running_time = draft.job.status.all_running_time or draft.time
    message = f"{together(shape.decisive)} ended with exit code 0"
    stored = _stored(draft.job.status)
    ends = [end for name in shape.tells_the_end if name in named and (end := named[name].exit) is not None]
    # The reporting pod may no longer exist when the evaluator ends.
    nothing_kept = _is_nothing_kept(ends, artifacts) or draft.job.status.nothing_kept
    if nothing_kept:
        message += f"; {NOTHING_KEPT}"
    recorded = any(read.get("recorded") for end in ends if (read := read_termination(end)) is not None)
    # A pod that was not restarted with other replicas has written an end.json without these restarts. Such a record
    # does not count.
    if recorded and all(shape.attempts[name] == draft.attempt for name in shape.tells_the_end):
        said = f"{together(shape.tells_the_end)} wrote {END_FILE}"
        draft.set(ConditionType.RECORDED, True, Reason.END_RECORDED, said)
    timeout = shape.evaluator_timeout
    trained = draft.job.status.trained_time or (stored.last_transition_time if stored else None)
    left = timeout - (seconds_since(trained, draft.now) if trained else 0.0)
    if deadline is not None:
        left = min(left, deadline)
    last = last_checkpoint(artifacts)
    seen = has_seen(evaluation, artifacts) or (stored is not None and stored.reason == Reason.EVALUATED)
    over = seen or last is None
    may_end = draft.job.run_policy.clean_pod_policy is not CleanPodPolicy.NONE
    ended = evaluator is not None and has_ended(evaluator)
    # A restarting evaluator may not exist yet. The job waits for a deleted evaluator, which uploads its files first.
    due = evaluator is not None and may_end if over else shape.evaluator is not None
    if not over and left > 0 and lost is not None and lost.infrastructure:
        return evaluator_lost(draft, lost, shape, [*named.values()])
    if due and not ended and left > 0:
        does = "ends" if over else f"has {timeout:.0f} s to see checkpoint {last}"
        reason = Reason.EVALUATED if over else Reason.EVALUATING
        message += f"; {shape.evaluator} {does}"
        draft.trained_time = trained or draft.time
        draft.nothing_kept = nothing_kept or None
        draft.set(ConditionType.RUNNING, True, reason, message)
        draft.set(ConditionType.RESTARTING, False, reason, message)
        needed = frozenset() if over else frozenset({shape.evaluator or ""})
        done = frozenset(shape.attempts) - shape.decides - needed if may_end else frozenset()
        pods = PodChanges(
            make=needed - {pod.name for pod in observed.pods},
            end=frozenset(pod.name for pod in observed.pods if pod.name in done and not pod.ended),
        )
        return Decision(draft.status(phase=Phase.RUNNING), left, pods)
    if shape.evaluator and not over:
        message += f"; {shape.evaluator} has not seen checkpoint {last}"
        loss = attempt_loss(draft.job.status.attempt, PodSet([evaluator] if evaluator else ()), ())
        if loss is not None:
            message += f": {describe(loss.failure)}"
    return Decision(draft.finish(Phase.SUCCEEDED, Reason.JOB_SUCCEEDED, message))


def _stored(status: JobStatus) -> Condition | None:
    """Return the stored condition Running if the condition says that the training is over."""
    running = status.conditions.by_type.get(ConditionType.RUNNING)
    return running if running and running.reason in (Reason.EVALUATING, Reason.EVALUATED) else None
