"""A job whose pods this operator creates: which requests bring the cluster to what status and plan say. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from dtj.api.condition_types import ConditionType
from dtj.api.job import Job
from dtj.api.spec import CleanPodPolicy, Resume
from dtj.api.status import JobStatus
from dtj.api.unreadable import AnyJob
from dtj.plan.model import Plan, Replica
from dtj.reconcile.actions import (
    Action,
    AwaitEarlier,
    Create,
    CreateOwn,
    CreatePod,
    CreateSshSecret,
    DeletePod,
    DeletePodGroup,
    EnsurePodGroup,
    ExpireJob,
    ForceDeletePod,
    ReplaceData,
)
from dtj.reconcile.expectation import stored_attempts
from dtj.reconcile.snapshot import Snapshot
from dtj.reconcile.view import Owned
from dtj.status.cleaning import ends_pods
from dtj.status.draft import Evaluation
from dtj.status.evaluate import is_begun
from dtj.status.mpijob import MpiJob
from dtj.status.observed import Expected
from dtj.status.overdue import told_overdue
from dtj.status.pods import PodView


class Native:
    """See `Delegate`."""

    mpijob: MpiJob | None = None

    def expected(self, expected: Expected, _pods: Sequence[PodView], _attempt: int) -> Expected:
        """The pods have the names of the plan."""
        return expected

    def look_again(self, _status: JobStatus, _now: datetime) -> float | None:
        """Each change is an event."""
        return None

    def actions(self, seen: Snapshot, plan: Plan | None, decision: Evaluation) -> list[Action]:
        """See `Delegate`.

        Objects of another owner are not in the snapshot: making one of theirs is tried, and refused with 409.
        """
        return actions(seen.job, plan, decision, seen.observed.pods, seen.services, seen.configs)


def actions(
    job: AnyJob,
    plan: Plan | None,
    evaluation: Evaluation,
    pods: Sequence[PodView],
    services: Sequence[Owned],
    configs: Sequence[Owned],
) -> list[Action]:
    """What is to be done now, in order; job and evaluation carry the status that is stored."""
    forced = to_be_forced(evaluation, pods)
    if evaluation.status.finished:
        expired = [ExpireJob()] if evaluation.expired else []
        return [*forced, *clean_up(job, evaluation, pods), *_ungrouped(plan), *expired]
    if plan is not None:
        attempts = plan.attempts
    else:
        attempts = stored_attempts(job, evaluation.status, [pod.name for pod in pods])
    keep = job.run_policy.clean_pod_policy is CleanPodPolicy.NONE
    result = forced + [
        DeletePod(pod.name, pod.uid)
        for pod in pods
        if not pod.deleting
        and (
            pod.attempt < attempts.get(pod.name, evaluation.status.attempt)
            or (plan is not None and plan.restarts_with is not None and pod.name not in attempts)
            or pod.name in evaluation.end
            or (pod.name in evaluation.done and not pod.ended and not keep)
        )
    ]
    if plan is None:
        return result
    if evaluation.status.holds(ConditionType.SUSPENDED):
        result += _ungrouped(plan)
    taken = {pod.name for pod in pods}
    if evaluation.hold:
        wanted = evaluation.still_made - taken
        return result + [CreatePod(replica) for replica in plan.replicas if replica.name in wanted]
    if not any(service.name == plan.service["metadata"]["name"] for service in services):
        result.append(Create(plan.service))
    present = {pod.name: pod for pod in pods if pod.attempt == attempts.get(pod.name)}
    if plan.restarts_with is None and evaluation.status.attempt > 1 and not present:
        result.append(AwaitEarlier(evaluation.status.attempt))
    if plan.restarts_with is None and is_begun(evaluation.status, plan.created_last, present):
        # Whatever a changed spec asks for besides is for the next attempt.
        return result + config_actions(plan, {config.name: config for config in configs}, pods)
    due = [CreatePod(replica) for replica in _due(plan, present, job) if replica.name not in taken]
    if due and not any(pod.attempt == evaluation.status.attempt for pod in pods):
        # Once an attempt: the operator may read neither, and somebody may have deleted them.
        result += [CreateOwn(plan.network_policy)] if plan.network_policy else []
        result += [CreateSshSecret()] if plan.ssh_secret else []
    result += config_actions(plan, {config.name: config for config in configs}, pods)
    if due and plan.pod_group is not None:
        result.append(EnsurePodGroup(plan.pod_group))
    return result + due


def _ungrouped(plan: Plan | None) -> list[Action]:
    return [DeletePodGroup(plan.pod_group)] if plan is not None and plan.pod_group is not None else []


def to_be_forced(evaluation: Evaluation, pods: Sequence[PodView]) -> list[Action]:
    """Take away the pods that were told to end and did not."""
    return [
        ForceDeletePod(pod.name, pod.uid, told_overdue(pod)) for pod in pods if pod.name in evaluation.force
    ]


def clean_up(job: AnyJob, evaluation: Evaluation, pods: Sequence[PodView]) -> list[Action]:
    """End the pods that are left of a job that has ended, as its cleanPodPolicy says."""
    if not ends_pods(job, evaluation.status):
        return []
    leftover = [pod for pod in pods if not pod.deleting]
    if job.run_policy.clean_pod_policy is not CleanPodPolicy.ALL:
        leftover = [pod for pod in leftover if not pod.ended]
    return [DeletePod(pod.name, pod.uid) for pod in leftover]


def config_actions(plan: Plan, configs: Mapping[str, Owned], pods: Sequence[PodView]) -> list[Action]:
    """Make the ConfigMap, or bring it to what the plan says."""
    known = configs.get(plan.config["metadata"]["name"])
    if known is None:
        return [Create(plan.config)]
    # Pods that run keep what they were started with: a changed spec holds from the next attempt on.
    return [ReplaceData(plan.config)] if known.data != plan.config["data"] and not pods else []


def _due(plan: Plan, pods: Mapping[str, PodView], job: AnyJob) -> list[Replica]:
    """Pods of the first stage that is not complete and there."""
    at_once = plan.next_stage_on_running and not may_restore(job)
    for stage in plan.stages:
        absent = [replica for replica in stage if replica.name not in pods]
        if absent:
            return absent
        if not all(_there(pods[replica.name], at_once) for replica in stage):
            return []
    return []


def _there(pod: PodView, at_once: bool) -> bool:
    """Whether the pods of the next stage may come. at_once: they need not be told that it is ready: that is by a
    probe, a second or more after it is so.
    """
    return pod.succeeded or (pod.running and (pod.ready or at_once))


def may_restore(job: AnyJob) -> bool:
    """Whether its pods may have a checkpoint to restore before they are ready, which takes as long as it takes."""
    status, artifacts = job.status, job.spec.artifacts if isinstance(job, Job) else None
    return (
        status.attempt > 1
        or (status.artifacts is not None and status.artifacts.checkpoint is not None)
        or (artifacts is not None and artifacts.resume is Resume.FROM_URI)
    )
