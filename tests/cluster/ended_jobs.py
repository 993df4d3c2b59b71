"""Jobs that end in every way, for the test that compares the history with what was said of them before."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from tests.cluster import nodes
from tests.cluster.install import server_minor
from tests.cluster.jobs import PS_EXAMPLE, TORCH_EXAMPLE, Job, Manifest, stub, until
from tests.cluster.placement import leaving_quickly, node_name
from tests.unit.support.bad_jobs import DIRECTORY, read_bad_job

LONG = "--steps=6000"
"""Five minutes at the stub's own pace."""
ENDLESS = "--steps=1000000"
HANGS = """
import threading
from dtj_trainer import progress
progress.report(step=3, total_steps=100, final=True)
threading.Event().wait()
"""
EXPORTS_IN_VAIN = """
from pathlib import Path
from dtj_trainer import progress
progress.report(step=5, total_steps=5, accuracy=0.5, final=True)
Path("/dtj/model").mkdir(exist_ok=True)
Path("/dtj/model/weights").write_text("of no use to ONNX")
progress.exporting()
progress.exported("the operator aten::nothing has no ONNX form")
"""
EATS = "eaten = []\nwhile True: eaten.append(b'x' * 10**7)"
GIVES_UP = "import sys; print('no such column: label'); sys.exit(7)"
KEEPS_NOTHING = "print('done')"
_POLICY_V1_SINCE = 22

Goes = Literal["stays", "TTL", "deleted"]
Past = Literal["as it was", "no end", "nothing"]


def nothing(_: Job) -> None:
    """The job comes to its end by itself."""


@dataclass(frozen=True)
class Ending:
    """A job, how it comes to its end, and what is left of it."""

    job: Manifest
    phase: str
    """The phase in which it is when `dtj status` is asked."""
    reason: str
    """A part of what `dtj status` says of it then."""
    bring: Callable[[Job], None] = nothing
    """What is done to it."""
    goes: Goes = "stays"
    """How its object goes before the API server stops."""
    past: Past = "as it was"
    """What the history has of it."""

    @property
    def name(self) -> str:
        """Of the job."""
        return str(self.job["metadata"]["name"])


def single(name: str, *options: str, **spec: Any) -> Manifest:
    """A stub training in one pod. A `program` stands in the place of the stub."""
    if program := spec.pop("program", None):
        spec |= {"command": ["python", "-c", program]}
    worker = {"replicas": 1} | spec.pop("worker", {})
    job = stub(name, *options, file=TORCH_EXAMPLE, **{"replicaSpecs": {"worker": worker}} | spec)
    del job["spec"]["data"]
    return job


def wrong(file: str) -> Manifest:
    """A job of tests/bad_jobs, which keeps artifacts."""
    job = copy.deepcopy(read_bad_job(DIRECTORY / f"{file}.yaml").manifest)
    job["spec"]["artifacts"] = single("any")["spec"]["artifacts"]
    return job


def without_artifacts(job: Manifest) -> Manifest:
    del job["spec"]["artifacts"]
    return job


def parameter_servers(name: str, *options: str) -> Manifest:
    roles = {"worker": {"replicas": 1}, "ps": {"replicas": 1}}
    return stub(name, *options, file=PS_EXAMPLE, replicaSpecs=roles)


def only_on(node: str) -> Manifest:
    """The fields of a pod that starts on this node alone, and leaves it soon after it is lost."""
    terms = {"nodeSelectorTerms": [{"matchFields": [node_name("In", node)]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    return {"template": {"spec": leaving_quickly() | {"affinity": affinity}}}


# --- what is done to them --------------------------------------------------------------------------


def patch(job: Job, **run_policy: Any) -> None:
    """Change the run policy."""
    change = json.dumps({"spec": {"runPolicy": run_policy}})
    job.namespace.kubectl("patch", "dtj", job.name, "--type=merge", f"--patch={change}")


def trains(job: Job) -> None:
    job.wait_for_step(3, 240)


def suspends(job: Job) -> None:
    trains(job)
    patch(job, suspend=True)


def resumes(job: Job) -> None:
    """Suspended until that is recorded, and trains again."""
    suspends(job)
    until(
        f"the suspension of {job.name} to be recorded",
        lambda: job.condition("Recorded").get("reason") == "SuspensionRecorded",
        240,
    )
    patch(job, suspend=False)
    until(f"{job.name} to train again", lambda: job.condition("Running").get("status") == "True", 180)
    # The pod claims the prefix before its program starts.
    trains(job)


def loses_its_worker(job: Job) -> None:
    trains(job)
    job.namespace.kubectl("delete", "pod", f"{job.name}-worker-0", "--wait=false")
    starts_again(job)
    job.hurry_to_the_end("chief-0")


def evicted(job: Job) -> None:
    """Its pod leaves as for a pod of higher priority, or for a drain of its node."""
    trains(job)
    pod = f"{job.name}-worker-0"
    version = "v1" if server_minor() >= _POLICY_V1_SINCE else "v1beta1"
    metadata = {"name": pod, "namespace": job.namespace.name}
    eviction = {"apiVersion": f"policy/{version}", "kind": "Eviction", "metadata": metadata}
    place = f"/api/v1/namespaces/{job.namespace.name}/pods/{pod}/eviction"
    job.namespace.kubectl("create", f"--raw={place}", "--filename=-", stdin=json.dumps(eviction))
    starts_again(job)
    job.hurry_to_the_end()


def starts_again(job: Job) -> None:
    def again() -> bool:
        status = job.status
        return bool(status["restarts"]["infrastructure"] == 1 and status["phase"] == "Running")

    until(f"{job.name} to run after its loss", again, 240)


def waits(job: Job, seconds: float = 120) -> None:
    until(
        f"{job.name} to wait for a node",
        lambda: job.condition("Running").get("reason") == "Unschedulable",
        seconds,
    )


# --- the jobs ------------------------------------------------------------------------------------------


def endings() -> list[Ending]:
    """All but those that do harm to others."""
    once = {"backoffLimit": 0}
    soon = {"startDeadlineSeconds": 45}
    big = {"resources": {"requests": {"memory": "10Ti"}}}
    small = {"resources": {"limits": {"memory": "300Mi"}, "requests": {"memory": "64Mi"}}}
    hangs = once | {"stallTimeoutSeconds": 20, "stallPolicy": "Restart"}
    return [
        Ending(single("no-image", image="registry.invalid/nobody/nothing:0", runPolicy=soon),
               "Failed", "StartDeadlineExceeded"),
        Ending(single("no-room", worker=big, runPolicy=soon), "Failed", "StartDeadlineExceeded"),
        Ending(wrong("env-of-the-operator"), "Failed", "ValidationFailed"),
        Ending(wrong("data-missing"), "Failed", "s3://datasets/no-such-data"),
        Ending(single("no-memory", program=EATS, args=[], worker=small, runPolicy=once), "Failed", "OOMKilled"),
        Ending(single("exits", "--fail-at=5", runPolicy=once), "Failed", "the loss is not a number any more"),
        Ending(single("hopeless", program=GIVES_UP, args=[], runPolicy={"backoffLimit": 1}),
               "Failed", "1 application"),
        Ending(single("late", LONG, runPolicy={"activeDeadlineSeconds": 60}), "Failed", "DeadlineExceeded"),
        Ending(single("stalled", program=HANGS, args=[], runPolicy=hangs), "Failed", "Stalled"),
        Ending(single("paused", LONG), "Suspended", "SuspensionRecorded", suspends),
        Ending(stub("horovod"), "Succeeded", "JobSucceeded"),
        Ending(single("torch", worker={"replicas": 2}), "Succeeded", "all 2 workers ended"),
        Ending(parameter_servers("ps"), "Succeeded", "chief-0 ended"),
        Ending(parameter_servers("ps-loses", LONG), "Succeeded", "1 infrastructure", loses_its_worker),
        Ending(single("evicted", LONG), "Succeeded", "1 infrastructure", evicted),
        Ending(single("export-fails", program=EXPORTS_IN_VAIN, args=[]), "Succeeded", "aten::nothing"),
        Ending(single("keeps-nothing", program=KEEPS_NOTHING, args=[]),
               "Succeeded", "neither a checkpoint nor a model"),
        Ending(single("done-and-gone"), "Succeeded", "JobSucceeded", goes="TTL"),
        Ending(single("failed-and-gone", "--fail-at=5", runPolicy=once), "Failed", "ApplicationError", goes="TTL"),
        Ending(single("deleted", ENDLESS), "Running", "JobRunning", trains, "deleted", "no end"),
        Ending(single("resumed", ENDLESS), "Running", "JobRunning", resumes, "deleted", "no end"),
        Ending(single("pending", worker=big), "Pending", "Unschedulable", waits, "deleted", "nothing"),
        Ending(without_artifacts(single("artless")), "Succeeded", "JobSucceeded", past="nothing"),
    ]  # fmt: skip


def lost_with_its_node(victim: nodes.Machine) -> Ending:
    """A job that may run on one node alone, which is lost. It waits for that node until it gets a deadline."""
    job = single("nodeless", LONG, worker=only_on(victim.name))

    def lose(lost: Job) -> None:
        trains(lost)
        victim.cut_off()
        waits(lost, 300)
        patch(lost, activeDeadlineSeconds=1)

    return Ending(job, "Failed", "DeadlineExceeded", lose)
