"""Kubeflow's `runPolicy`, and the fields of it that older jobs have in `spec` itself."""

from __future__ import annotations

import re
from typing import Any

from dtj.api.job import Manifest
from dtj.api.managed_by import other_manager
from dtj.convert.form import RunPolicy
from dtj.convert.notes import Notes

# Kubeflow's own operators.
_OF_KUBEFLOW = re.compile(r"([a-z0-9.-]+\.)?kubeflow\.org/")
_SCHEDULING = {
    "minAvailable": "left out: needs runPolicy.schedulingPolicy.gang, which names the scheduler",
    "queue": "left out: needs runPolicy.schedulingPolicy.gang: Kueue or Volcano",
    "minResources": "left out: counted from the pods, with runPolicy.schedulingPolicy.gang",
    "scheduleTimeoutSeconds": "left out: runPolicy.startDeadlineSeconds ends a job that does not get its nodes",
}
_CLEAN_POD_POLICIES = ("Running", "All", "None")
_OF_SPEC = ("cleanPodPolicy", "ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit")


def moved_into_run_policy(spec: Manifest) -> Manifest:
    """The spec with the fields in `runPolicy` that MPIJob and early TFJobs also had beside it."""
    beside = {key: spec[key] for key in _OF_SPEC if key in spec}
    policy = spec.get("runPolicy", {})
    if not beside or not isinstance(policy, dict):
        return spec
    return {key: value for key, value in spec.items() if key not in beside} | {"runPolicy": beside | policy}


def run_policy(policy: RunPolicy, notes: Notes) -> Manifest:
    """The `runPolicy` of dtj, without what is its default."""
    path = "spec.runPolicy"
    made: dict[str, Any] = {}
    if policy.suspend:
        made["suspend"] = True
    if policy.backoff_limit is not None:
        made["backoffLimit"] = policy.backoff_limit
    if policy.active_deadline_seconds is not None:
        made["activeDeadlineSeconds"] = policy.active_deadline_seconds
    if policy.ttl_seconds_after_finished is not None:
        made["ttlSecondsAfterFinished"] = policy.ttl_seconds_after_finished
    if policy.clean_pod_policy in _CLEAN_POD_POLICIES[1:]:
        made["cleanPodPolicy"] = policy.clean_pod_policy
    elif policy.clean_pod_policy not in (None, *_CLEAN_POD_POLICIES):
        notes.tell(
            f"{path}.cleanPodPolicy", policy.clean_pod_policy, "left out: Running, dtj's default, holds"
        )
    if other_manager(policy.managed_by) and not _OF_KUBEFLOW.match(policy.managed_by or ""):
        made["managedBy"] = policy.managed_by
    elif policy.managed_by is not None:
        notes.tell(f"{path}.managedBy", policy.managed_by, "left out: dtj's operator carries the job out")
    for key, value in policy.scheduling_policy.items():
        if key == "priorityClass":
            notes.tell(
                f"{path}.schedulingPolicy.{key}", value, "now priorityClassName of every replica's template"
            )
        else:
            now = _SCHEDULING.get(key, "left out: dtj has no such field")
            notes.tell(f"{path}.schedulingPolicy.{key}", value, now)
    for key, value in policy.rest.items():
        notes.tell(f"{path}.{key}", value, "left out: dtj has no such field")
    return made


def retries_of(restart_policy: str | None, path: str, policy: Manifest, notes: Notes) -> Manifest:
    """The run policy with the retries that the role whose end is the job's has by its `restartPolicy`."""
    if restart_policy == "Never" and "backoffLimit" not in policy:
        notes.tell(f"{path}.restartPolicy", "Never", "now runPolicy.backoffLimit: 0, for the whole job")
        return {**policy, "backoffLimit": 0}
    other_role_restarts(restart_policy, path, notes)
    return policy


def other_role_restarts(restart_policy: str | None, path: str, notes: Notes) -> None:
    """Tell of a `restartPolicy` that does not decide over the job."""
    if restart_policy is not None:
        notes.tell(
            f"{path}.restartPolicy",
            restart_policy,
            "left out: the operator restarts pods, by runPolicy.backoffLimit",
        )
