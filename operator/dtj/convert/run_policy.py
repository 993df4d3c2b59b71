"""Conversion of Kubeflow's `runPolicy`. Older versions have some of its fields in `spec`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from dtj.api.identity import other_manager
from dtj.api.job import Manifest
from dtj.convert.kubeflow_fields import KubeflowRunPolicy
from dtj.convert.notes import Notes

# Values of `managedBy` that name an operator of Kubeflow.
_OF_KUBEFLOW = re.compile(r"([a-z0-9.-]+\.)?kubeflow\.org/")
_CLEAN_POD_POLICIES = ("Running", "All", "None")
_OF_SPEC = ("cleanPodPolicy", "ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit")
_PATH = "spec.runPolicy"


@dataclass(frozen=True)
class VersionDefaults:
    """The defaults of a version of a kind."""

    clean_pod_policy: str
    backoff_limit: int | None = None
    """The default of `backoffLimit`, independent of `restartPolicy`; None if `restartPolicy` decides about
    retries.
    """
    restart_policy: str = "Never"


def moved_into_run_policy(spec: Manifest) -> Manifest:
    """Return the spec with all fields of the run policy in `runPolicy`."""
    # MPIJobs and early TFJobs have these fields in `spec`.
    outside = {key: spec[key] for key in _OF_SPEC if key in spec}
    policy = spec.get("runPolicy", {})
    if not outside or not isinstance(policy, dict):
        return spec
    return {key: value for key, value in spec.items() if key not in outside} | {"runPolicy": outside | policy}


def run_policy(policy: KubeflowRunPolicy, defaults: VersionDefaults, queued: bool, notes: Notes) -> Manifest:
    """Return dtj's `runPolicy`. queued: whether Kueue queues the job."""
    converted: dict[str, Any] = {}
    if policy.suspend and queued:
        notes.add(
            f"{_PATH}.suspend",
            True,
            "left out: Kueue suspends a job of Kubeflow, but gates the pods of a DistributedTrainingJob",
        )
    elif policy.suspend:
        converted["suspend"] = True
    if policy.backoff_limit is not None:
        converted["backoffLimit"] = policy.backoff_limit
    if policy.active_deadline_seconds is not None:
        converted["activeDeadlineSeconds"] = policy.active_deadline_seconds
    if policy.ttl_seconds_after_finished is not None:
        converted["ttlSecondsAfterFinished"] = policy.ttl_seconds_after_finished
    converted |= _clean_pod_policy(policy.clean_pod_policy, defaults.clean_pod_policy, notes)
    if other_manager(policy.managed_by) and not _OF_KUBEFLOW.match(policy.managed_by or ""):
        converted["managedBy"] = policy.managed_by
    elif policy.managed_by is not None:
        notes.add(f"{_PATH}.managedBy", policy.managed_by, "left out: dtj's operator runs the job")
    for key, value in policy.rest.items():
        notes.add(f"{_PATH}.{key}", value, "left out: dtj has no such field")
    return converted


def _clean_pod_policy(policy: str | None, default: str, notes: Notes) -> Manifest:
    field = f"{_PATH}.cleanPodPolicy"
    if policy is None and default != "Running":
        notes.add(
            field,
            None,
            f"not given: now {default}, Kubeflow's default; pods that still run at the end of the job keep their "
            "nodes. Set Running to end these pods",
        )
        policy = default
    if policy in _CLEAN_POD_POLICIES[1:]:
        return {"cleanPodPolicy": policy}
    if policy not in (None, "Running"):
        notes.add(field, policy, "left out: dtj has no such policy; the default of dtj is Running")
    return {}


def retries_of(
    restart_policy: str | None, path: str, policy: Manifest, defaults: VersionDefaults, notes: Notes
) -> Manifest:
    """Return the run policy with the retries that Kubeflow gives the role that decides the end of the job."""
    has_limit = "backoffLimit" in policy
    if defaults.backoff_limit is not None:
        if restart_policy is not None:
            other_role_restarts(restart_policy, path, notes)
        if has_limit:
            return policy
        notes.add(
            f"{_PATH}.backoffLimit",
            None,
            f"not given: now {defaults.backoff_limit}, Kubeflow's default",
        )
        return {**policy, "backoffLimit": defaults.backoff_limit}
    if has_limit:
        other_role_restarts(restart_policy, path, notes)
        return policy
    reason = "" if restart_policy else f"not given, and {defaults.restart_policy} is Kubeflow's default: "
    if (restart_policy or defaults.restart_policy) == "Never":
        notes.add(
            f"{path}.restartPolicy",
            restart_policy,
            f"{reason}now runPolicy.backoffLimit: 0, for the whole job",
        )
        return {**policy, "backoffLimit": 0}
    notes.add(
        f"{path}.restartPolicy",
        restart_policy,
        f"{reason}now up to 3 retries of the whole job, dtj's default; Kubeflow sets no limit. Set "
        "runPolicy.backoffLimit for more",
    )
    return policy


def other_role_restarts(restart_policy: str | None, path: str, notes: Notes) -> None:
    """Note a `restartPolicy` that does not decide about the retries of the job."""
    if restart_policy is not None:
        notes.add(
            f"{path}.restartPolicy",
            restart_policy,
            "left out: the operator restarts pods, and runPolicy.backoffLimit limits the restarts",
        )
