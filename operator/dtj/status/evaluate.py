"""Computes the status of a job from its observed state. This module and those that it calls make all decisions.

`reconcile.decision` calls `evaluate` once in each pass, and `reconcile` carries the decisions out. Failure, restart,
success, suspension, start deadline and clean-up are modules of their own. The decisions depend on the stored status
and the observed state only, so that a restarted operator continues them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Literal

from dtj.api.job import Fault, in_a_line
from dtj.api.reasons import OperatorFailureClass, Reason
from dtj.api.shape import Shape
from dtj.api.status import ConditionType, Failure, JobStatus, Phase, ReplicaStatus
from dtj.api.stored_job import AnyJob
from dtj.status.clean_up import after_the_end, counted_out, ends_pods, left_over, superseded
from dtj.status.completed import with_completed, with_shown
from dtj.status.decision import Decision, PodChanges
from dtj.status.draft import LONGEST_CONDITION, Draft, earlier, present, replica_statuses
from dtj.status.failure import Loss, describe
from dtj.status.failure_policy import (
    REMEDY,
    evaluator_loss,
    is_lasting,
    pods_loss,
    settle_left,
    start_again,
    told_again,
    vanished,
)
from dtj.status.force_deletion import describe_ending, with_force_deletion
from dtj.status.in_place import awaiting_count, count_in_place
from dtj.status.mpijob import abandoned, mpijob_held, mpijob_loss, of_attempt, released, was_held
from dtj.status.observed import MpiJob, Observed, obstacle
from dtj.status.pods import PodSet, PodView
from dtj.status.progress import look, merge_reports, step_time
from dtj.status.restart_policy import (
    count_nodes,
    due,
    evaluator_lost,
    is_begun,
    is_lost_again,
    may_restart,
    next_attempt,
    pause,
    pause_left,
    restarts_in_a_row,
    skip_checkpoint,
)
from dtj.status.start_deadline import not_started, retry_begins, start_left, too_late
from dtj.status.state import with_state
from dtj.status.success_policy import after_training, is_trained
from dtj.status.suspension import (
    deactivation,
    group_wait,
    held,
    is_held,
    is_queued,
    is_suspending,
    resumed,
    suspended,
)
from dtj.status.times import seconds_since
from dtj_trainer.contract.failure_class import FailureClass

_AFTER_COUNT_SECONDS = 1.0
"""Seconds until the pass after a count of restarts in place, if the write of the status causes none."""


def no_pods(draft: Draft, faults: Sequence[Fault], *, waits: bool) -> tuple[str, str]:
    """Set the condition Created to the reason why no pod is created. Return the reason and the message.

    waits: whether the faults may disappear without a change of the job.
    """
    reason = Reason.NAMESPACE_FULL if waits else Reason.SPEC_INVALID
    message = in_a_line(faults, LONGEST_CONDITION)
    draft.set(ConditionType.CREATED, True, reason, message)
    return reason, message


def evaluate(
    job: AnyJob, shape: Shape | None, faults: Sequence[Fault], observed: Observed, now: datetime
) -> Decision:
    """Return the present status of a job and the actions to take.

    shape: the plan of the present attempt; None when the job has faults and therefore no plan.
    """
    decision = _evaluate(job, shape, faults, observed, now)
    # Set the counts of a finished job's pods to 0 if dtj deletes the pods. mpi-operator deletes those of an MPIJob.
    if decision.status.conditions.finished and observed.mpijob is None and ends_pods(job, decision.status):
        decision = replace(decision, status=counted_out(decision.status))
    decision = replace(decision, pods=_pods(job, shape, observed, decision, now))
    return with_force_deletion(with_state(decision, now), observed.pods.unusual, now)


def _pods(
    job: AnyJob, shape: Shape | None, observed: Observed, decision: Decision, now: datetime
) -> PodChanges:
    """Return the pods to create and to delete: those of the decision, and those that other rules end in any job."""
    status, pods, make = decision.status, observed.pods, decision.pods.make
    if shape is not None and shape.handed_over:
        make, end = frozenset[str](), abandoned(job, status, observed.mpijob, pods, now)
    elif status.conditions.finished:
        end = left_over(job, status, pods)
    else:
        end = decision.pods.end | superseded(job, shape, pods)
    return PodChanges(make, end - {pod.name for pod in pods.unusual if pod.deleting})


def _evaluate(
    job: AnyJob, shape: Shape | None, faults: Sequence[Fault], observed: Observed, now: datetime
) -> Decision:
    old = job.status
    if job.finished:
        return after_the_end(job, _settled(job, shape, observed), now)
    draft = Draft(job, now)
    attempt = job.attempt
    start = old.start_time or draft.time
    draft.attempt, draft.start_time = attempt, start
    draft.set(ConditionType.CREATED, True, Reason.JOB_CREATED, "the operator has taken up the job")
    waits = any(fault.passes for fault in faults)
    if faults and not observed.invalid and (waits or _is_taken_up(old, observed)):
        # A user edited a running job, or a newer operator has a new rule. Create no pod until the spec is valid.
        reason, message = no_pods(draft, faults, waits=waits)
        suspends = job.run_policy.suspend or is_suspending(old)
        if shape is None or not (observed.pods or suspends):
            if waits and not old.all_running_time:
                draft.set(ConditionType.RUNNING, False, reason, message)
            return Decision(draft.status(start_time=old.start_time, phase=old.phase or Phase.PENDING))
        decision = _of_pods(job, shape, observed, draft)
        return replace(decision, pods=replace(decision.pods, make=frozenset()), prepare=False)
    if observed.invalid and not faults and shape and _has_begun(old):
        # The API server has accepted pods of this spec before. For example, a new webhook has now made a pod invalid.
        # Running replicas continue.
        told = in_a_line(observed.invalid, LONGEST_CONDITION)
        draft.set(ConditionType.CREATED, True, Reason.SPEC_INVALID, told)
        observed = replace(observed, refusal=(Reason.SPEC_INVALID, told))
    elif faults or observed.invalid or shape is None:
        return Decision(_invalid(draft, [*faults, *observed.invalid]))
    return _of_pods(job, shape, observed, draft)


def _is_taken_up(old: JobStatus, observed: Observed) -> bool:
    """Return whether the job has or had pods, or is suspended. An invalid spec does not end such a job."""
    return bool(observed.pods) or _has_begun(old) or ConditionType.SUSPENDED in old.conditions.holding


def _has_begun(old: JobStatus) -> bool:
    """Return whether all pods have run, or an attempt was lost."""
    return old.all_running_time is not None or old.attempt > 1


def _of_pods(job: AnyJob, shape: Shape, observed: Observed, draft: Draft) -> Decision:
    """Evaluate a job with a plan by its pods."""
    old, now = job.status, draft.now
    attempt, start = job.attempt, old.start_time or draft.time
    # Count the pods of the attempt, with those that completed and are gone, and take over their reports.
    draft.completed_indexes, pods = with_completed(job, shape, present(shape, observed.pods, attempt))
    named = pods.named
    draft.replica_statuses = replica_statuses(shape, pods)
    merge_reports(draft, shape, observed, named)
    draft.step_time = step_time(draft)
    _set_bottleneck(draft, observed)
    if count_in_place(draft, shape, observed.in_place, named):
        # Store the count, and its event, before any decision that depends on it. The write causes the next pass. The
        # stored numbers of pods stay: by these, the next pass notices the pods that are gone.
        kept = {"replica_statuses": old.replica_statuses, "completed_indexes": old.completed_indexes}
        return Decision(draft.status(**kept), look_again=_AFTER_COUNT_SECONDS)

    # While a queue holds the job, its deadlines do not run.
    queued = is_queued(job, shape, pods)
    if queued:
        draft.start_time = None
    deadline = job.run_policy.active_deadline_seconds
    left = None if deadline is None or queued else deadline - seconds_since(start, now)
    # Find the pods that existed and no longer exist.
    missing = vanished(job, shape, pods)
    # Before all pods have run, the operator recreates a deleted pod, unless the pod belongs to a group.
    lost_names = missing if old.all_running_time or shape.all_or_nothing else ()
    lost = evaluator_loss(attempt, old, shape, pods, lost_names, job.run_policy.backoff_limit)
    mpijob = of_attempt(observed, attempt)
    # A training that is done can't fail any more: only the evaluator and the end are left.
    if is_trained(old, shape, named) or (mpijob is not None and mpijob.succeeded):
        return after_training(draft, shape, observed, named, left, lost)
    # Check for a suspension before losses: a suspension ends pods, and these ends are no failures.
    suspension = _suspended(draft, shape, observed, pods, mpijob)
    if suspension is not None:
        return suspension
    # If a pod has failed, report this failure even if the deadline has passed in the meantime.
    loss = pods_loss(draft, shape, pods, missing, lost_names) or mpijob_loss(attempt, mpijob)
    if left is not None and left <= 0 and loss is None:
        return Decision(_deadline_exceeded(draft, shape, deadline or 0, pods, observed))
    if loss is not None:
        # The first pod seen to fail need not be the cause: wait for the ends of the others, then restart or fail.
        wait = settle_left(awaiting_count(loss, shape, named), now)
        if wait > 0:
            draft.set(ConditionType.RUNNING, False, Reason.RANK_LOST, loss.failure.message or "")
            status = draft.status(phase=old.phase or Phase.PENDING)
            return Decision(
                status, wait, PodChanges(due(job, shape, with_shown(observed.pods, pods))), prepare=True
            )
        return _lost(draft, attempt, loss, shape, pods, lost_names)
    # The evaluator restarts alone.
    if lost is not None:
        return evaluator_lost(draft, lost, shape, pods)
    return _going_on(draft, shape, observed, pods, left)


def _suspended(
    draft: Draft, shape: Shape, observed: Observed, pods: PodSet, mpijob: MpiJob | None
) -> Decision | None:
    """Evaluate a job that is suspended or resumes; return None for any other job."""
    job, old = draft.job, draft.job.status
    evicted = deactivation(shape, pods)
    if job.run_policy.suspend or is_suspending(old) or evicted is not None:
        return suspended(draft, shape, observed.pods, evicted)
    if is_held(job):
        return held(draft)
    if mpijob is not None and mpijob.suspended:
        return mpijob_held(draft, mpijob, pods)
    if was_held(old):
        return released(draft)
    return resumed(draft, shape) if ConditionType.SUSPENDED in old.conditions.holding else None


def _invalid(draft: Draft, faults: Sequence[Fault]) -> JobStatus:
    draft.failure = Failure(failure_class=OperatorFailureClass.VALIDATION_FAILED, message=in_a_line(faults))
    return draft.finish(Phase.FAILED, Reason.VALIDATION_FAILED, in_a_line(faults, LONGEST_CONDITION))


def _deadline_exceeded(
    draft: Draft, shape: Shape, deadline: int, pods: Sequence[PodView], observed: Observed
) -> JobStatus:
    message = f"the job was not done {deadline} s after its start (runPolicy.activeDeadlineSeconds)"
    runs = ConditionType.RUNNING in draft.job.status.conditions.holding
    why = None if runs else group_wait(draft.job, shape, pods, obstacle(pods, observed.refusal))
    if why is not None:
        message += f"; it waited for: {why[1]}"
    elif ConditionType.STALLED in draft.job.status.conditions.holding:
        message += f"; {draft.conditions[ConditionType.STALLED].message}"
    known = why is not None and why[0] in (Reason.IMAGE_PULL, Reason.UNSCHEDULABLE)
    kind = why[0] if why and known else OperatorFailureClass.DEADLINE_EXCEEDED
    draft.failure = Failure(attempt=draft.job.attempt, failure_class=kind, message=message)
    return draft.finish(Phase.FAILED, Reason.DEADLINE_EXCEEDED, message)


def _lost(
    draft: Draft,
    attempt: int,
    loss: Loss,
    shape: Shape,
    pods: Sequence[PodView],
    lost_names: Collection[str],
) -> Decision:
    """Count a loss. Restart the affected replicas, or fail the job."""
    message = f"attempt {attempt}: {describe(loss.failure)}"
    application = not loss.excuse and not loss.infrastructure
    if loss.excuse:
        message += f"; {loss.excuse}"
    else:
        draft.failure = loss.failure
    # If the program failed before its first step, the next attempt must restore another checkpoint.
    if application:
        message += skip_checkpoint(draft, loss, shape)
    # Failures that no retry can mend, and those above the limit, end the job.
    if application and loss.failure.failure_class == FailureClass.CODE_UNUSABLE:
        return Decision(draft.finish(Phase.FAILED, Reason.CODE_UNUSABLE, message))
    if application and is_lasting(draft.job, loss.failure, draft.progress, draft.artifacts):
        return Decision(draft.finish(Phase.FAILED, Reason.MODULE_NOT_FOUND, f"{message}; {REMEDY}"))
    if application and not may_restart(draft.job):
        return Decision(draft.finish(Phase.FAILED, Reason.BACKOFF_LIMIT_EXCEEDED, message))
    # A replica that the cluster took restarts alone, without a pause unless the cluster takes the replica again.
    again_at_once = is_lost_again(draft.job, loss.failure.pod or "", draft.now)
    draft.restarts_in_a_row = restarts_in_a_row(
        draft.job.status,
        draft.now,
        counts=shape.restarts_with is None or shape.all_or_nothing or application or again_at_once,
    )
    draft.retry_time = retry_begins(draft, loss)
    # Choose the pods that start again: all pods, or the lost pod and its group (Shape.restarts_with).
    again = None
    if shape.restarts_with is not None:
        again = start_again(shape, pods, [*lost_names, *loss.others, loss.failure.pod or ""])
        message += f"; {told_again(again, len(shape.attempts))}"
    cause: Literal["infrastructure", "application"] = (
        "infrastructure" if loss.infrastructure else "application"
    )
    next_attempt(draft, shape, pods, None if loss.excuse else cause, again)
    message += count_nodes(draft, loss)
    reason: str = Reason.INFRASTRUCTURE_FAILURE if loss.infrastructure else Reason.APPLICATION_FAILURE
    if loss.excuse:
        reason = loss.failure.failure_class or reason
    draft.set(ConditionType.RUNNING, False, reason, message)
    draft.set(ConditionType.RESTARTING, True, reason, message)
    draft.restart_time = draft.time
    return Decision(draft.status(phase=Phase.RESTARTING), look_again=0.0)


def _going_on(draft: Draft, shape: Shape, observed: Observed, pods: PodSet, left: float | None) -> Decision:
    old, named = draft.job.status, pods.named
    began = old.all_running_time is not None
    alone = shape.restarts_with is not None
    wait = pause_left(old, draft.now)
    ending = earlier(shape, observed.pods, old.attempt)
    waits = [seconds for seconds in (left, wait) if seconds is not None and seconds > 0]
    # A replica that restarts alone waits only for its own old pod, because both pods have the same name.
    begins = wait <= 0 and (alone or not ending)
    pods_to_create = PodChanges(
        due(draft.job, shape, with_shown(observed.pods, pods)) if begins else frozenset()
    )

    def runs(name: str) -> bool:
        pod = named.get(name)
        if pod is None or (pod.succeeded and not alone and name not in shape.decides):
            return False
        answers = pod.ready or (began and ConditionType.RESTARTING not in old.conditions.holding)
        return pod.succeeded or (pod.running and answers)

    # The job runs when every needed pod runs. A running attempt keeps its pods: changes of the spec take effect in
    # the next attempt.
    fixed = not alone and is_begun(old, shape.created_last, named)
    needed = shape.needed & named.keys() if fixed else shape.needed
    unusual = [pod for pod in pods.unusual if pod.name in needed]
    if needed <= named.keys() and all(runs(pod.name) for pod in unusual):
        done = 0 if alone else sum(pod.succeeded for pod in unusual)
        message = f"all {len(needed)} pods run" if not done else _partly_done(done, len(needed))
        draft.set(ConditionType.RESTARTING, False, Reason.JOB_RUNNING, message)
        if shape.evaluator is not None and not runs(shape.evaluator):
            why = obstacle([pod for pod in pods if pod.name == shape.evaluator], observed.refusal)
            message += f" but {shape.evaluator}" + (f": {why[1]}" if why else "")
        draft.set(ConditionType.RUNNING, True, Reason.JOB_RUNNING, message)
        stall = look(draft, shape, observed, named)
        if stall.loss is not None:
            return _lost(draft, draft.job.attempt, stall.loss, shape, pods, shape.needed)
        waits += [stall.look_again] if stall.look_again is not None else []
        running = old.all_running_time or draft.time
        status = draft.status(phase=Phase.RUNNING, all_running_time=running)
        return Decision(status, min(waits, default=None), pods_to_create, begins, stalled_since=stall.since)
    # Not all pods run. Name what the job waits for: the cluster, a queue, pods of the last attempt, or the pause.
    why = obstacle([pod for pod in pods if pod.name in shape.needed], observed.refusal)
    why = group_wait(draft.job, shape, pods, why)
    if ending:
        why = (
            Reason.PODS_ENDING,
            f"waits until {describe_ending(ending)} of the previous attempt ended: pods first upload checkpoints",
        )
    elif wait > 0:
        # Name the whole pause instead of the remaining one, so that the message stays constant during the pause.
        why = Reason.BACKOFF, f"waits {pause(old):.0f} s before the next attempt"
    # If the job has waited longer than runPolicy.startDeadlineSeconds, the job fails.
    start = start_left(draft)
    if start is not None and start <= 0:
        return Decision(too_late(draft, shape, observed, pods, why))
    why, soon = not_started(why, [pod for pod in pods if pod.name in shape.needed], draft.now)
    waits += soon
    reason, message = why or (
        Reason.RANK_LOST if began else Reason.PODS_STARTING,
        f"{sum(p.running for p in pods)} of {len(shape.attempts)} pods run",
    )
    draft.set(ConditionType.RUNNING, False, reason, message)
    if ConditionType.RESTARTING in old.conditions.holding:
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


def _settled(job: AnyJob, shape: Shape | None, observed: Observed) -> JobStatus:
    """Return the status of a job that has ended, with the present counts of active and ready pods."""
    old = job.status
    seen = old.model_copy(update={"observed_generation": job.generation})
    if shape is None:
        return seen
    statuses = {
        role: (old.replica_statuses.get(role) or ReplicaStatus()).model_copy(
            update={"active": status.active, "ready": status.ready}
        )
        for role, status in replica_statuses(shape, present(shape, observed.pods, old.attempt)).items()
    }
    return seen.model_copy(update={"replica_statuses": statuses})
