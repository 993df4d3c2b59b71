"""Nodes are drained, cut off and killed under jobs that train there: the jobs go on elsewhere and lose no more
than the steps since the newest checkpoint.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cluster import nodes, test_parameter_server
from tests.cluster.jobs import Job, Manifest, Namespace, example, until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
STRATEGIES = ("Horovod", "ParameterServer")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_job_goes_on_when_a_node_is_drained(
    namespace: Namespace, victim: nodes.Machine, strategy: str
) -> None:
    job = namespace.apply(job_on_both_nodes("drained", strategy, victim.name))
    saved = checkpoint(job)
    (lost,) = pods_on(job, victim.name)

    nodes.drain(victim.name)
    assert pods_on(job, victim.name) == {}
    status = job.wait(300)

    told_as_lost_once(status, lost)
    went_on_from(job, status, saved)


def test_a_job_goes_on_when_a_node_falls_silent_and_what_comes_back_does_no_harm(
    namespace: Namespace, victim: nodes.Machine
) -> None:
    job = namespace.apply(job_on_both_nodes("cut-off", "Horovod", victim.name))
    saved = checkpoint(job)
    ((lost, uid),) = pods_on(job, victim.name).items()

    victim.cut_off()
    trains_again(job, lost, uid)
    assert victim.runs(uid), "the node is silent, and its pod is not dead"
    victim.reconnect()
    until("the lost pod's processes to end", lambda: not victim.runs(uid), 120)
    status = job.wait(300)

    told_as_lost_once(status, lost)
    went_on_from(job, status, saved)


@pytest.mark.chaos
def test_a_job_goes_on_when_a_node_is_killed(namespace: Namespace, victim: nodes.Machine) -> None:
    job = namespace.apply(job_on_both_nodes("unplugged", "Horovod", victim.name))
    saved = checkpoint(job)
    ((lost, uid),) = pods_on(job, victim.name).items()

    victim.kill()
    trains_again(job, lost, uid)
    status = job.wait(300)

    told_as_lost_once(status, lost)
    went_on_from(job, status, saved)


def job_on_both_nodes(name: str, strategy: str, victim: str) -> Manifest:
    """One worker on the victim and all else off it; its pods leave a lost node after some seconds."""
    if strategy == "Horovod":
        job = example(name, args=["--max-steps=900", "--epochs=2", "--checkpoint-steps=25"])
        roles: tuple[str, ...] = ("launcher", "worker")
    else:
        job = test_parameter_server.example(name, "Asynchronous", "--checkpoint-seconds=3")
        roles = ("chief", "worker", "ps", "evaluator")
    replicas = job["spec"]["replicaSpecs"]
    for role in roles:
        placement = spread(name) if role == "worker" else away_from(victim)
        replicas.setdefault(role, {})["template"] = {"spec": leaving_quickly() | placement}
    return job


def leaving_quickly() -> Manifest:
    lost = ("not-ready", "unreachable")
    return {
        "terminationGracePeriodSeconds": 15,
        "tolerations": [
            {
                "key": f"node.kubernetes.io/{taint}",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": 2,
            }
            for taint in lost
        ],
    }


def spread(job: str) -> Manifest:
    """The workers on as many nodes as there are."""
    labels = {"dtj.dev/job": job, "dtj.dev/role": "worker"}
    return {
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": labels},
            }
        ]
    }


def away_from(node: str) -> Manifest:
    name = {"key": "metadata.name", "operator": "NotIn", "values": [node]}
    terms = {"nodeSelectorTerms": [{"matchFields": [name]}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


def pods_on(job: Job, node: str) -> dict[str, str]:
    """Name and uid of its pods there."""
    return {
        pod["metadata"]["name"]: pod["metadata"]["uid"]
        for pod in job.pods()
        if pod["spec"].get("nodeName") == node
    }


def checkpoint(job: Job) -> int:
    """Step of its newest checkpoint, once there is one; it trains then."""
    return test_parameter_server.checkpoint_after(job, 0)


def trains_again(job: Job, lost: str, uid: str) -> None:
    """Wait until the lost pod was replaced and the job has come further than before."""

    def replaced() -> bool:
        pod: dict[str, Any] = next((p for p in job.pods() if p["metadata"]["name"] == lost), {})
        return bool(pod) and pod["metadata"]["uid"] != uid and pod["status"]["phase"] == "Running"

    until(f"{lost} to be replaced", replaced, 180)
    job.wait_for_step(job.status["progress"]["step"] + 1)


def told_as_lost_once(status: Manifest, lost: str) -> None:
    assert status["restarts"] == {"application": 0, "infrastructure": 1}
    assert status["failure"]["pod"] == lost


def went_on_from(job: Job, status: Manifest, saved: int) -> None:
    """The newest attempt began at a checkpoint not older than that, and what the bucket has of it is whole."""
    artifacts = job.artifacts()
    keys = artifacts.sizes()
    rows = [row for row in artifacts.metrics() if row["kind"] == "train"]
    attempts = {row["attempt"] for row in rows}
    steps = [row["step"] for row in rows if row["attempt"] == max(attempts)]
    if len(attempts) > 1:
        assert min(steps) > saved
    newest = status["artifacts"]["checkpoint"]["uri"].removeprefix(f"{artifacts.uri}/")
    manifest = json.loads(artifacts.read(f"{newest}/manifest.json"))
    assert manifest["step"] >= max(steps)
    files = {f"{newest}/{file['key']}": file["size"] for file in manifest["files"]}
    assert files.items() <= keys.items()
    assert any(key.startswith("model/") for key in keys)
