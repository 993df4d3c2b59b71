"""A job whose pods this operator creates: which requests bring the cluster to what was decided. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from dtj.api.condition_types import ConditionType
from dtj.api.status import JobStatus
from dtj.plan.model import Plan
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
from dtj.reconcile.snapshot import Snapshot
from dtj.status.draft import Evaluation, Pods
from dtj.status.mpijob import MpiJob
from dtj.status.observed import Expected
from dtj.status.overdue import describe_overdue
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

    def actions(self, seen: Snapshot, decision: Evaluation) -> list[Action]:
        """See `Delegate`.

        Objects of another owner are not in the snapshot: making one of theirs is tried, and refused with 409.
        """
        plan, status = seen.plan, decision.status
        result = ends(seen.observed.pods, decision.pods)
        rests = status.finished or status.holds(ConditionType.SUSPENDED)
        if rests and plan is not None and plan.pod_group is not None:
            result.append(DeletePodGroup(plan.pod_group))
        if status.finished:
            return [*result, ExpireJob()] if decision.expired else result
        if plan is None:
            return result
        created = [CreatePod(replica) for replica in plan.replicas if replica.name in decision.pods.make]
        if not decision.prepare:
            return [*result, *created]
        return [*result, *_prepared(seen, plan, status.attempt, begins=bool(created)), *created]


def ends(pods: Sequence[PodView], decided: Pods) -> list[Action]:
    """Delete the pods that are to end: first those that are deleted by force."""
    return [
        *(
            ForceDeletePod(pod.name, pod.uid, describe_overdue(pod))
            for pod in pods
            if pod.name in decided.force
        ),
        *(DeletePod(pod.name, pod.uid) for pod in pods if pod.name in decided.end),
    ]


def config_actions(seen: Snapshot, plan: Plan) -> list[Action]:
    """Make the ConfigMap, or bring it to what the plan says."""
    name = plan.config["metadata"]["name"]
    known = next((config for config in seen.configs if config.name == name), None)
    if known is None:
        return [Create(plan.config)]
    # Pods that run keep what they were started with: a changed spec holds from the next attempt on.
    changed = known.data != plan.config["data"] and not seen.observed.pods
    return [ReplaceData(plan.config)] if changed else []


def _prepared(seen: Snapshot, plan: Plan, attempt: int, *, begins: bool) -> list[Action]:
    """The objects that the attempt's pods need. begins: whether pods are about to be created."""
    pods, result = seen.observed.pods, list[Action]()
    if not any(service.name == plan.service["metadata"]["name"] for service in seen.services):
        result.append(Create(plan.service))
    present = any(pod.attempt == plan.attempts.get(pod.name) for pod in pods)
    if plan.restarts_with is None and attempt > 1 and not present:
        result.append(AwaitEarlier(attempt))
    if begins and not any(pod.attempt == attempt for pod in pods):
        # Once an attempt: the operator may read neither, and somebody may have deleted them.
        result += [CreateOwn(plan.network_policy)] if plan.network_policy else []
        result += [CreateSshSecret()] if plan.ssh_secret else []
    result += config_actions(seen, plan)
    if begins and plan.pod_group is not None:
        result.append(EnsurePodGroup(plan.pod_group))
    return result
