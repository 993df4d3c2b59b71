"""What Kubernetes 1.36 answers and does that 1.20 does not, word for word, for the API server in memory.

The words are those that a 1.36.2 API server, kubelet and controller gave, with the names replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from dtj.api.job import Manifest
from dtj.cluster.interface import ApiError
from dtj.status.times import written_time
from tests.unit.support.fake_cluster import FakeCluster


class Refusal(ApiError):
    """A refusal with the `details` of its Status."""

    def __init__(self, status: int, reason: str, message: str, details: Manifest) -> None:
        super().__init__(status, reason, message)
        self.details = details


Refusing = Callable[[Manifest], ApiError | None]


# --- answers to a creation ----------------------------------------------------------------------------


def policy(reason: str = "Invalid") -> Refusing:
    """A ValidatingAdmissionPolicy whose expression fails. Without a reason it answers 422, and names no field."""
    expression = "object.metadata.annotations['team'] != 'x'"
    said = (
        "ValidatingAdmissionPolicy 'no-x' with binding 'no-x' denied request: "
        f"expression '{expression}' resulted in error: no such key: annotations"
    )
    return _of_pods(403 if reason == "Forbidden" else 422, reason, said)


def webhook() -> Refusing:
    """A ValidatingWebhookConfiguration that denies with a code of its own."""
    words = 'admission webhook "w.example.com" denied the request: no'
    return lambda made: (
        Refusal(422, "Invalid", words, {"causes": [{"message": "no"}]}) if made["kind"] == "Pod" else None
    )


def quota() -> Refusing:
    """A ResourceQuota that is used up."""
    return _of_pods(
        403, "Forbidden", "exceeded quota: team, requested: pods=1, used: pods=10, limited: pods=10"
    )


def validation(field: str = "spec.containers[0].image", said: str = "Required value") -> Refusing:
    """The API server's own validation, which names the field."""

    def refuse(made: Manifest) -> ApiError | None:
        name = made["metadata"]["name"]
        cause = {"reason": "FieldValueRequired", "message": said, "field": field}
        details = {"name": name, "kind": "Pod", "causes": [cause]}
        message = f'Pod "{name}" is invalid: {field}: {said}'
        return Refusal(422, "Invalid", message, details) if made["kind"] == "Pod" else None

    return refuse


def _of_pods(status: int, reason: str, said: str) -> Refusing:
    def refuse(made: Manifest) -> ApiError | None:
        name = made["metadata"]["name"]
        details: dict[str, Any] = {"name": name, "kind": "pods"}
        if status == 422:
            details["causes"] = [{"message": said}]
        message = f'pods "{name}" is forbidden: {said}'
        return Refusal(status, reason, message, details) if made["kind"] == "Pod" else None

    return refuse


# --- what becomes of pods -----------------------------------------------------------------------------

EVICTION = ("EvictionByEvictionAPI", "Eviction API: evicting")
TAINT = ("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")
PREEMPTION = (
    "PreemptionByScheduler",
    "default-scheduler: preempting to accommodate a higher priority pod",
)


def mark(cluster: FakeCluster, name: str, why: tuple[str, str] = EVICTION) -> None:
    """Set DisruptionTarget, also on a pod that has completed. The deletion is another request, and comes later."""
    reason, message = why
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
    condition["lastTransitionTime"] = written_time(cluster.now)

    def change(pod: Manifest) -> None:
        pod["status"].setdefault("conditions", []).append(condition)

    cluster.change(("Pod", "ml", name), change)


def evict(cluster: FakeCluster, name: str) -> None:
    """Evict a pod by the Eviction API, as `kubectl drain` does with running and completed pods."""
    mark(cluster, name)
    cluster.end_pod(cluster.pod(name))


def evict_by_kubelet(cluster: FakeCluster, name: str) -> None:
    """Evict a pod for the memory of its node. The pod stays, Failed."""
    said = "The node was low on resource: memory. Threshold quantity: 20Gi, available: 19Gi. "
    mark(cluster, name, ("TerminationByKubelet", said))

    def change(pod: Manifest) -> None:
        pod["status"] |= {"phase": "Failed", "reason": "Evicted", "message": said}
        _end(cluster, pod, 137, "Error")

    cluster.change(("Pod", "ml", name), change)


def restart_in_place(cluster: FakeCluster, name: str, container: str | None = None) -> None:
    """Restart a container, or all of them, in the living pod, by a restartPolicyRule of the container."""
    every = container is None
    reason, message = "Error", ""
    if every:
        reason, message = "RestartAllContainers", "removed because RestartAllContainers in place"
    ended = {
        "exitCode": 137 if every else 3,
        "reason": reason,
        "message": message,
        "finishedAt": written_time(cluster.now),
    }

    def change(pod: Manifest) -> None:
        for status in pod["status"]["containerStatuses"]:
            if every or status["name"] == container:
                status["restartCount"] = status.get("restartCount", 0) + 1
                status["lastState"] = {"terminated": ended}
                status["state"] = {"running": {"startedAt": written_time(cluster.now + timedelta(seconds=1))}}
        if every:
            condition = {"type": "AllContainersRestarting", "status": "False"}
            pod["status"].setdefault("conditions", []).append(condition)

    cluster.change(("Pod", "ml", name), change)


def _end(cluster: FakeCluster, pod: Manifest, code: int, reason: str) -> None:
    ended = {"exitCode": code, "reason": reason, "finishedAt": written_time(cluster.now)}
    for status in pod["status"].get("containerStatuses", []):
        status["state"] = {"terminated": ended}
