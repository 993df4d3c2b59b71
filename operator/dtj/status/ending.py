"""The end of a completed training. The job waits for the evaluator and then succeeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dtj.api.condition_types import ConditionType
from dtj.api.names import together
from dtj.api.reasons import Reason
from dtj.api.spec import CleanPodPolicy
from dtj.api.status import ArtifactsStatus, Condition, JobStatus, Phase
from dtj.status.decision import Decision, Pods
from dtj.status.draft import Draft
from dtj.status.evaluator import has_ended, has_seen, last_checkpoint, measured
from dtj.status.failure import Loss, attempt_loss, describe, is_complete
from dtj.status.next_attempt import evaluator_lost
from dtj.status.observed import Expected, Observed
from dtj.status.pods import Exit, PodView
from dtj.status.termination import read_termination, reported
from dtj.status.times import seconds_since, written_time
from dtj_trainer.contract import END_FILE
from dtj_trainer.contract.history import NOTHING_KEPT


def _is_nothing_kept(ends: Iterable[Exit], artifacts: ArtifactsStatus | None) -> bool:
    """Return whether dtj-launch reported its uploads at the end and named neither a checkpoint nor a model.

    ends: the exits of the pods whose success is the job's success. artifacts: the known content of the bucket; None
    for a job without artifacts. The result is False for an image without dtj_trainer, which reports no uploads.
    """
    if artifacts is None or artifacts.checkpoint is not None or artifacts.model is not None:
        return False
    return any(reported(read_termination(end))[1] is not None for end in ends)


def is_trained(old: JobStatus, expected: Expected, named: Mapping[str, PodView]) -> bool:
    """Return whether the training completed. Once the status stores the completion, its pods may be deleted."""
    return _stored(old) is not None or all(
        name in named and is_complete(named[name]) for name in expected.decisive
    )


def after_training(
    draft: Draft,
    expected: Expected,
    observed: Observed,
    named: Mapping[str, PodView],
    deadline: float | None,
    lost: Loss | None,
) -> Decision:
    """Wait for the evaluator, or finish the job as succeeded.

    deadline: seconds until the deadline of the job, if the job has one. lost: why the evaluator has to restart.
    """
    evaluator = named.get(expected.evaluator or "")
    evaluation = measured(evaluator, observed.evaluation)
    artifacts = draft.artifacts
    draft.all_running_time = draft.job.status.all_running_time or written_time(draft.now)
    message = f"{together(expected.decisive)} ended with exit code 0"
    stored = _stored(draft.job.status)
    ends = [end for name in expected.tells_the_end if name in named and (end := named[name].exit) is not None]
    # The reporting pod may no longer exist when the evaluator ends.
    nothing_kept = _is_nothing_kept(ends, artifacts) or draft.job.status.nothing_kept
    if nothing_kept:
        message += f"; {NOTHING_KEPT}"
    recorded = any(read.get("recorded") for end in ends if (read := read_termination(end)) is not None)
    # A pod that ran on while other replicas started again was not told of these restarts.
    if recorded and all(expected.attempts[name] == draft.attempt for name in expected.tells_the_end):
        said = f"{together(expected.tells_the_end)} wrote {END_FILE}"
        draft.set(ConditionType.RECORDED, True, Reason.END_RECORDED, said)
    timeout = expected.evaluator_timeout
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
    due = evaluator is not None and may_end if over else expected.evaluator is not None
    if not over and left > 0 and lost is not None and lost.infrastructure:
        return evaluator_lost(draft, lost, expected, [*named.values()])
    if due and not ended and left > 0:
        does = "ends" if over else f"has {timeout:.0f} s to see checkpoint {last}"
        reason = Reason.EVALUATED if over else Reason.EVALUATING
        message += f"; {expected.evaluator} {does}"
        draft.trained_time = trained or written_time(draft.now)
        draft.nothing_kept = nothing_kept or None
        draft.set(ConditionType.RUNNING, True, reason, message)
        draft.set(ConditionType.RESTARTING, False, reason, message)
        needed = frozenset() if over else frozenset({expected.evaluator or ""})
        done = frozenset(expected.attempts) - expected.decides - needed if may_end else frozenset()
        pods = Pods(
            make=needed - {pod.name for pod in observed.pods},
            end=frozenset(pod.name for pod in observed.pods if pod.name in done and not pod.ended),
        )
        return Decision(draft.status(phase=Phase.RUNNING), left, pods)
    if expected.evaluator and not over:
        message += f"; {expected.evaluator} has not seen checkpoint {last}"
        loss = attempt_loss(draft.job.status.attempt, [evaluator] if evaluator else [], ())
        if loss is not None:
            message += f": {describe(loss.failure)}"
    return Decision(draft.finish(Phase.SUCCEEDED, Reason.JOB_SUCCEEDED, message))


def _stored(status: JobStatus) -> Condition | None:
    """Return the stored condition Running if the condition says that the training is over."""
    running = status.condition(ConditionType.RUNNING)
    return running if running and running.reason in (Reason.EVALUATING, Reason.EVALUATED) else None
