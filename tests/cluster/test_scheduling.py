"""Gang scheduling and queues of jobs. The tests play the part of schedulers and queues.

* PodGroups: created once their kind is served, and deleted with their jobs
* a queue: admission, eviction, second admission
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
import yaml

from dtj.status.times import written_time
from tests.cluster.jobs import Job, KubectlError, Manifest, Namespace, kubectl, until
from tests.unit.support.pod_group_crds import COSCHEDULING, VOLCANO

pytestmark = pytest.mark.cluster
PLAYED = "played-by-a-test"
CRDS = {"Coscheduling": COSCHEDULING, "Volcano": VOLCANO}


@dataclass
class Scheduler:
    """Places pods that name it, or holds them as Kueue does; the cluster's own scheduler leaves them alone."""

    namespace: Namespace
    gate: bool = False
    """Kueue holds all that come."""

    def step(self) -> None:
        for pod in self.namespace.list("pods"):
            if pod["spec"].get("schedulerName") != PLAYED:
                continue
            if "nodeName" in pod["spec"] or "deletionTimestamp" in pod["metadata"]:
                continue
            if self.gate:
                self.tell(pod, "PodScheduled", "False", "SchedulingGated", "gated")
            else:
                self.bind(pod)

    def bind(self, pod: Manifest) -> None:
        """Give a pod its node."""
        metadata = {"name": pod["metadata"]["name"]}
        target = {"apiVersion": "v1", "kind": "Node", "name": _node()}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
        self._raw("create", f"{metadata['name']}/binding", binding)

    def tell(self, pod: Manifest, kind: str, status: str, reason: str, message: str) -> None:
        """Write a condition of a pod."""
        told = pod["status"].setdefault("conditions", [])
        if any((c["type"], c["reason"]) == (kind, reason) for c in told if "reason" in c):
            return
        time = written_time(datetime.now(UTC))
        new = {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "lastTransitionTime": time,
        }
        pod["status"]["conditions"] = [c for c in told if c["type"] != kind] + [new]
        self._raw("replace", f"{pod['metadata']['name']}/status", pod)

    def _raw(self, verb: str, path: str, body: Manifest) -> None:
        """Make a request of a pod, which may have changed or gone meanwhile."""
        try:
            pods = f"/api/v1/namespaces/{self.namespace.name}/pods"
            kubectl(verb, f"--raw={pods}/{path}", "--filename=-", stdin=json.dumps(body))
        except KubectlError as error:
            if not any(word in str(error) for word in ("Conflict", "NotFound", "not found", "modified")):
                raise

    def until(self, what: str, get: Any, seconds: float = 90) -> Any:
        """Schedule until something holds."""

        def there() -> Any:
            self.step()
            return get()

        return until(what, there, seconds)


def _node() -> str:
    nodes = json.loads(kubectl("get", "nodes", "--output=json"))["items"]
    free = [node["metadata"]["name"] for node in nodes if not node["spec"].get("taints")]
    return str(free[0])


def job(name: str, command: list[str], **policy: Any) -> Manifest:
    """A worker that only runs sshd, and a launcher that runs the command on it."""
    played = {"resources": {"requests": {"cpu": "10m"}}, "template": {"spec": {"schedulerName": PLAYED}}}
    return {
        "apiVersion": "dtj.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": {"name": name},
        "spec": {
            "strategy": "Horovod",
            "image": "dtj-horovod-base:0.1.0",
            "command": command,
            "replicaSpecs": {"worker": {"replicas": 1, **played}, "launcher": played},
            "runPolicy": {"schedulingPolicy": policy},
        },
    }


@pytest.fixture
def no_pod_groups() -> Iterator[None]:
    """A cluster that knows no PodGroup, before and after."""
    yield
    names = [crd["metadata"]["name"] for crd in CRDS.values()]
    kubectl("delete", "crd", "--ignore-not-found", *names)


def test_pod_groups_are_made_once_they_are_served_and_go_with_their_jobs(
    namespace: Namespace, no_pod_groups: None
) -> None:
    jobs = {gang: namespace.apply(job(gang.lower(), ["true"], gang=gang)) for gang in CRDS}
    for made in jobs.values():
        until("the job to say what is missing", lambda made=made: _reason(made) == "SchedulerMissing", 30)
        assert made.pods() == []

    kubectl("apply", "--filename=-", stdin=yaml.safe_dump_all(CRDS.values()))
    for gang, made in jobs.items():
        until(f"{gang} to be queued", lambda made=made: _reason(made) == "Queued", 40)
        group = _group(made, gang)
        assert group is not None
        assert group["spec"]["minMember"] == 1
        assert group["metadata"]["ownerReferences"][0]["uid"] == made.get()["metadata"]["uid"]

    namespace.kubectl("delete", "dtj", "volcano")
    until("its group to be collected", lambda: _group(jobs["Volcano"], "Volcano") is None, 30)
    first = jobs["Coscheduling"]
    Scheduler(namespace).until("the other to end", lambda: first.status.get("phase") == "Succeeded")
    until("its group to go", lambda: _group(first, "Coscheduling") is None, 10)


def test_a_queued_job_is_admitted_evicted_and_admitted_again(namespace: Namespace) -> None:
    made = namespace.apply(job("queued", ["sleep", "60"], gang="Kueue", queue="research"))
    kueue = Scheduler(namespace, gate=True)

    kueue.until("the job to be queued", lambda: _reason(made) == "Queued")
    pods = made.pods()
    assert [pod["metadata"]["annotations"]["kueue.x-k8s.io/pod-group-total-count"] for pod in pods] == [
        "2",
        "2",
    ]
    assert len({pod["metadata"]["labels"]["kueue.x-k8s.io/pod-group-name"] for pod in pods}) == 1
    assert "startTime" not in made.status

    kueue.gate = False
    kueue.until("it to run", lambda: made.status.get("phase") == "Running")
    kueue.gate = True
    for pod in made.pods():
        kueue.tell(
            pod,
            "TerminationTarget",
            "True",
            "WorkloadEvictedDueToPreempted",
            "Preempted to accommodate a workload",
        )
    namespace.kubectl("delete", "pods", "--selector=dtj.dev/job=queued", "--wait=false")
    kueue.until("its next attempt to be queued", lambda: _queued_again(made))
    assert made.status["restarts"] == {"application": 0, "infrastructure": 1}

    kueue.gate = False
    kueue.until("it to end", lambda: made.status.get("phase") == "Succeeded")


def _reason(made: Job) -> str | None:
    reason: str | None = made.condition("Running").get("reason")
    return reason


def _queued_again(made: Job) -> bool:
    attempts = {pod["metadata"]["labels"]["dtj.dev/attempt"] for pod in made.pods()}
    return attempts == {"2"} and _reason(made) == "Queued"


def _group(made: Job, gang: str) -> Manifest | None:
    """The job's PodGroup."""
    groups = made.namespace.list(CRDS[gang]["metadata"]["name"])
    return next((group for group in groups if group["metadata"]["name"] == made.name), None)
