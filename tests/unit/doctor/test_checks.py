"""The checks of `dtj doctor`, on data in the form that a cluster returns.

* the API server, the CRD, the operator and permissions
* quantities
* nodes, accelerators, taints and pods that are in use
* quotas and the Secret of the bucket
* the pod of the check: made, explained, deleted
"""

from __future__ import annotations

import asyncio
import copy
import json
import os
import subprocess
import sys
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtj.api.crd import custom_resource_definition
from dtj.api.job import Job, Manifest
from dtj.api.quantities import amount, pod_requests, shown
from dtj.cluster.interface import ApiError
from dtj.doctor import in_pod
from dtj.doctor.capacity import node_checks, quota_checks
from dtj.doctor.examine import run_pod
from dtj.doctor.findings import PERMISSIONS, Check, ClusterFindings, JobFindings, SecretKeys, Unread
from dtj.doctor.installation import installation_checks, python_checks
from dtj.doctor.probe import STUCK_SECONDS, ended, pod_checks, probe_pod, secret_checks, stuck
from dtj.plan.job import plan_job
from dtj_trainer.contract.distribution import version
from tests.patience import PATIENCE
from tests.unit.support import jobs, virtual_time
from tests.unit.support.doctor import GPU, KEYS, deployment, node, told
from tests.unit.support.pod_security import restricted_faults

S3 = {"uri": "s3://training/jobs", "endpoint": "http://store:8333", "secretName": "s3"}


CLUSTER = ClusterFindings(
    server="https://cluster:6443",
    version={"major": "1", "minor": "31+", "gitVersion": "v1.31.2-eks"},
    namespace="ml",
    served=True,
    crd=custom_resource_definition(),
    operators=[deployment()],
    allowed=dict.fromkeys(PERMISSIONS, True),
)


def cluster_check(name: str, **found: Any) -> Check:
    return next(c for c in installation_checks(replace(CLUSTER, **found)) if c.name == name)


def test_all_is_well_where_dtj_is_installed() -> None:
    assert told(installation_checks(CLUSTER)) == [
        ("API server", "ok"),
        ("CRD", "ok"),
        ("operator", "ok"),
        ("permissions", "ok"),
    ]


def test_an_old_server_is_told_and_its_crd_may_lack_the_rules() -> None:
    old = {"major": "1", "minor": "20+", "gitVersion": "v1.20.2"}
    crd = copy.deepcopy(custom_resource_definition())
    del crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"][
        "x-kubernetes-validations"
    ]
    assert cluster_check("API server", version=old).verdict == "warning"
    assert cluster_check("CRD", version=old, crd=crd).verdict == "ok"
    assert cluster_check("CRD", crd=crd).verdict == "failed"


def test_a_crd_of_another_version_is_told_with_its_fields() -> None:
    crd = copy.deepcopy(custom_resource_definition())
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    del spec["runPolicy"]["properties"]["suspend"]
    spec["image"]["description"] = "said in other words"
    check = cluster_check("CRD", crd=crd)
    assert check.verdict == "failed"
    assert check.message.endswith(" in spec.runPolicy.suspend")


@pytest.mark.parametrize(
    ("found", "verdict", "part"),
    [
        ({"served": False, "crd": None}, "failed", "does not serve"),
        ({"crd": Unread("forbidden")}, "warning", "can't be read"),
    ],
)
def test_a_crd_that_is_missing_or_hidden(found: dict[str, Any], verdict: str, part: str) -> None:
    check = cluster_check("CRD", **found)
    assert (check.verdict, part in check.message) == (verdict, True)


@pytest.mark.parametrize(
    ("operators", "verdict", "part"),
    [
        ([], "failed", "there is no Deployment"),
        ([deployment(ready=0)], "failed", "is not ready"),
        ([deployment("registry:5000/dtj-operator:0.0.1")], "warning", "registry:5000/dtj-operator:0.0.1"),
        ([deployment(f"registry:5000/dtj-operator:v{version()}")], "ok", "is ready"),
        (
            [deployment(), deployment(namespace="other")],
            "failed",
            "dtj-system/dtj-operator, other/dtj-operator",
        ),
        (
            [
                deployment(args=["--leader-elect", "--namespace=ml"]),
                deployment(args=["--namespace", "vision"]),
            ],
            "ok",
            "is ready",
        ),
        (
            [deployment(args=["--namespace=vision", "--namespace=nlp"])],
            "failed",
            "no operator runs the jobs of namespace ml: dtj-system/dtj-operator runs the jobs of vision, nlp",
        ),
        (
            [deployment(), deployment(namespace="team", args=["--namespace=ml", "--lease-namespace=x"])],
            "failed",
            "several operators would work on the same jobs",
        ),
        (Unread("no list of deployments"), "warning", "no list of deployments"),
    ],
)
def test_the_operator(operators: Any, verdict: str, part: str) -> None:
    check = cluster_check("operator", operators=operators)
    assert (check.verdict, part in check.message) == (verdict, True), check


def test_a_distribution_of_the_former_name_is_told() -> None:
    assert python_checks(None) == []
    (check,) = python_checks("0.1.8")
    assert (check.verdict, "dtj 0.1.8" in check.message) == ("warning", True)
    assert check.remedy is not None
    assert check.remedy.startswith("`pip uninstall --yes dtj`, then `pip install ")


def test_what_one_may_not_do_is_told_with_what_needs_it() -> None:
    allowed = {p: p.verb != "create" and p.resource != "pods/log" for p in PERMISSIONS}
    failed, warning = [
        c for c in installation_checks(replace(CLUSTER, allowed=allowed)) if c.name == "permissions"
    ]
    assert failed.message == "you may not create distributedtrainingjobs in namespace ml"
    assert failed.verdict == "failed"
    assert warning.message == (
        "you may not create configmaps, get pods/log in namespace ml: needed for `dtj submit FOLDER`, `dtj logs`"
    )


@pytest.mark.parametrize(
    ("quantity", "number"),
    [
        (2, "2"), ("500m", "0.5"), ("1.5", "1.5"), (".5", "0.5"), ("4Gi", str(4 * 2**30)), ("1k", "1000"),
        ("1e3", "1000"), ("1E3", "1000"), ("1E", "1e18"), ("1Ei", str(2**60)), ("100n", "1e-7"), ("-1", "-1"),
    ],
)  # fmt: skip
def test_quantities_are_read_as_kubernetes_does(quantity: str | int, number: str) -> None:
    assert amount(quantity) == Decimal(number)


@pytest.mark.parametrize("quantity", ["", "Gi", "1 Gi", "1gi", "1K", "x", "1e", "--1"])
def test_what_is_no_quantity_is_refused(quantity: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        amount(quantity)


@given(st.integers(0, 10**6))
def test_millis_are_thousandths(number: int) -> None:
    assert amount(f"{number}m") * 1000 == number


def test_amounts_are_shown_as_people_write_them() -> None:
    assert shown("cpu", Decimal("0.5")) == "cpu 500m"
    assert shown("requests.memory", Decimal(3 * 2**29)) == "requests.memory 1.5Gi"
    assert shown(GPU, Decimal(100)) == f"{GPU} 100"


def test_a_pod_asks_for_its_containers_or_for_an_init_container_that_wants_more() -> None:
    spec = {
        "containers": [
            {"resources": {"requests": {"cpu": "500m"}, "limits": {"cpu": 2, "memory": "1Gi"}}},
            {"resources": {"requests": {"cpu": 1}}},
        ],
        "initContainers": [{"resources": {"requests": {"cpu": "250m", "memory": "4Gi"}}}],
        "overhead": {"cpu": "100m"},
    }
    assert pod_requests({"spec": spec}) == {"pods": 1, "cpu": Decimal("1.6"), "memory": 4 * 2**30}


def running(node_name: str, labels: Manifest | None = None, **requests: Any) -> Manifest:
    return {
        "metadata": {"name": "other", "namespace": "ml", "labels": labels or {}},
        "spec": {"nodeName": node_name, "containers": [{"resources": {"requests": requests}}]},
        "status": {"phase": "Running"},
    }


def findings(**found: Any) -> JobFindings:
    return replace(
        JobFindings(nodes=[node("a"), node("b")], pods=[], quotas=[], secret=SecretKeys(KEYS, frozenset())),
        **found,
    )


def gpu_job(workers: int, gpus: int = 1, **spec: Any) -> Job:
    return jobs.job(replicaSpecs={"worker": {"replicas": workers, "gpus": gpus, **spec}})


def nodes_say(job: Job, **found: Any) -> list[Check]:
    return node_checks(job, plan_job(job), findings(**found))


def test_a_job_that_fits_is_told_what_it_asks_for() -> None:
    (check,) = nodes_say(
        jobs.job(replicaSpecs={"worker": {"replicas": 2, "resources": {"requests": {"cpu": 4}}}})
    )
    assert check == Check(
        "room", check.verdict, "all 3 pods fit on 2 nodes: they ask for cpu 8100m, memory 128Mi"
    )


def test_gpus_where_there_are_none() -> None:
    (check,) = nodes_say(gpu_job(2), nodes=[node("a"), node("b")])
    assert (check.name, check.verdict) == ("accelerators", "failed")
    assert check.message == f"no node offers {GPU}, the job asks for 2; they offer no accelerator"


def test_gpus_of_another_kind_are_named() -> None:
    other = node("a")
    other["status"]["allocatable"] |= {"amd.com/gpu": "4", "hugepages-2Mi": "0"}
    assert nodes_say(gpu_job(1), nodes=[other])[0].message.endswith("they offer amd.com/gpu")


@pytest.mark.parametrize(
    ("workers", "verdicts"),
    [
        (2, [("accelerators", "ok"), ("room", "ok")]),
        (3, [("accelerators", "warning"), ("room", "warning")]),
        (5, [("accelerators", "failed")]),
    ],
)
def test_gpus_are_counted_without_those_in_use(workers: int, verdicts: list[tuple[str, str]]) -> None:
    nodes, pods = [node("a", gpus=4)], [running("a", **{GPU: "2"})]
    assert told(nodes_say(gpu_job(workers), nodes=nodes, pods=pods)) == verdicts


def test_gpus_that_are_spread_do_not_hold_a_large_pod() -> None:
    *_, room = nodes_say(gpu_job(2, gpus=3), nodes=[node("a", gpus=4), node("b", gpus=2)])
    assert room.verdict == "failed"
    assert room.message.startswith("even if nothing else ran, only 1 of 2 worker pods")
    *_, room = nodes_say(gpu_job(1, gpus=3), nodes=[node("a", gpus=2), node("b", gpus=2)])
    assert room.message == f"no node is large enough for a worker pod with {GPU} 3"


def test_pods_of_the_job_itself_make_room_for_the_new_ones() -> None:
    mine = running("a", labels={"dtj.dev/job": "mnist"}, **{GPU: "2"})
    assert told(nodes_say(gpu_job(2), nodes=[node("a", gpus=2)], pods=[mine]))[-1] == ("room", "ok")


def test_nodes_that_refuse_the_pods_are_told_with_their_reason() -> None:
    taint = {"key": "team", "value": "vision", "effect": "NoSchedule"}
    down = node("c", gpus=1)
    down["status"]["conditions"][0]["status"] = "Unknown"
    nodes = [node("a", gpus=1, taints=[taint]), node("b", gpus=1, unschedulable=True), down]
    _, worker, launcher = nodes_say(gpu_job(1), nodes=nodes)
    assert launcher.message.startswith("none of 3 nodes takes the launcher pods")
    assert "1 has the taint team=vision:NoSchedule; 1 is cordoned; 1 is not ready" in worker.message


def test_taint_of_the_accelerator_and_selector_of_the_job_are_minded() -> None:
    spec = {"worker": {"replicas": 1, "gpus": 1}}
    job = jobs.job(replicaSpecs=spec, accelerator={"nodeSelector": {"gpu": "h200"}})
    taint = {"key": GPU, "value": "present", "effect": "NoSchedule"}
    plain = node("a")
    fitting = node("b", gpus=1, labels={"gpu": "h200"}, taints=[taint])
    assert told(nodes_say(job, nodes=[plain, fitting])) == [("accelerators", "ok"), ("room", "ok")]
    other = node("b", gpus=1, labels={"gpu": "a10"}, taints=[taint])
    *_, check = nodes_say(job, nodes=[plain, other])
    assert check.message.endswith("worker pods: 2 lacks the label gpu=h200")


def test_devices_that_no_node_counts_are_not_said_to_fit() -> None:
    claims = {"spec": {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]}}
    job = jobs.job(replicaSpecs={"worker": {"replicas": 2, "template": claims}})
    devices, room = nodes_say(job)
    assert (devices.name, devices.verdict, room.name) == ("devices", "warning", "room")
    assert devices.message == "the worker pods ask for devices by resourceClaims: their fit is not checked"


def test_nodes_and_pods_that_may_not_be_seen_are_warnings() -> None:
    assert told(nodes_say(jobs.job(), nodes=Unread("no"))) == [("nodes", "warning")]
    assert told(nodes_say(jobs.job(), pods=Unread("no"))) == [("room", "warning")]


def quota(hard: Manifest, used: Manifest | None = None, **spec: Any) -> Manifest:
    return {
        "metadata": {"name": "team"},
        "spec": {"hard": hard, **spec},
        "status": {"hard": hard, "used": used or {}},
    }


@pytest.mark.parametrize(
    ("hard", "used", "verdict", "message"),
    [
        ({"pods": "10"}, {"pods": "7"}, "ok", "the job fits into ResourceQuota team"),
        ({"pods": "10"}, {"pods": "8"}, "failed", "team leaves pods 2 of pods 10, the job asks for pods 3"),
        ({f"requests.{GPU}": "2"}, {f"requests.{GPU}": "1"}, "failed", f"the job asks for requests.{GPU} 2"),
        ({"count/pods": "2"}, {}, "failed", "the job asks for count/pods 3"),
        (
            {"limits.memory": "64Gi"},
            {},
            "warning",
            "team limits limits.memory, so every container must set limits.memory",
        ),
        ({"requests.storage": "1Ti"}, {}, "ok", "the job fits into ResourceQuota team"),
    ],
)
def test_quotas(hard: Manifest, used: Manifest, verdict: str, message: str) -> None:
    job = gpu_job(2)
    (check,) = quota_checks(plan_job(job), findings(quotas=[quota(hard, used)]))
    assert (check.verdict, message in check.message) == (verdict, True), check


def test_a_quota_of_some_pods_only_is_not_judged() -> None:
    (check,) = quota_checks(
        plan_job(jobs.job()), findings(quotas=[quota({"pods": "0"}, scopes=["BestEffort"])])
    )
    assert check.verdict == "warning"


@pytest.mark.parametrize(
    ("secret", "verdict", "part"),
    [
        (SecretKeys(KEYS, frozenset()), "ok", "s3 has"),
        (None, "failed", "there is no Secret s3 in namespace ml"),
        (
            SecretKeys(frozenset({"AWS_ACCESS_KEY_ID"}), frozenset()),
            "failed",
            "s3 lacks AWS_SECRET_ACCESS_KEY",
        ),
        (SecretKeys(KEYS, KEYS), "failed", "white space"),
        (Unread("no"), "warning", "can't be read"),
    ],
)
def test_the_secret(secret: Any, verdict: str, part: str) -> None:
    (check,) = secret_checks(jobs.job(artifacts=S3), findings(secret=secret))
    assert (check.verdict, part in check.message) == (verdict, True), check


def test_a_secret_for_aws_needs_a_region() -> None:
    job = jobs.job(artifacts={"uri": "s3://training/jobs", "secretName": "s3"})
    (check,) = secret_checks(job, findings())
    assert check.message == "s3 has no AWS_REGION"
    assert secret_checks(jobs.job(), findings()) == []


def the_pod(**state: Any) -> Manifest:
    job = jobs.job(artifacts=S3, data={"uri": "s3://datasets/set"})
    pod = probe_pod(job, plan_job(job))
    phase = "Succeeded" if "terminated" in state else "Pending"
    return pod | {"status": {"phase": phase, "containerStatuses": [{"state": state}] if state else []}}


def test_the_pod_is_as_the_job_s_pods_and_passes_restricted() -> None:
    template = {"spec": {"serviceAccountName": "trainer", "imagePullSecrets": [{"name": "pull"}]}}
    job = jobs.job(artifacts=S3, replicaSpecs={"worker": {"replicas": 1, "gpus": 8, "template": template}})
    pod = probe_pod(job, plan_job(job))
    (container,) = pod["spec"]["containers"]
    assert list(restricted_faults(pod)) == []
    assert (pod["metadata"]["namespace"], container["image"]) == ("ml", "trainer:1")
    assert container["envFrom"] == [{"secretRef": {"name": "s3"}}]
    assert (pod["spec"]["serviceAccountName"], pod["spec"]["imagePullSecrets"]) == (
        "trainer",
        [{"name": "pull"}],
    )
    assert GPU not in container["resources"]["limits"]
    assert pod["metadata"]["labels"] == {"app.kubernetes.io/managed-by": "dtj-doctor"}, (
        "not one of the operator's"
    )


@pytest.mark.parametrize(
    ("state", "name", "verdict", "part"),
    [
        (
            {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}},
            "image",
            "failed",
            "no such image",
        ),
        (
            {
                "waiting": {
                    "reason": "RunContainerError",
                    "message": 'exec: "python": executable file not found',
                }
            },
            "image",
            "warning",
            "has no `python`",
        ),
        (
            {"waiting": {"reason": "CreateContainerConfigError", "message": "no secret"}},
            "pod",
            "failed",
            "no secret",
        ),
        ({"terminated": {"exitCode": 1, "message": "Traceback"}}, "pod", "warning", "ended with exit code 1"),
    ],
)
def test_a_pod_that_does_not_come_up_says_why(state: Manifest, name: str, verdict: str, part: str) -> None:
    pod = the_pod(**state)
    assert ended(pod) or stuck(pod)
    (check,) = pod_checks(pod)
    assert (check.name, check.verdict, part in check.message) == (name, verdict, True), check


def test_a_pod_that_does_not_end_is_no_answer() -> None:
    pod = the_pod(waiting={"reason": "ContainerCreating"})
    assert not ended(pod)
    assert not stuck(pod)
    assert told(pod_checks(pod)) == [("pod", "warning")]
    pod = the_pod()
    pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "message": "0/2 nodes"}]
    assert "0/2 nodes" in pod_checks(pod)[0].message


def test_what_the_pod_saw_is_told() -> None:
    saw = [
        {"name": "DNS", "verdict": "ok", "message": "a"},
        {"name": "S3 conditions", "verdict": "warning", "message": "c"},
        {"name": "S3 data", "verdict": "failed", "message": "b"},
    ]
    image, dns, conditions, data = pod_checks(the_pod(terminated={"exitCode": 0, "message": json.dumps(saw)}))
    assert told([image, dns]) == [("image", "ok"), ("DNS", "ok")]
    assert told([conditions, data]) == [("S3 conditions", "warning"), ("S3 data", "failed")]
    assert "docs/stores.md" in (conditions.remedy or "")
    assert data.remedy
    assert dns.remedy is None


class PodsOnly:
    """A cluster with one pod. Each read returns the next of the given states; later reads return the last state."""

    def __init__(self, *states: Manifest) -> None:
        self.removed: list[Manifest] = []
        self.polled = asyncio.Event()
        self._states = list(states)

    async def create(self, pod: Manifest) -> Manifest:
        if not self._states:
            raise ApiError(403, "Forbidden", "no")
        return pod

    async def get(self, pod: Manifest) -> Manifest:
        self.polled.set()
        return self._states.pop(0) if self._states[1:] else self._states[0]

    async def remove_pod(self, pod: Manifest) -> None:
        self.removed.append(pod)


async def test_the_pod_is_deleted_at_its_end() -> None:
    done = the_pod(terminated={"exitCode": 0})
    api = PodsOnly(done)
    pod = the_pod()
    assert await run_pod(api, pod) == done  # type: ignore[arg-type]
    assert api.removed == [pod]


NO_SECRET_YET = {
    "reason": "CreateContainerConfigError",
    "message": "failed to sync secret cache: timed out waiting for the condition",
}


async def test_an_error_that_the_kubelet_overcomes_is_not_told() -> None:
    running = the_pod(running={})
    done = the_pod(terminated={"exitCode": 0})
    api = PodsOnly(the_pod(waiting=NO_SECRET_YET), running, done)
    assert await run_pod(api, the_pod()) == done  # type: ignore[arg-type]


def test_an_error_that_stays_is_told_before_the_pod_s_time_is_over() -> None:
    pod = the_pod(waiting=NO_SECRET_YET)

    async def seconds_until_told() -> float:
        now = asyncio.get_running_loop().time
        begun = now()
        assert await run_pod(PodsOnly(pod), the_pod()) == pod  # type: ignore[arg-type]
        return now() - begun

    assert STUCK_SECONDS <= virtual_time.run(seconds_until_told()) <= STUCK_SECONDS + 1


async def test_the_pod_is_deleted_when_the_command_is_interrupted() -> None:
    pod = the_pod()
    api = PodsOnly(pod)
    task = asyncio.create_task(run_pod(api, pod))  # type: ignore[arg-type]
    await api.polled.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert api.removed == [pod]


def test_what_runs_in_the_pod_writes_its_findings_without_any_library(tmp_path: Any) -> None:
    report = tmp_path / "report"
    environment = {
        "PATH": os.environ["PATH"],
        "DTJ_DOCTOR_REPORT": str(report),
        "DTJ_DOCTOR_ARTIFACTS_URI": "s3://training/jobs",
    }
    program = Path(in_pod.__file__).read_text()
    subprocess.run([sys.executable, "-S", "-c", program], env=environment, check=True, timeout=30 * PATIENCE)
    dns, s3 = json.loads(report.read_text())
    assert dns["name"] == "DNS"
    assert s3 == {
        "name": "S3 artifacts",
        "verdict": "warning",
        "message": "the image has neither dtj_trainer nor boto3, so S3 can't be tested",
    }
