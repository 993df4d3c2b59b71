"""The installed operator: its health, its metrics, and minimal rights."""

from __future__ import annotations

import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.cluster.jobs import SYSTEM, KubectlError, Manifest, Namespace, kubectl, stub, until
from tests.cluster.operator_pods import ask, holder, kill, leader, replicas
from tests.patience import PATIENCE

pytestmark = [pytest.mark.cluster, pytest.mark.alone]
IDENTITY = f"system:serviceaccount:{SYSTEM}:dtj-operator"


def test_two_replicas_are_ready_and_one_of_them_leads() -> None:
    pods = {pod["metadata"]["name"] for pod in until("two replicas", two_replicas, 60)}
    assert leader() in pods
    for pod in pods:
        assert f"\ndtj_leader {float(pod == leader())}\n" in ask(pod, 8081, "/metrics")


def test_it_is_healthy() -> None:
    assert "oldestSeconds" in ask(leader(), 8080, "/healthz")


def test_it_tells_prometheus_of_its_work() -> None:
    text = ask(leader(), 8081, "/metrics")
    assert "\ndtj_build_info{" in text
    assert "\ndtj_reconcile_duration_seconds_bucket{" in text
    for name in ("dtj_jobs", "dtj_queue_depth", "dtj_job_restarts_total", "dtj_gpu_held_seconds_total"):
        assert f"\n# TYPE {name} " in text


def test_a_killed_leader_is_replaced_and_no_pod_is_made_twice(namespace: Namespace) -> None:
    until("two replicas", two_replicas, 60)
    early = namespace.apply(stub("early", "--steps=6000"))
    early.wait(120, "Running")
    uids = early.uids()
    before = holder()

    kill(leader())
    killed = time.monotonic()
    late = namespace.apply(stub("late"))
    until("another leader", lambda: holder() not in ("", before), 120)
    until("the job's first pods", late.pods, 120)
    # How soon, in the time of the leases alone: tests/unit/reconcile/test_election.py.
    print(f"replaced, and at work, after {time.monotonic() - killed:.1f} s")
    late.wait(240)
    assert early.hurry_to_the_end()["restarts"] == {"application": 0, "infrastructure": 0}
    assert early.uids().items() <= uids.items()
    # Both ended under the new leader; only one of them also started under it.
    how = {"result": "succeeded", "reason": "JobSucceeded"}
    until("both to be counted", lambda: told(namespace, "dtj_jobs_finished_total", **how) == 2, 10)
    until("both to be shown", lambda: told(namespace, "dtj_jobs", phase="Succeeded") == 2, 10)
    assert told(namespace, "dtj_job_restarts_total", cause="infrastructure") == 0
    text = ask(leader(), 8081, "/metrics")
    assert f'job_name="{late.name}",job_namespace="{namespace.name}"' not in text, "it has ended"
    for job in (early, late):
        # Of each pod, the scheduler says once that it has a place.
        placed = [e for e in namespace.list("events") if e["reason"] == "Scheduled"]
        names = [e["involvedObject"]["name"] for e in placed]
        mine = [name for name in names if name.startswith(f"{job.name}-")]
        assert len(mine) == len(set(mine)) == 3, mine


def test_a_rollout_hands_over_without_waiting_for_the_lease_to_expire(namespace: Namespace) -> None:
    until("two replicas", two_replicas, 60)
    before = holder()
    kubectl("--namespace", SYSTEM, "rollout", "restart", "deployment/dtj-operator")
    kubectl(
        "--namespace",
        SYSTEM,
        "rollout",
        "status",
        "deployment/dtj-operator",
        f"--timeout={120 * PATIENCE}s",
        timeout=130,
    )
    until("the old ones to be gone", lambda: leader() in names_of_replicas() and two_replicas(), 60)

    assert holder() != before
    namespace.apply(stub("after")).wait(240)


def told(namespace: Namespace, name: str, **labels: str) -> float | None:
    """What the leader says of the Horovod jobs of a namespace."""
    wanted = {"job_namespace": namespace.name, "strategy": "Horovod", **labels}
    for family in text_string_to_metric_families(ask(leader(), 8081, "/metrics")):
        for sample in family.samples:
            if sample.name == name and sample.labels == wanted:
                return sample.value
    return None


def two_replicas() -> list[Manifest] | None:
    """The operator's pods, once both are there."""
    pods = replicas()
    return pods if len(pods) == 2 else None


def names_of_replicas() -> set[str]:
    return {pod["metadata"]["name"] for pod in replicas()}


@pytest.mark.parametrize(
    "words",
    [
        ("get", "secrets"),
        ("list", "secrets"),
        ("watch", "secrets"),
        ("delete", "secrets"),
        ("get", "pods", "--subresource=log"),
        ("create", "pods", "--subresource=exec"),
        ("update", "distributedtrainingjobs"),
        ("deletecollection", "distributedtrainingjobs"),
        ("delete", "services"),
        ("list", "nodes"),
        ("create", "clusterroles"),
        ("delete", "leases"),
        ("get", "leases"),
        ("*", "*"),
    ],
)
def test_it_may_not(words: tuple[str, ...]) -> None:
    with pytest.raises(KubectlError):
        kubectl("auth", "can-i", *words, "--all-namespaces", f"--as={IDENTITY}", "--quiet")
