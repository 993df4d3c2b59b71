"""Detect a stalled training: all pods run and the step does not change (runPolicy.stallTimeoutSeconds).

A stall requires an answer of the pod of rank 0 with the stored step. A new operator therefore never restarts a job
that continued while no operator ran.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dtj.api.condition_types import ConditionType
from dtj.api.failure_classes import OperatorFailureClass
from dtj.api.reasons import Reason
from dtj.api.spec import StallPolicy
from dtj.api.status import ConditionStatus, Failure, JobStatus, ProgressStatus
from dtj.status.draft import Draft
from dtj.status.failure import Loss
from dtj.status.observed import Expected, Observed
from dtj.status.overdue import some
from dtj.status.pods import PodView
from dtj.status.times import seconds_since, written_time
from dtj_trainer import contract

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
    return written_time(draft.now) if moved or old.step_time is None else old.step_time


def look(draft: Draft, expected: Expected, observed: Observed, named: Mapping[str, PodView]) -> Stall:
    """Check whether the training is stalled while all pods run, and set the condition Stalled.

    The draft must have its step time and the condition Running. named: the pods of the attempt, by name.
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
    ended = [name for name in expected.decisive if name in named and named[name].succeeded]
    over = expected.reporter in ended
    if observed.program_ended and not over:
        _clear(draft, Reason.PROGRAM_ENDED, "the training is over, and its files are exported and uploaded")
        return Stall()
    if not over and not observed.answers:
        if observed.answers is False and not (known and known.status is ConditionStatus.TRUE):
            draft.set(ConditionType.STALLED, None, Reason.NO_ANSWER, _unknown(expected))
        return Stall()  # The answer of the pod triggers the next pass.
    where = "no step was reported" if step is None else f"the step has stayed at {step}"
    stacks = f"the stacks of all ranks are in {_stacks(expected)}"
    if step is None:
        file = contract.ROOT / contract.PROGRESS_FILE
        stacks += f"; a program reports its steps by dtj_trainer.progress.report or in {file}"
    if ended:
        where = f"{some(ended)} ended with exit code 0, and {where}"
    read = draft.progress is not None and draft.progress.source == "Output"
    if read and policy.stall_policy is StallPolicy.RESTART:
        stacks += (
            "; steps that are read from the program's output restart no job, unless "
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
        attempt=draft.job.status.current_attempt,
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
    """Return what changes when the training goes on: its step, or the figures of an output without steps."""
    if progress is None or progress.step is not None:
        return _step(progress)
    return (progress.epoch, progress.updated_time) if progress.source else None


def _stacks(expected: Expected) -> str:
    attempts = {*expected.attempts.values()}
    if expected.artifacts_uri is None:
        return f"{contract.ROOT / contract.LOGS}/{contract.STACKS_FILES} of each replica"
    attempt = attempts.pop() if len(attempts) == 1 else "*"
    return f"{expected.artifacts_uri}/{contract.LOGS}/attempt-{attempt}/{contract.STACKS_FILES}"


def _unknown(expected: Expected) -> str:
    return (
        f"{expected.reporter} does not answer on port {contract.PROGRESS_PORT}: whether the training is stalled is "
        "not known; a network policy may block the port, or the image may lack dtj-launch"
    )
