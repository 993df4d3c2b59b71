"""`status.state`: the phase of a job, or instead a word for a lasting problem, such as ImagePullBackOff.

Unfinished and failed jobs have different words, so that one word tells whether a job may still succeed.
docs/status.md describes the words for users, and a test compares the page with this module.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import datetime

from dtj.api.reasons import FAILED, FAILURE_CLASSES, OBSTACLES, QUIET, OperatorFailureClass, Reason
from dtj.api.status import OF_UPLOADS, Condition, ConditionStatus, ConditionType, JobStatus, Phase
from dtj.status.decision import Decision
from dtj.status.times import seconds_since
from dtj_trainer.contract.failure_class import FailureClass

LASTING_SECONDS = 30.0
"""Seconds after which an obstacle to running pods becomes the state. Schedulers, registries and autoscalers often
remove an obstacle sooner."""
IMAGE_PULL_BACK_OFF = "ImagePullBackOff"
"""kubectl's word for an image that can't be pulled."""
_WORD = re.compile(r"[A-Z][A-Za-z0-9]{1,62}")
_MESSAGE_LENGTH = 256
_PHASES = frozenset(Phase)
# Reasons of `Running` with status False that are part of a normal course, and never become the state.
_PASSING = (QUIET - {Reason.POD_NOT_STARTED}) | {
    Reason.INFRASTRUCTURE_FAILURE,
    Reason.APPLICATION_FAILURE,
    Reason.COMPLETED,
    Reason.SUSPENDING,
    Reason.WORKLOAD_DEACTIVATED,
    Reason.MPIJOB_SUSPENDED,
    Reason.MPIJOB_RESUMED,
    *(frozenset(FAILURE_CLASSES) - OBSTACLES),
}
# Reasons that become the state at once: they are only set after a wait, or tell where the job waits.
_AT_ONCE = frozenset({Reason.QUEUED, Reason.POD_NOT_STARTED, Reason.MPIJOB_NOT_TAKEN_UP})
# Failure classes that are the state of a failed job, because they tell more than the reason of `Failed`. Words that
# also are states of unfinished jobs are left out.
FAILURE_WORDS = (
    frozenset(FAILURE_CLASSES)
    - OBSTACLES
    - {
        FailureClass.APPLICATION_ERROR,
        OperatorFailureClass.STALLED,
    }
)


@dataclass(frozen=True, slots=True)
class JobState:
    """The state of a job."""

    word: str
    """The state: one CamelCase word."""
    message: str | None
    """The cause of the state, in one line; None if the word tells all."""
    changes_in: float | None = None
    """Seconds until the word changes because of the time alone."""


def state_of(status: JobStatus, now: datetime | None = None) -> JobState | None:
    """Return the state of a job with this phase, these conditions and this failure; None before it has a phase.

    now: the time with which LASTING_SECONDS of an obstacle are compared; None: every obstacle counts as lasting.
    """
    phase = status.phase
    if phase is None:
        return None
    if phase is Phase.FAILED:
        return JobState(_failed(status), _message(status, ConditionType.FAILED))
    if phase is Phase.SUCCEEDED:
        return JobState(phase.value, _upload_trouble(status))
    if phase is Phase.SUSPENDED:
        return JobState(phase.value, _message(status, ConditionType.SUSPENDED))
    created = status.conditions.by_type.get(ConditionType.CREATED)
    if created is not None and created.reason == Reason.SPEC_INVALID:
        return JobState(Reason.SPEC_INVALID, _line(created.message))
    if phase is Phase.RUNNING:
        for kind in (ConditionType.STALLED, *OF_UPLOADS):
            if kind in status.conditions.holding:
                return JobState(kind.value, _message(status, kind))
    return _waiting(status, phase, now)


def shown_state(status: JobStatus) -> tuple[str | None, str | None]:
    """Return the stored word and its reason; both None before the operator has seen the job.

    A status that an earlier operator stored, or that a pod recorded as the end of its job, has no word. The word and
    its reason are then computed from the other fields.
    """
    if status.state is not None:
        return status.state, status.message
    state = state_of(status)
    return (state.word, state.message) if state else (None, None)


def with_state(decision: Decision, now: datetime) -> Decision:
    """Write the state into the status of a decision, and look again when the word changes."""
    state = state_of(decision.status, now)
    if state is None:
        return decision
    status = decision.status.model_copy(update={"state": state.word, "message": state.message})
    waits = [wait for wait in (decision.look_again, state.changes_in) if wait is not None]
    return replace(decision, status=status, look_again=min(waits, default=None))


def _waiting(status: JobStatus, phase: Phase, now: datetime | None) -> JobState:
    """Return the state of an unfinished job that has no other problem than that not all its pods run."""
    running, cause = status.conditions.by_type.get(ConditionType.RUNNING), None
    if ConditionType.RESTARTING in status.conditions.holding:
        cause = _message(status, ConditionType.RESTARTING)
    if running is None or running.status is not ConditionStatus.FALSE or running.reason in _PASSING:
        return JobState(phase.value, cause)
    word, message, left = _obstacle(running, phase), _line(running.message), 0.0
    if now is not None and word != phase and running.reason not in _AT_ONCE:
        left = LASTING_SECONDS - seconds_since(_since(status, running), now)
    return JobState(phase.value, message, left) if left > 0 else JobState(word, message)


def _since(status: JobStatus, running: Condition) -> str:
    """Return since when pods could run: the start of the job, its admission by a queue, or its last restart."""
    return max(running.last_transition_time, status.start_time or "", status.restart_time or "")


def _obstacle(running: Condition, phase: Phase) -> str:
    """Return the word for what keeps pods from running. It may be a word of the kubelet."""
    word = IMAGE_PULL_BACK_OFF if running.reason == Reason.IMAGE_PULL else running.reason
    return word if _WORD.fullmatch(word) and word not in _PHASES else phase.value


def _failed(status: JobStatus) -> str:
    """Return why a job failed. A program may give its failure any class, so that only known ones count."""
    kind = status.failure.failure_class if status.failure else None
    failed = status.conditions.by_type.get(ConditionType.FAILED)
    if kind in FAILURE_WORDS:
        return str(kind)
    return failed.reason if failed is not None and failed.reason in FAILED else Phase.FAILED.value


def _upload_trouble(status: JobStatus) -> str | None:
    return next((_message(status, kind) for kind in OF_UPLOADS if kind in status.conditions.holding), None)


def _message(status: JobStatus, kind: ConditionType) -> str | None:
    found = status.conditions.by_type.get(kind)
    return _line(found.message) if found is not None else None


def _line(text: str) -> str | None:
    line = " ".join(text.split())
    return (line if len(line) <= _MESSAGE_LENGTH else f"{line[: _MESSAGE_LENGTH - 1]}…") or None
