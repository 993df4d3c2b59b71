"""A kubelet for the pods of the fake cluster, with scheduler and pod garbage collector."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from dtj.api.identity import LABEL_RECORD, LABEL_ROLE
from dtj.api.job import Manifest
from dtj.status.times import written_time
from tests.unit.support.fake_cluster import FakeCluster, name_of

Ending = tuple[int, str]
"""Exit code and termination message."""


def succeed_after_two_steps(pod: Manifest, ran: int) -> Ending | None:
    """End the launcher of a healthy job."""
    return (0, "") if pod["metadata"]["labels"][LABEL_ROLE] == "launcher" and ran >= 2 else None


@dataclass
class Kubelet:
    """Advances every pod by one state at each `step`."""

    cluster: FakeCluster
    program: Callable[[Manifest, int], Ending | None] = succeed_after_two_steps
    """Returns how a pod ends after it has run for a number of steps; None while it continues."""
    record: Callable[[Manifest, int], Ending | None] = lambda _pod, ran: (0, "") if ran >= 2 else None
    """The same of a record pod."""
    end_steps: int = 1
    """The steps that a deleted pod takes to end."""
    collect_steps: int = 20
    """The steps for which a deleted pod without a node and with a finalizer stays Pending."""
    places: int | None = None
    """The largest number of pods with a node; further pods are unschedulable."""
    hold: set[str] = field(default_factory=set)
    """Names of pods that get a node, but do not start."""
    unready: set[str] = field(default_factory=set)
    """Names of pods that run without becoming ready."""
    run_on: set[str] = field(default_factory=set)
    """Names of containers that run on when the first container of their pod has ended."""
    clock: timedelta = timedelta()
    """How far the clocks of the nodes are ahead of the API server's."""
    shows_end: bool = False
    """Whether the status of a deleted pod has the end of its containers, by SIGTERM, before the pod goes."""
    ran: dict[str, int] = field(default_factory=dict)
    ending: dict[str, int] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    """uids of pods on a lost node, whose state no longer changes."""
    most_running: dict[str, int] = field(default_factory=dict)

    def step(self) -> bool:
        """Advance by one second; return whether anything changed."""
        before = len(self.cluster.log)
        self.cluster.now += timedelta(seconds=1)
        self.cluster.collect_garbage()
        for pod in self.cluster.of_kind("Pod"):
            if pod["metadata"]["uid"] not in self.lost:
                self._move(pod)
        return len(self.cluster.log) > before

    def _move(self, pod: Manifest) -> None:
        name, uid = name_of(pod), pod["metadata"]["uid"]
        phase = pod["status"]["phase"]
        if "deletionTimestamp" in pod["metadata"] and not pod["spec"].get("nodeName") and phase == "Pending":
            # kube-controller-manager's PodGC ends a pod without a node about 20 s later.
            self.ending[uid] = self.ending.get(uid, 0) + 1
            if self.ending[uid] > self.collect_steps:
                self.cluster.change(name, lambda p: p["status"].update(phase="Failed"))
        elif "deletionTimestamp" in pod["metadata"]:
            self.ending[uid] = self.ending.get(uid, 0) + 1
            if self.ending[uid] > self.end_steps:
                self.cluster.remove(name)
            elif self.shows_end and phase == "Running":
                finished = written_time(self.cluster.now + self.clock)
                self.cluster.change(name, lambda p: self._end(p, (143, ""), finished))
        elif pod["spec"].get("schedulingGates"):
            pass
        elif not pod["spec"].get("nodeName"):
            self.cluster.change(name, self._schedule)
        elif phase == "Pending" and name[2] not in self.hold:
            self.cluster.change(name, _running)
        elif phase == "Running" and name[2] not in self.unready:
            self.ran[uid] = self.ran.get(uid, 0) + 1
            records = LABEL_RECORD in pod["metadata"].get("labels", {})
            ending = (self.record if records else self.program)(pod, self.ran[uid])
            if ending is not None:
                finished = written_time(self.cluster.now + self.clock)
                self.cluster.change(name, lambda p: self._end(p, ending, finished))
            elif self.ran[uid] == 1:
                self.cluster.change(name, _ready)

    def _schedule(self, pod: Manifest) -> None:
        placed = [there for there in self.cluster.of_kind("Pod") if there["spec"].get("nodeName")]
        held = [there for there in placed if there["status"]["phase"] not in ("Succeeded", "Failed")]
        if self.places is None or len(held) < self.places:
            _scheduled(pod)
            pod["status"]["conditions"][0]["lastTransitionTime"] = written_time(self.cluster.now)
        elif "conditions" not in pod["status"]:
            refused = {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": "full",
            }
            pod["status"]["conditions"] = [refused | {"lastTransitionTime": written_time(self.cluster.now)}]

    def _end(self, pod: Manifest, ending: Ending, finished: str) -> None:
        code, message = ending
        first, *others = (container["name"] for container in pod["spec"]["containers"])
        runs_on = self.run_on.intersection(others)
        if not runs_on:
            pod["status"]["phase"] = "Failed" if code else "Succeeded"
        pod["status"]["conditions"] = [c for c in pod["status"]["conditions"] if c["type"] != "Ready"]
        terminated = {
            "exitCode": code,
            "reason": "Error" if code else "Completed",
            "message": message,
            "finishedAt": finished,
        }
        pod["status"]["containerStatuses"] = [
            {"name": first, "state": {"terminated": terminated}},
            *({"name": name, "state": {"running": {}}} for name in others if name in runs_on),
        ]


def _scheduled(pod: Manifest) -> None:
    pod["spec"]["nodeName"] = f"node-{pod['metadata']['name'][-1]}"
    pod["status"] = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]}


def _running(pod: Manifest) -> None:
    pod["status"] |= {"phase": "Running", "podIP": "10.0.0.7"}
    pod["status"]["containerStatuses"] = [
        {"name": container["name"], "state": {"running": {}}} for container in pod["spec"]["containers"]
    ]


def _ready(pod: Manifest) -> None:
    pod["status"]["conditions"].append({"type": "Ready", "status": "True"})
