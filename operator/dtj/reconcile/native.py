"""The requests that follow from a decision, for a job whose pods this operator creates. Pure."""

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
from dtj.reconcile.view import data_digest
from dtj.status.decision import Decision, Pods
from dtj.status.mpijob import MpiJob
from dtj.status.overdue import describe_overdue
from dtj.status.pods import PodView


class Native:
    """See `Delegate`."""

    mpijob: MpiJob | None = None

    def look_again(self, _status: JobStatus, _now: datetime) -> float | None:
        """Return None: each change of a pod is an event that causes a pass."""
        return None

    def actions(self, seen: Snapshot, decision: Decision) -> list[Action]:
        """See `Delegate`.

        The snapshot has no objects of other owners. If another owner's object has the name of an object of the plan,
        the API server refuses the creation with 409.
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
    """Return the deletions of the pods that must end. The forced deletions come first."""
    return [
        *(
            ForceDeletePod(pod.name, pod.uid, describe_overdue(pod))
            for pod in pods
            if pod.name in decided.force
        ),
        *(DeletePod(pod.name, pod.uid) for pod in pods if pod.name in decided.end),
    ]


def config_actions(seen: Snapshot, plan: Plan) -> list[Action]:
    """Return the action that creates or updates the ConfigMap, if the ConfigMap differs from the plan."""
    name = plan.config["metadata"]["name"]
    known = next((config for config in seen.configs if config.name == name), None)
    if known is None:
        return [Create(plan.config)]
    # Running pods keep the configuration of their start: a changed spec applies from the next attempt on.
    if seen.observed.pods or known.digest == data_digest(plan.config["data"]):
        return []
    return [ReplaceData(plan.config)]


def _prepared(seen: Snapshot, plan: Plan, attempt: int, *, begins: bool) -> list[Action]:
    """Return the actions that create what the attempt's pods need. begins: whether this pass creates pods."""
    pods, result = seen.observed.pods, list[Action]()
    if not any(service.name == plan.service["metadata"]["name"] for service in seen.services):
        result.append(Create(plan.service))
    present = any(pod.attempt == plan.attempts.get(pod.name) for pod in pods)
    if plan.restarts_with is None and attempt > 1 and not present:
        result.append(AwaitEarlier(attempt))
    if begins and not any(pod.attempt == attempt for pod in pods):
        # Create both for each attempt: the operator has no permission to read them, and a user may have deleted them.
        result += [CreateOwn(plan.network_policy)] if plan.network_policy else []
        result += [CreateSshSecret()] if plan.ssh_secret else []
    result += config_actions(seen, plan)
    if begins and plan.pod_group is not None:
        result.append(EnsurePodGroup(plan.pod_group))
    return result
