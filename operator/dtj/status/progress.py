"""The progress of the training: reports of its pods merged into the status, and stalls (runPolicy.stallPolicy).

`evaluate` calls both parts. `reconcile.progress` asks the pods, and `observed` reads their answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dtj.api.reasons import OperatorFailureClass, Reason
from dtj.api.shape import Shape
from dtj.api.spec import StallPolicy
from dtj.api.status import ArtifactsStatus, ConditionStatus, ConditionType, Failure, JobStatus, ProgressStatus
from dtj.status.draft import Draft
from dtj.status.failure import Loss, read_termination, reported
from dtj.status.force_deletion import some
from dtj.status.observed import Observed, artifacts_incomplete
from dtj.status.pods import PodView
from dtj.status.restart_policy import has_new_checkpoint
from dtj.status.success_policy import measured
from dtj.status.times import seconds_since
from dtj_trainer import contract


@dataclass(frozen=True)
class _Reported:
    """A condition that is True while a pod reports a problem. message: the message while the pod reports none."""

    kind: ConditionType
    holds: Reason
    holds_not: Reason
    message: str


_CHECKPOINT_DELAYED = _Reported(
    ConditionType.CHECKPOINT_DELAYED,
    Reason.CHECKPOINT_INCOMPLETE,
    Reason.CHECKPOINT_COMPLETE,
    "nothing holds up the next checkpoint",
)
_ARTIFACTS_INCOMPLETE = _Reported(
    ConditionType.ARTIFACTS_INCOMPLETE,
    Reason.FILES_REFUSED,
    Reason.FILES_UPLOADED,
    "no file is refused any more",
)
_FIELD = '"notUploaded"'
"""The field in the termination message of a pod whose files were not uploaded."""
_MOST_PODS = 3
"""The largest number of pods whose files the message names."""


def merge_reports(draft: Draft, shape: Shape, observed: Observed, named: Mapping[str, PodView]) -> None:
    """Set progress and artifacts from the reports of running pods and the termination messages of ended pods.

    A termination message may name a newer checkpoint than the last report. The older checkpoint may be deleted.
    """
    old = draft.job.status
    evaluation = measured(named.get(shape.evaluator or ""), observed.evaluation)
    ends = [named[name].exit for name in shape.tells_the_end if name in named]
    messages = [message for end in ends if end is not None and (message := read_termination(end)) is not None]
    last_reports = [reported(message) for message in messages]
    progress, artifacts = old.progress, old.artifacts
    _tell(draft, observed.checkpoint_held_up, _CHECKPOINT_DELAYED)
    said = [observed.artifacts_incomplete, *map(artifacts_incomplete, messages)]
    _tell(draft, _incomplete(shape, said, named), _ARTIFACTS_INCOMPLETE)
    for new_progress, new_artifacts in [(observed.progress, observed.artifacts), *last_reports]:
        progress = _progress(shape, progress, new_progress, evaluation)
        artifacts = _artifacts(shape, artifacts, new_artifacts)
    draft.progress, draft.artifacts = progress, artifacts
    moved = (progress, artifacts) != (old.progress, old.artifacts)
    # A new checkpoint on a pod's disk alone is no reason to write the status: pods may save every few seconds. The
    # first checkpoint of a job without artifacts is a reason: from then on, the loss of the pod loses a checkpoint.
    if moved or (artifacts is None and old.pod_checkpoint is None):
        draft.pod_checkpoint = observed.pod_checkpoint
    if has_new_checkpoint(draft):
        draft.skipped_checkpoints = None


def _incomplete(shape: Shape, reported: Iterable[str | None], named: Mapping[str, PodView]) -> str | None:
    """Return which files are not uploaded or not restored; empty: none; None: no pod has reported about files.

    reported: the reports of rank 0, the newest last. Other pods report in their termination messages.
    """
    said = [each for each in reported if each is not None][-1:]
    # Thousands of pods may have ended. Parse few of their messages.
    telling = [
        (pod, pod.exit)
        for pod in named.values()
        if pod.exit and _FIELD in pod.exit.message and pod.name not in shape.tells_the_end
    ]
    for pod, end in telling[:_MOST_PODS]:
        if incomplete := artifacts_incomplete(read_termination(end) or {}):
            said.append(f"{pod.name}: {incomplete}")
    if len(telling) > _MOST_PODS:
        said.append(f"and files of {len(telling) - _MOST_PODS} more pods")
    return "; ".join(filter(None, said)) if said else None


def _tell(draft: Draft, trouble: str | None, reported: _Reported) -> None:
    """Set a condition. trouble: the problem that a pod reports; empty: no problem; None: the pod reports nothing."""
    if trouble is not None:
        reason = reported.holds if trouble else reported.holds_not
        draft.set(reported.kind, bool(trouble), reason, trouble or reported.message)


def _progress(
    shape: Shape,
    old: ProgressStatus | None,
    new: ProgressStatus | None,
    evaluation: ProgressStatus | None,
) -> ProgressStatus | None:
    """Return the progress that rank 0 reports, with the last accuracy that the evaluator measured, if any."""
    progress = new or old
    if shape.evaluator is None:
        return progress
    known = [
        each.accuracy for each in (evaluation, old, new) if each is not None and each.accuracy is not None
    ]
    return (progress or ProgressStatus()).model_copy(update={"accuracy": known[0]}) if known else progress


def _artifacts(
    shape: Shape, old: ArtifactsStatus | None, new: ArtifactsStatus | None
) -> ArtifactsStatus | None:
    """Return the known artifacts, updated with the new report."""
    if shape.artifacts_uri is None:
        return None
    known = {
        **(old.model_dump(exclude_none=True) if old else {}),
        **(new.model_dump(exclude_none=True) if new else {}),
    }
    return ArtifactsStatus.model_validate(known | {"uri": shape.artifacts_uri})


# Detect a stalled training: all pods run and the step does not change (runPolicy.stallTimeoutSeconds).
#
# A stall requires an answer of the pod of rank 0 with the stored step. A new operator therefore never restarts a job
# that continued while no operator ran.

STACKS_SECONDS = 30.0
"""Seconds between the detection of a stall and the restart. The ranks upload their stacks in this time."""


@dataclass(frozen=True)
class Stall:
    """The result of a stall check."""

    look_again: float | None = None
    """Seconds until the next check."""
    since: str | None = None
    """When the stall began, while the operator collects the stacks of the ranks."""
    loss: Loss | None = None
    """The loss that ends the attempt because of the stall."""


def step_time(draft: Draft) -> str | None:
    """Return when the step last changed, up or down; None without runPolicy.stallTimeoutSeconds.

    The draft must have its progress.
    """
    old = draft.job.status
    if draft.job.run_policy.stall_timeout_seconds is None:
        return None
    mark = _mark(draft.progress)
    moved = mark is not None and mark != _mark(old.progress)
    return draft.time if moved or old.step_time is None else old.step_time


def look(draft: Draft, shape: Shape, observed: Observed, named: Mapping[str, PodView]) -> Stall:
    """Check whether the training is stalled while all pods run, and set the condition Stalled.

    Call it after the step time and the condition Running of the draft are set. named: the attempt's pods, by name.
    """
    policy, known = draft.job.run_policy, draft.conditions.get(ConditionType.STALLED)
    timeout = policy.stall_timeout_seconds
    if timeout is None:
        _clear(draft, Reason.NOT_WATCHED, "runPolicy.stallTimeoutSeconds is not set")
        return Stall()
    step = _step(draft.progress)
    still_since = max(draft.conditions[ConditionType.RUNNING].last_transition_time, draft.step_time or "")
    still_for = seconds_since(still_since, draft.now)
    if still_for < timeout:
        _clear(draft, Reason.PROGRESS_RESUMED, f"the training continues: it is at step {step}")
        return Stall(look_again=timeout - still_for)
    ended = [name for name in shape.decisive if name in named and named[name].succeeded]
    over = shape.reporter in ended
    if observed.program_ended and not over:
        _clear(draft, Reason.PROGRAM_ENDED, "the training is over, and its files are exported and uploaded")
        return Stall()
    if not over and not observed.answers:
        if observed.answers is False and not (known and known.status is ConditionStatus.TRUE):
            draft.set(ConditionType.STALLED, None, Reason.NO_ANSWER, _unknown(shape))
        return Stall()  # The answer of the pod triggers the next pass.
    where = "no step was reported" if step is None else f"the step has stayed at {step}"
    stacks = f"the stacks of all ranks are in {_stacks(shape)}"
    if step is None:
        file = contract.ROOT / contract.PROGRESS_FILE
        stacks += f"; a program reports its steps by dtj_trainer.progress.report or in {file}"
    if ended:
        where = f"{some(ended)} ended with exit code 0, and {where}"
    read = draft.progress is not None and draft.progress.source == "Output"
    if read and policy.stall_policy is StallPolicy.RESTART:
        stacks += (
            "; a stall of steps that are read from the program's output restarts no job, unless "
            f"{contract.ENV_READ_OUTPUT} is trusted"
        )
    message = f"all pods run, but {where} for {timeout} s (runPolicy.stallTimeoutSeconds); {stacks}"
    draft.set(ConditionType.STALLED, True, Reason.NO_PROGRESS, message)
    since = draft.conditions[ConditionType.STALLED].last_transition_time
    left = STACKS_SECONDS - seconds_since(since, draft.now)
    restart = policy.stall_policy is StallPolicy.RESTART and not read
    if left > 0:
        return Stall(left if restart else None, since)
    if not restart:
        return Stall()
    failure = Failure(
        attempt=draft.job.attempt,
        failure_class=OperatorFailureClass.STALLED,
        message=f"{where} for {still_for:.0f} s though all pods ran (runPolicy.stallTimeoutSeconds); {stacks}",
    )
    return Stall(loss=Loss(failure, infrastructure=False))


def _clear(draft: Draft, reason: str, message: str) -> None:
    known = draft.conditions.get(ConditionType.STALLED)
    if known is not None and known.status is not ConditionStatus.FALSE:
        draft.set(ConditionType.STALLED, False, reason, message)


def is_stalled(status: JobStatus) -> bool:
    """Return whether the last failure of a job is a stall. The programs of a stalled job still run."""
    return status.failure is not None and status.failure.failure_class == OperatorFailureClass.STALLED


def _step(progress: ProgressStatus | None) -> int | None:
    return progress.step if progress else None


def _mark(progress: ProgressStatus | None) -> object:
    """Return a value that changes while the training advances: its step, or figures from an output without steps."""
    if progress is None or progress.step is not None:
        return _step(progress)
    return (progress.epoch, progress.updated_time) if progress.source else None


def _stacks(shape: Shape) -> str:
    attempts = {*shape.attempts.values()}
    if shape.artifacts_uri is None:
        return f"{contract.ROOT / contract.LOGS}/{contract.STACKS_FILES} of each replica"
    attempt = attempts.pop() if len(attempts) == 1 else "*"
    return f"{shape.artifacts_uri}/{contract.LOGS}/attempt-{attempt}/{contract.STACKS_FILES}"


def _unknown(shape: Shape) -> str:
    return (
        f"it is unknown whether the training is stalled: {shape.reporter} does not answer on port "
        f"{contract.PROGRESS_PORT}; a network policy may block the port, or the image may lack dtj-launch"
    )
