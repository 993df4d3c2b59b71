"""Compute the whole status of a job from its observed state.

This module makes every decision about a job. `reconcile` carries the decisions out. The stored status says whether an
attempt has begun, failed or ended. A restarted operator therefore continues from the stored status.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Literal

from dtj.api.condition_types import ConditionType
from dtj.api.failure_classes import OperatorFailureClass
from dtj.api.job import Fault, in_a_line
from dtj.api.reasons import Reason
from dtj.api.status import Failure, JobStatus, Phase, ReplicaStatus
from dtj.api.unreadable import AnyJob
from dtj.status.backoff import is_lost_again, pause, pause_left, restarts_in_a_row
from dtj.status.cleaning import counted_out, ends_pods, left_over, superseded
from dtj.status.completed import with_completed, with_shown
from dtj.status.creation import due, is_begun
from dtj.status.decision import Decision, Pods
from dtj.status.delegated import abandoned, mpijob_held, mpijob_loss, of_attempt, released, was_held
from dtj.status.draft import LONGEST_CONDITION, Draft
from dtj.status.ending import after_training, is_trained
from dtj.status.failure import Loss, describe
from dtj.status.fruitless import skip_checkpoint
from dtj.status.gang import group_wait, is_queued
from dtj.status.lasting import REMEDY, is_lasting
from dtj.status.losses import evaluator_loss, pods_loss, settle_left, start_again, told_again, vanished
from dtj.status.mpijob import MpiJob
from dtj.status.next_attempt import count_nodes, evaluator_lost, next_attempt
from dtj.status.not_started import not_started
from dtj.status.observed import Expected, Observed, obstacle
from dtj.status.overdue import describe_ending, with_overdue
from dtj.status.pods import PodView
from dtj.status.replicas import present, replica_statuses
from dtj.status.report_merge import merge_reports
from dtj.status.stall import look, step_time
from dtj.status.state import with_state
from dtj.status.suspension import deactivation, held, is_held, is_suspending, resumed, suspended
from dtj.status.times import seconds_since, written_time
from dtj.status.waits import after_the_end, no_pods, retry_begins, start_left, too_late
from dtj_trainer.contract.failure_class import FailureClass


def evaluate(
    job: AnyJob, expected: Expected | None, faults: Sequence[Fault], observed: Observed, now: datetime
) -> Decision:
    """Return the present status of a job and the actions to take.

    expected: the plan of the present attempt; None when the job has faults and therefore no plan.
    """
    decision = _evaluate(job, expected, faults, observed, now)
    # mpi-operator deletes the pods of an MPIJob.
    if decision.status.finished and observed.mpijob is None and ends_pods(job, decision.status):
        decision = replace(decision, status=counted_out(decision.status))
    decision = replace(decision, pods=_pods(job, expected, observed, decision, now))
    return with_overdue(with_state(decision, now), observed.pods, now)


def _pods(
    job: AnyJob, expected: Expected | None, observed: Observed, decision: Decision, now: datetime
) -> Pods:
    """Combine the pods of the decision with the rules that hold for every job."""
    status, pods, make = decision.status, observed.pods, decision.pods.make
    if expected is not None and expected.handed_over:
        make, end = frozenset[str](), abandoned(job, status, observed.mpijob, pods, now)
    elif status.finished:
        end = left_over(job, status, pods)
    else:
        end = decision.pods.end | superseded(job, expected, pods)
    return Pods(make, end - {pod.name for pod in pods if pod.deleting})


def _evaluate(
    job: AnyJob, expected: Expected | None, faults: Sequence[Fault], observed: Observed, now: datetime
) -> Decision:
    old = job.status
    if old.finished:
        return after_the_end(job, _settled(job, expected, observed), now)
    draft = Draft(job, now)
    attempt = old.current_attempt
    start = old.start_time or written_time(now)
    draft.attempt, draft.start_time = attempt, start
    draft.set(ConditionType.CREATED, True, Reason.JOB_CREATED, "the operator has taken up the job")
    waits = any(fault.passes for fault in faults)
    if faults and not observed.invalid and (waits or _is_taken_up(old, observed)):
        # A user edited a running job, or a newer operator has a new rule. Create no pod until the spec is valid.
        reason, message = no_pods(draft, faults, waits=waits)
        suspends = job.run_policy.suspend or is_suspending(old)
        if expected is None or not (observed.pods or suspends):
            if waits and not old.all_running_time:
                draft.set(ConditionType.RUNNING, False, reason, message)
            return Decision(draft.status(start_time=old.start_time, phase=old.phase or Phase.PENDING))
        decision = _of_pods(job, expected, observed, draft)
        return replace(decision, pods=replace(decision.pods, make=frozenset()), prepare=False)
    if observed.invalid and not faults and expected and _has_begun(old):
        # The API server took such pods before: a webhook that changes pods, for example, has made this one invalid.
        # Replicas that run continue.
        told = in_a_line(observed.invalid, LONGEST_CONDITION)
        draft.set(ConditionType.CREATED, True, Reason.SPEC_INVALID, told)
        observed = replace(observed, refusal=(Reason.SPEC_INVALID, told))
    elif faults or observed.invalid or expected is None:
        return Decision(_invalid(draft, [*faults, *observed.invalid]))
    return _of_pods(job, expected, observed, draft)


def _is_taken_up(old: JobStatus, observed: Observed) -> bool:
    """Return whether the job has or had pods, or is suspended. An invalid spec does not end such a job."""
    return bool(observed.pods) or _has_begun(old) or old.holds(ConditionType.SUSPENDED)


def _has_begun(old: JobStatus) -> bool:
    """Return whether all pods have run, or an attempt was lost."""
    return old.all_running_time is not None or old.attempt > 1


def _of_pods(job: AnyJob, expected: Expected, observed: Observed, draft: Draft) -> Decision:
    """Evaluate a job with a plan by its pods."""
    old, now = job.status, draft.now
    attempt, start = old.current_attempt, old.start_time or written_time(now)
    draft.completed_indexes, pods = with_completed(job, expected, present(expected, observed.pods, attempt))
    named = {pod.name: pod for pod in pods}
    draft.replica_statuses = replica_statuses(expected, pods)
    merge_reports(draft, expected, observed, named)
    draft.step_time = step_time(draft)
    _set_bottleneck(draft, observed)

    queued = is_queued(job, expected, pods)
    if queued:
        draft.start_time = None
    deadline = job.run_policy.active_deadline_seconds
    left = None if deadline is None or queued else deadline - seconds_since(start, now)
    missing = vanished(job, expected, pods)
    # Before all pods have run, the operator recreates a deleted pod, unless the pod belongs to a group.
    lost_names = missing if old.all_running_time or expected.all_or_nothing else ()
    lost = evaluator_loss(attempt, old, expected, pods, lost_names, job.run_policy.backoff_limit)
    mpijob = of_attempt(observed, attempt)
    if is_trained(old, expected, named) or (mpijob is not None and mpijob.succeeded):
        return after_training(draft, expected, observed, named, left, lost)
    suspension = _suspended(draft, expected, observed, pods, mpijob)
    if suspension is not None:
        return suspension
    loss = pods_loss(draft, expected, pods, missing, lost_names) or mpijob_loss(attempt, mpijob)
    if left is not None and left <= 0 and loss is None:
        return Decision(_deadline_exceeded(draft, expected, deadline or 0, pods, observed))
    if loss is not None:
        wait = settle_left(loss, now)
        if wait > 0:
            draft.set(ConditionType.RUNNING, False, Reason.RANK_LOST, loss.failure.message or "")
            status = draft.status(phase=old.phase or Phase.PENDING)
            return Decision(
                status, wait, Pods(due(job, expected, with_shown(observed.pods, pods))), prepare=True
            )
        return _lost(draft, attempt, loss, expected, pods, lost_names)
    if lost is not None:
        return evaluator_lost(draft, lost, expected, pods)
    return _going_on(draft, expected, observed, pods, left)


def _suspended(
    draft: Draft, expected: Expected, observed: Observed, pods: Sequence[PodView], mpijob: MpiJob | None
) -> Decision | None:
    """Evaluate a job that is suspended or resumes; return None for any other job."""
    job, old = draft.job, draft.job.status
    evicted = deactivation(expected, pods)
    if job.run_policy.suspend or is_suspending(old) or evicted is not None:
        return suspended(draft, expected, observed.pods, evicted)
    if is_held(job):
        return held(draft)
    if mpijob is not None and mpijob.suspended:
        return mpijob_held(draft, mpijob, pods)
    if was_held(old):
        return released(draft)
    return resumed(draft, expected) if old.holds(ConditionType.SUSPENDED) else None


def _invalid(draft: Draft, faults: Sequence[Fault]) -> JobStatus:
    draft.failure = Failure(failure_class=OperatorFailureClass.VALIDATION_FAILED, message=in_a_line(faults))
    return draft.finish(Phase.FAILED, Reason.VALIDATION_FAILED, in_a_line(faults, LONGEST_CONDITION))


def _deadline_exceeded(
    draft: Draft, expected: Expected, deadline: int, pods: Sequence[PodView], observed: Observed
) -> JobStatus:
    message = f"not done {deadline} s after its start (runPolicy.activeDeadlineSeconds)"
    runs = draft.job.status.holds(ConditionType.RUNNING)
    why = None if runs else group_wait(draft.job, expected, pods, obstacle(pods, observed.refusal))
    if why is not None:
        message += f"; it waited for: {why[1]}"
    elif draft.job.status.holds(ConditionType.STALLED):
        message += f"; {draft.conditions[ConditionType.STALLED].message}"
    known = why is not None and why[0] in (Reason.IMAGE_PULL, Reason.UNSCHEDULABLE)
    kind = why[0] if why and known else OperatorFailureClass.DEADLINE_EXCEEDED
    draft.failure = Failure(attempt=draft.job.status.current_attempt, failure_class=kind, message=message)
    return draft.finish(Phase.FAILED, Reason.DEADLINE_EXCEEDED, message)


def _lost(
    draft: Draft,
    attempt: int,
    loss: Loss,
    expected: Expected,
    pods: Sequence[PodView],
    lost_names: Collection[str],
) -> Decision:
    """Count a loss. Restart the affected replicas, or fail the job."""
    limit = draft.job.run_policy.backoff_limit
    restarts = draft.job.status.restarts
    message = f"attempt {attempt}: {describe(loss.failure)}"
    application = not loss.excuse and not loss.infrastructure
    if loss.excuse:
        message += f"; {loss.excuse}"
    else:
        draft.failure = loss.failure
    if application:
        message += skip_checkpoint(draft, loss, expected)
    if application and loss.failure.failure_class == FailureClass.CODE_UNUSABLE:
        return Decision(draft.finish(Phase.FAILED, Reason.CODE_UNUSABLE, message))
    if application and is_lasting(draft.job, loss.failure, draft.progress, draft.artifacts):
        return Decision(draft.finish(Phase.FAILED, Reason.MODULE_NOT_FOUND, f"{message}; {REMEDY}"))
    if application and restarts.application >= limit:
        return Decision(draft.finish(Phase.FAILED, Reason.BACKOFF_LIMIT_EXCEEDED, message))
    # A replica that the cluster took restarts alone, without a pause unless the cluster takes the replica again.
    again_at_once = is_lost_again(draft.job, loss.failure.pod or "", draft.now)
    draft.restarts_in_a_row = restarts_in_a_row(
        draft.job.status,
        draft.now,
        counts=expected.restarts_with is None or expected.all_or_nothing or application or again_at_once,
    )
    draft.retry_time = retry_begins(draft, loss)
    again = None
    if expected.restarts_with is not None:
        again = start_again(expected, pods, [*lost_names, *loss.others, loss.failure.pod or ""])
        message += f"; {told_again(again, len(expected.attempts))}"
    cause: Literal["infrastructure", "application"] = (
        "infrastructure" if loss.infrastructure else "application"
    )
    next_attempt(draft, expected, pods, None if loss.excuse else cause, again)
    message += count_nodes(draft, loss)
    reason: str = Reason.INFRASTRUCTURE_FAILURE if loss.infrastructure else Reason.APPLICATION_FAILURE
    if loss.excuse:
        reason = loss.failure.failure_class or reason
    draft.set(ConditionType.RUNNING, False, reason, message)
    draft.set(ConditionType.RESTARTING, True, reason, message)
    draft.restart_time = written_time(draft.now)
    return Decision(draft.status(phase=Phase.RESTARTING), look_again=0.0)


def _going_on(
    draft: Draft, expected: Expected, observed: Observed, pods: Sequence[PodView], left: float | None
) -> Decision:
    old = draft.job.status
    named = {pod.name: pod for pod in pods}
    began = old.all_running_time is not None
    alone = expected.restarts_with is not None
    wait = pause_left(old, draft.now)
    ending = [pod for pod in observed.pods if pod.attempt < expected.attempts.get(pod.name, old.attempt)]
    waits = [seconds for seconds in (left, wait) if seconds is not None and seconds > 0]
    # A replica that restarts alone waits only for its own old pod, because both pods have the same name.
    begins = wait <= 0 and (alone or not ending)
    pods_to_create = Pods(
        due(draft.job, expected, with_shown(observed.pods, pods)) if begins else frozenset()
    )

    def runs(name: str) -> bool:
        pod = named.get(name)
        if pod is None or (pod.succeeded and not alone and name not in expected.decides):
            return False
        answers = pod.ready or (began and not old.holds(ConditionType.RESTARTING))
        return pod.succeeded or (pod.running and answers)

    # A running attempt keeps its pods. Changes of the spec take effect in the next attempt.
    fixed = not alone and is_begun(old, expected.created_last, named)
    needed = [name for name in expected.needed if not fixed or name in named]
    if all(map(runs, needed)):
        done = 0 if alone else sum(named[name].succeeded for name in needed)
        message = f"all {len(needed)} pods run" if not done else _partly_done(done, len(needed))
        draft.set(ConditionType.RESTARTING, False, Reason.JOB_RUNNING, message)
        if expected.evaluator is not None and not runs(expected.evaluator):
            why = obstacle([pod for pod in pods if pod.name == expected.evaluator], observed.refusal)
            message += f" but {expected.evaluator}" + (f": {why[1]}" if why else "")
        draft.set(ConditionType.RUNNING, True, Reason.JOB_RUNNING, message)
        stall = look(draft, expected, observed, named)
        if stall.loss is not None:
            return _lost(draft, old.current_attempt, stall.loss, expected, pods, expected.needed)
        waits += [stall.look_again] if stall.look_again is not None else []
        running = old.all_running_time or written_time(draft.now)
        status = draft.status(phase=Phase.RUNNING, all_running_time=running)
        return Decision(status, min(waits, default=None), pods_to_create, begins, stalled_since=stall.since)
    why = obstacle([pod for pod in pods if pod.name in expected.needed], observed.refusal)
    why = group_wait(draft.job, expected, pods, why)
    if ending:
        why = (
            Reason.PODS_ENDING,
            f"waits until {describe_ending(ending)} of the previous attempt ended: checkpoints are uploaded first",
        )
    elif wait > 0:
        # Name the whole pause instead of the remaining one, so that the message stays constant during the pause.
        why = Reason.BACKOFF, f"waits {pause(old):.0f} s before the next attempt"
    start = start_left(draft)
    if start is not None and start <= 0:
        return Decision(too_late(draft, expected, observed, pods, why))
    why, soon = not_started(why, [pod for pod in pods if pod.name in expected.needed], draft.now)
    waits += soon
    reason, message = why or (
        Reason.RANK_LOST if began else Reason.PODS_STARTING,
        f"{sum(p.running for p in pods)} of {len(expected.attempts)} pods run",
    )
    draft.set(ConditionType.RUNNING, False, reason, message)
    if old.holds(ConditionType.RESTARTING):
        phase = Phase.RESTARTING
    elif began:
        phase = old.phase or Phase.RUNNING
    elif pods and all(pod.scheduled for pod in pods) and observed.refusal is None:
        phase = Phase.STARTING
    else:
        phase = Phase.PENDING
    waits += [start] if start is not None else []
    return Decision(draft.status(phase=phase), min(waits, default=None), pods_to_create, begins)


def _partly_done(done: int, of: int) -> str:
    """Describe an attempt of which some pods have completed their part, while the others still run."""
    return f"{of - done} of {of} pods run, the others ended with exit code 0"


def _set_bottleneck(draft: Draft, observed: Observed) -> None:
    bottleneck = observed.bottleneck
    if bottleneck is None:
        if observed.progress is not None:
            draft.set(
                ConditionType.BOTTLENECK,
                False,
                Reason.NO_BOTTLENECK,
                "the last progress report names no bottleneck",
            )
        return
    reason, message = bottleneck
    draft.set(ConditionType.BOTTLENECK, True, reason, message)


def _settled(job: AnyJob, expected: Expected | None, observed: Observed) -> JobStatus:
    """Return the status of a job that has ended, with the present counts of active and ready pods."""
    old = job.status
    seen = old.model_copy(update={"observed_generation": job.generation})
    if expected is None:
        return seen
    statuses = {
        role: (old.replica_statuses.get(role) or ReplicaStatus()).model_copy(
            update={"active": status.active, "ready": status.ready}
        )
        for role, status in replica_statuses(expected, present(expected, observed.pods, old.attempt)).items()
    }
    return seen.model_copy(update={"replica_statuses": statuses})
