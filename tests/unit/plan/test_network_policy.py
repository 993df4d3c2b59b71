"""The NetworkPolicy of a job: the peers that reach its pods, and the conditions for the NetworkPolicy.

* which pods the policy selects, and what it opens
* when it is created, also for MPIJobs
* a refusal, a deletion, and the flag
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from dtj.api.job import Manifest, read_job
from dtj.cluster.interface import ApiError
from dtj.operator_flags import read_flags
from dtj.plan.job import network_policy, plan_job
from dtj_trainer import contract
from tests.unit.support.jobs import manifest
from tests.unit.support.mpi_operator import MpiOperator
from tests.unit.support.world import World

OPERATOR = {"app.kubernetes.io/name": "dtj-operator", "app.kubernetes.io/instance": "training"}
POLICY = network_policy(read_job(manifest()), "dtj-system")
PODS = [pod["metadata"]["labels"] for pod in plan_job(read_job(manifest())).pods]


def lets_in(labels: dict[str, str], namespace: str, port: int, policy: Manifest = POLICY) -> bool:
    """Whether a pod of these labels reaches a pod that the policy selects, as NetworkPolicy v1 says."""
    spec, home = policy["spec"], policy["metadata"]["namespace"]

    def is_peer(peer: dict[str, Any]) -> bool:
        assert set(peer) <= {"podSelector", "namespaceSelector"}
        where = (
            peer["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": namespace}
            if "namespaceSelector" in peer
            else namespace == home
        )
        return where and peer["podSelector"]["matchLabels"].items() <= labels.items()

    return any(
        any(is_peer(peer) for peer in rule["from"])
        and port in [one["port"] for one in rule.get("ports", [{"port": port}])]
        for rule in spec["ingress"]
    )


def test_it_is_about_every_pod_of_the_job_and_no_other() -> None:
    selector = POLICY["spec"]["podSelector"]["matchLabels"]
    assert len(PODS) == 3
    assert all(selector.items() <= labels.items() for labels in PODS)
    other = plan_job(read_job(manifest(name="other")))
    assert not any(selector.items() <= pod["metadata"]["labels"].items() for pod in other.pods)
    assert not selector.items() <= OPERATOR.items()


def test_kubernetes_takes_it() -> None:
    import kubernetes_validate  # takes seconds: not for who runs another test

    for version in ("1.25", kubernetes_validate.latest_version()):
        kubernetes_validate.validate(POLICY, version, strict=True)


PORTS = (contract.SSH_PORT, contract.TENSORFLOW_PORT, contract.PROGRESS_PORT, contract.START_BARRIER_PORT)


@pytest.mark.parametrize("port", [*PORTS, 29501, 49152])
def test_the_jobs_own_pods_reach_each_other_on_every_port(port: int) -> None:
    assert all(lets_in(labels, "ml", port) for labels in PODS)


def test_the_operator_reaches_the_progress_and_nothing_else() -> None:
    assert lets_in(OPERATOR, "dtj-system", contract.PROGRESS_PORT)
    assert not lets_in(OPERATOR, "dtj-system", contract.SSH_PORT)
    assert not lets_in(OPERATOR, "dtj-system", contract.START_BARRIER_PORT)
    assert not lets_in(OPERATOR, "elsewhere", contract.PROGRESS_PORT)


@pytest.mark.parametrize("port", [contract.SSH_PORT, contract.PROGRESS_PORT])
def test_nobody_else_reaches_anything(port: int) -> None:
    assert not lets_in({"app": "notebook"}, "ml", port)
    assert not any(lets_in(labels, "another", port) for labels in PODS), "a job of the same name elsewhere"
    other = plan_job(read_job(manifest(name="other"))).pods[0]["metadata"]["labels"]
    assert not lets_in(other, "ml", port)


def test_what_goes_out_stays_open() -> None:
    assert POLICY["spec"]["policyTypes"] == ["Ingress"]
    assert "egress" not in POLICY["spec"]


class PolicyWorld(World):
    plan = staticmethod(partial(plan_job, operator_namespace="dtj-system"))


async def test_it_is_there_before_the_jobs_first_pod_and_is_made_once() -> None:
    world = PolicyWorld()
    await world.rest()

    calls = [call for call in world.cluster.calls if call.verb == "create" and call.kind != "Event"]
    made = [(call.kind, call.name) for call in calls]
    kinds = [kind for kind, _ in made]
    assert ("NetworkPolicy", "mnist-uid000001") in made[: kinds.index("Pod")]
    assert [kind for kind, _ in made].count("NetworkPolicy") == 1
    assert world.phase == "Succeeded"


async def test_a_job_that_is_handed_over_has_one_before_its_mpijob() -> None:
    world = PolicyWorld(horovod={"launcher": "MPIJob"})
    mpi = MpiOperator(world.cluster)
    world.cluster.served.add(("kubeflow.org/v2beta1", "mpijobs"))
    await world.until(lambda: any(call.kind == "MPIJob" for call in world.cluster.writes))
    mpi.step()

    calls = [call for call in world.cluster.calls if call.verb == "create" and call.kind != "Event"]
    made = [(call.kind, call.name) for call in calls]
    assert made.index(("NetworkPolicy", "mnist-uid000001")) < made.index(("MPIJob", "mnist"))
    selector = world.cluster.objects["NetworkPolicy", "ml", "mnist-uid000001"]["spec"]["podSelector"]
    pods = [pod["metadata"]["labels"] for pod in world.cluster.of_kind("Pod")]
    assert len(pods) == 2
    assert all(selector["matchLabels"].items() <= labels.items() for labels in pods)


async def test_one_that_is_there_already_is_the_jobs_own() -> None:
    world = PolicyWorld()
    # The Secret, the status, the Service, the policy.
    world.cluster.die_at, world.cluster.die_when = 4, "after"
    await world.rest()

    assert world.deaths == 1
    assert [call.kind for call in world.cluster.calls].count("NetworkPolicy") == 2
    assert world.phase == "Succeeded"


async def test_where_it_may_not_be_made_the_job_waits_and_says_why() -> None:
    world = PolicyWorld()
    world.cluster.refuse = lambda made: (
        ApiError(403, "Forbidden", "networkpolicies is forbidden: cannot create")
        if made["kind"] == "NetworkPolicy"
        else None
    )
    for _ in range(4):
        await world.step()

    assert world.pod_names() == []
    (said,) = [one["message"] for one in world.status["conditions"] if one["reason"] == "Forbidden"]
    assert said.startswith("NetworkPolicy mnist-uid000001 can't be made: networkpolicies is forbidden")


async def test_without_the_flag_there_is_none() -> None:
    world = World()
    await world.rest()

    assert not any(call.kind == "NetworkPolicy" for call in world.cluster.calls)


def test_the_flag_needs_to_know_where_the_operators_pods_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert read_flags(["--job-network-policies", "--lease-namespace=dtj-system"]).job_network_policies
    assert not read_flags([]).job_network_policies
    with pytest.raises(SystemExit):
        read_flags(["--job-network-policies"])
    assert "needs --lease-namespace" in capsys.readouterr().err


async def test_a_new_attempt_makes_the_secret_and_the_network_policy_that_somebody_deleted() -> None:
    world = PolicyWorld()
    world.kubelet.program = lambda pod, ran: None
    await world.until(lambda: world.phase == "Running")
    (secret,), (policy,) = (world.cluster.of_kind(kind) for kind in ("Secret", "NetworkPolicy"))
    for kind, there in (("Secret", secret), ("NetworkPolicy", policy)):
        world.cluster.remove((kind, "ml", there["metadata"]["name"]))

    world.cluster.remove(("Pod", "ml", "mnist-worker-0"))
    await world.until(lambda: world.phase == "Running" and world.status["attempt"] == 2)

    (again,), (rules,) = (world.cluster.of_kind(kind) for kind in ("Secret", "NetworkPolicy"))
    assert (again["metadata"]["name"], rules["spec"]) == (secret["metadata"]["name"], policy["spec"])
