"""Pods as the API server returns them, and as the operator reads them."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

from dtj.api.job import Job, Manifest
from dtj.api.shape import Shape
from dtj.plan.job import plan_job
from dtj.plan.model import Plan
from dtj.status.decision import Decision
from dtj.status.evaluate import evaluate
from dtj.status.observed import Observed
from dtj.status.pods import PodSet, view_pod
from dtj.status.times import written_time
from tests.unit.support.jobs import job

START = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
LAUNCHER, WORKER_0, WORKER_1 = "mnist-launcher-0", "mnist-worker-0", "mnist-worker-1"
ALL = (WORKER_0, WORKER_1, LAUNCHER)


def at(seconds: float) -> datetime:
    """Return the time so many seconds after START."""
    return START + timedelta(seconds=seconds)


def pod(name: str, *, attempt: int = 1, **status: Any) -> Manifest:
    """A new pod of the job `mnist`."""
    _, role, index = name.rsplit("-", 2)
    labels = {"dtj.dev/role": role, "dtj.dev/index": index, "dtj.dev/attempt": str(attempt)}
    return {
        "metadata": {"name": name, "uid": f"{name}-{attempt}", "labels": labels},
        "spec": {},
        "status": {"phase": "Pending", **status},
    }


def stored_pod(name: str, *, phase: str = "Running", attempt: int = 1) -> Manifest:
    """A pod of any job in namespace ml, `<job>-<role>-<index>`, as the API server returns it."""
    made = pod(name, attempt=attempt, phase=phase)
    state = {"running": {}} if phase == "Running" else {"terminated": {"exitCode": int(phase == "Failed")}}
    made["metadata"]["labels"]["dtj.dev/job"] = name.rsplit("-", 2)[0]
    made["spec"]["nodeName"] = "node-1"
    made["status"]["containerStatuses"] = [{"name": "trainer", "state": state}] if phase != "Pending" else []
    return made | {"apiVersion": "v1", "kind": "Pod"}


def scheduled(name: str, *, attempt: int = 1) -> Manifest:
    made = pod(name, attempt=attempt, conditions=[{"type": "PodScheduled", "status": "True"}])
    made["spec"]["nodeName"] = f"node-of-{name}"
    return made


def waiting(name: str, reason: str, message: str = "", *, attempt: int = 1) -> Manifest:
    made = scheduled(name, attempt=attempt)
    state = {"waiting": {"reason": reason, "message": message}}
    made["status"]["containerStatuses"] = [{"name": "trainer", "state": state}]
    return made


def unschedulable(name: str, message: str) -> Manifest:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return pod(name, conditions=[condition])


def running(name: str, *, attempt: int = 1, ready: bool = True) -> Manifest:
    made = scheduled(name, attempt=attempt)
    made["status"] |= {"phase": "Running", "podIP": "10.0.0.9"}
    made["status"]["conditions"].append({"type": "Ready", "status": "True" if ready else "False"})
    made["status"]["containerStatuses"] = [{"name": "trainer", "state": {"running": {}}}]
    return made


def ended(
    name: str,
    code: int = 0,
    message: str | Manifest = "",
    *,
    reason: str = "",
    seconds: float = 0,
    attempt: int = 1,
) -> Manifest:
    """A pod whose container ended. A dict as message is dtj-launch's termination message."""
    made = running(name, attempt=attempt, ready=False)
    terminated = {
        "exitCode": code,
        "reason": reason or ("Error" if code else "Completed"),
        "message": message if isinstance(message, str) else json.dumps(message),
        "finishedAt": written_time(at(seconds)),
    }
    made["status"]["phase"] = "Failed" if code else "Succeeded"
    made["status"]["containerStatuses"] = [{"name": "trainer", "state": {"terminated": terminated}}]
    return made


def deleting(made: Manifest) -> Manifest:
    made["metadata"]["deletionTimestamp"] = written_time(START)
    return made


def evicted(name: str, message: str = "The node was low on resource: memory.") -> Manifest:
    made = scheduled(name)
    made["status"] |= {"phase": "Failed", "reason": "Evicted", "message": message}
    return made


def healthy(attempt: int = 1) -> list[Manifest]:
    return [running(name, attempt=attempt) for name in ALL]


class Life:
    """A job whose status is evaluated repeatedly. Each decision is stored as the job's status."""

    def __init__(self, *, status: Manifest | None = None, **spec: Any) -> None:
        self.spec = spec
        self.job: Job = job(status=status, **spec)
        self.decision: Decision | None = None

    @property
    def plan(self) -> Plan:
        return plan_job(self.job)

    @property
    def shape(self) -> Shape:
        return self.plan.shape

    def see(self, *pods: Manifest, seconds: float = 0, **observed: Any) -> Manifest:
        """Evaluate with these pods, store the status through JSON, return it as written."""
        self.decision = evaluate(
            self.job, self.shape, [], Observed(pods=views(*pods), **observed), at(seconds)
        )
        status = self.decision.status.model_dump(by_alias=True, mode="json", exclude_none=True)
        self.job = job(status=json.loads(json.dumps(status, allow_nan=False)), **self.spec)
        assert self.job.status == self.decision.status
        return status


def views(*pods: Manifest) -> PodSet:
    return PodSet(map(view_pod, pods))


def kubelet_environment(container: Manifest, config: Manifest) -> dict[str, str]:
    """Return a container's environment, with variables expanded as the kubelet does. config: the job's
    ConfigMap.
    """
    env: dict[str, str] = {}
    for variable in container["env"]:
        if key := variable.get("valueFrom", {}).get("configMapKeyRef"):
            assert key["name"] == config["metadata"]["name"]
            env[variable["name"]] = config["data"][key["key"]]
        else:
            value = variable.get("value", "")
            env[variable["name"]] = re.sub(r"\$\(([^)]+)\)", lambda found: env.get(found[1], found[0]), value)
    return env


def condition(status: Manifest, kind: str) -> Manifest:
    """Return a condition of a serialized status; empty if the status does not have it."""
    return next((c for c in status.get("conditions", []) if c["type"] == kind), {})
