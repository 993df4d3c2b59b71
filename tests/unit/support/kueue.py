"""Kueue 0.19's handling of plain pods: it gates, admits and evicts pods, and keeps ended pods by a finalizer.

https://kueue.sigs.k8s.io/docs/tasks/run/plain_pods and keps/976-plain-pods of kubernetes-sigs/kueue
"""

from __future__ import annotations

from typing import Any

from dtj.api.job import Manifest
from tests.unit.support.fake_cluster import FakeCluster, Name

_GROUP = "kueue.x-k8s.io/pod-group-name"
_COUNT = "kueue.x-k8s.io/pod-group-total-count"
_MANAGED = "kueue.x-k8s.io/managed"
_GATE = {"name": "kueue.x-k8s.io/admission"}
_ENDED = ("Succeeded", "Failed")


class Kueue:
    """One queue, whose quota admits groups while `open` is True."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.open = True
        self.admitted: list[str] = []
        self._cluster = cluster
        self._add = cluster.add
        cluster.add = self._webhook  # type: ignore[method-assign]

    def _webhook(self, manifest: Manifest) -> Manifest:
        if manifest["kind"] != "Pod" or "kueue.x-k8s.io/queue-name" not in manifest["metadata"]["labels"]:
            return self._add(manifest)
        metadata = manifest["metadata"]
        made = self._add(
            {
                **manifest,
                "metadata": {
                    **metadata,
                    "labels": {**metadata["labels"], _MANAGED: "true"},
                    "finalizers": [_MANAGED],
                },
                "spec": {**manifest["spec"], "schedulingGates": [_GATE]},
            }
        )
        gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "gated"}
        self._change(made, lambda pod: pod["status"].update(conditions=[gated]))
        return made

    def step(self) -> None:
        """Admit complete groups, and remove the finalizers of finished groups, which are not retriable."""
        for name, pods in self._groups().items():
            count = int(pods[0]["metadata"]["annotations"][_COUNT])
            assert {pod["metadata"]["annotations"][_COUNT] for pod in pods} == {str(count)}
            if all(pod["status"]["phase"] in _ENDED for pod in pods):
                for pod in pods:
                    assert pod["metadata"]["annotations"]["kueue.x-k8s.io/retriable-in-group"] == "false"
                    self._let_go(pod)
            elif self.open and name not in self.admitted and len(pods) == count:
                self.admitted.append(name)
                for pod in pods:
                    self._change(
                        pod,
                        lambda it: (
                            it["spec"].pop("schedulingGates"),
                            it.update(status={"phase": "Pending"}),
                        ),
                    )

    def evict(
        self,
        reason: str = "WorkloadEvictedDueToPreempted",
        message: str = "Preempted to accommodate a workload",
    ) -> None:
        """Evict the running group's pods, by default for a group of higher priority."""
        condition = {"type": "TerminationTarget", "status": "True", "reason": reason, "message": message}
        for pod in self._groups()[self.admitted[-1]]:
            self._change(pod, lambda it: it["status"].setdefault("conditions", []).append(condition))
            self._cluster.end_pod(self._cluster.pod(pod["metadata"]["name"]))

    def deactivate(self) -> None:
        """Evict the running group as Kueue does after `spec.active: false` on its Workload."""
        self.evict("WorkloadEvictedDueToDeactivated", "The workload is deactivated")

    def _groups(self) -> dict[str, list[Manifest]]:
        groups: dict[str, list[Manifest]] = {}
        for pod in self._cluster.of_kind("Pod"):
            if _GROUP in pod["metadata"]["labels"] and pod["metadata"].get("finalizers"):
                groups.setdefault(pod["metadata"]["labels"][_GROUP], []).append(pod)
        return groups

    def _let_go(self, pod: Manifest) -> None:
        self._change(pod, lambda it: it["metadata"].pop("finalizers"))
        if "deletionTimestamp" in pod["metadata"]:
            self._cluster.remove(self._name(pod))

    def _change(self, pod: Manifest, do: Any) -> None:
        self._cluster.change(self._name(pod), do)

    def _name(self, pod: Manifest) -> Name:
        return "Pod", pod["metadata"]["namespace"], pod["metadata"]["name"]
