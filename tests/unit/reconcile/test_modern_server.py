"""Jobs on Kubernetes 1.36: refusals of its policies, its order of an eviction, and restarts in living pods.

* a pod that is refused in a restart, after others like it were taken
* the same answers over HTTP
* evictions of running and of completed pods
* containers that restart in place
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dtj.api.identity import LABEL_INDEX
from dtj.api.job import Manifest
from dtj.cluster.api import KubernetesApi
from dtj.cluster.interface import ApiError
from dtj.cluster.kubernetes_client import client
from dtj.reconcile.refusal import CreationRefused
from tests.unit.support import modern
from tests.unit.support.fake_cluster import FakeCluster
from tests.unit.support.http_cluster import http_cluster
from tests.unit.support.kubelet import Ending
from tests.unit.support.programs import endless
from tests.unit.support.world import World

NO_RESTART = {"application": 0, "infrastructure": 0}
ONE_LOSS = {"application": 0, "infrastructure": 1}
POLICY, WEBHOOK, QUOTA, VALIDATION = modern.policy(), modern.webhook(), modern.quota(), modern.validation()


async def running(**spec: object) -> World:
    world = World(**spec)
    world.kubelet.program = endless
    await world.until(lambda: world.phase == "Running")
    return world


# --- refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("refusal", "reason", "words"),
    [
        (POLICY, "Forbidden", "resulted in error: no such key: annotations"),
        (modern.policy("Forbidden"), "Forbidden", "resulted in error: no such key: annotations"),
        (WEBHOOK, "Forbidden", "denied the request: no"),
        (QUOTA, "QuotaExceeded", "exceeded quota: team"),
        # A webhook that changes pods may make one invalid.
        (VALIDATION, "SpecInvalid", "spec.containers[0].image: Required value"),
    ],
    ids=["policy", "policy with a reason", "webhook", "quota", "validation"],
)
@pytest.mark.parametrize("strategy", ["Horovod", "TorchDistributed", "ParameterServer"])
@pytest.mark.parametrize("anew", [False, True], ids=["", "new operator"])
async def test_no_refusal_in_a_restart_fails_a_job_that_ran(
    refusal: modern.Refusing, reason: str, words: str, strategy: str, anew: bool
) -> None:
    roles = {"worker": {"replicas": 2}} | ({"ps": {}} if strategy == "ParameterServer" else {})
    world = await running(strategy=strategy, replicaSpecs=roles)
    world.cluster.refuse = refusal
    world.cluster.remove(("Pod", "ml", "mnist-worker-1"))
    if anew:
        world.start_operator()
    await world.until(lambda: world.condition("Running").get("reason") == reason)
    assert world.phase == "Restarting"
    assert words in world.condition("Running")["message"]
    for _ in range(400):
        await world.step()
    assert world.phase == "Restarting"

    world.cluster.refuse = lambda made: None
    await world.until(lambda: world.phase == "Running", 400)
    assert world.condition("Created")["reason"] == "JobCreated"
    assert world.status["restarts"] == ONE_LOSS


@pytest.mark.parametrize("refusal", [POLICY, WEBHOOK, QUOTA], ids=["policy", "webhook", "quota"])
async def test_a_job_that_is_refused_at_its_start_waits(refusal: modern.Refusing) -> None:
    world = World()
    world.cluster.refuse = refusal
    for _ in range(100):
        await world.step()
    assert world.phase == "Pending"

    world.cluster.refuse = lambda made: None
    await world.rest()
    assert world.phase == "Succeeded"


async def test_a_job_that_is_invalid_at_its_start_fails() -> None:
    world = World()
    world.cluster.refuse = VALIDATION
    await world.rest()
    assert (world.phase, world.condition("Failed")["reason"]) == ("Failed", "ValidationFailed")


@pytest.mark.parametrize(
    ("refusal", "final"),
    [(POLICY, False), (WEBHOOK, False), (VALIDATION, True)],
    ids=["policy", "webhook", "own"],
)
async def test_the_answers_mean_the_same_over_http(refusal: modern.Refusing, final: bool) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "ml"}, "spec": {}}
    async with http_cluster(moves=False) as server:
        server.cluster.refuse = refusal
        api = KubernetesApi(client.ApiClient(client.Configuration(host=server.url)))
        with pytest.raises(ApiError) as raised:
            await api.create(pod)
        await api.close()
    assert CreationRefused(raised.value, pod).invalid is final


# --- evictions ----------------------------------------------------------------------------------------


def drained(cluster: FakeCluster, name: str) -> None:
    modern.evict(cluster, name)


def tainted(cluster: FakeCluster, name: str) -> None:
    modern.mark(cluster, name, modern.TAINT)


def preempted(cluster: FakeCluster, name: str) -> None:
    modern.mark(cluster, name, modern.PREEMPTION)


@pytest.mark.parametrize("goes", [drained, tainted, preempted, modern.evict_by_kubelet])
@pytest.mark.parametrize("strategy", ["Horovod", "TorchDistributed"])
async def test_a_pod_that_is_marked_before_its_deletion_is_counted_once(
    goes: Callable[[FakeCluster, str], None], strategy: str
) -> None:
    world = await running(strategy=strategy, runPolicy={"backoffLimit": 0})
    goes(world.cluster, "mnist-worker-1")
    await world.step()
    if "mnist-worker-1" in world.pod_names():
        world.cluster.end_pod(world.cluster.pod("mnist-worker-1"))
    await world.until(lambda: world.phase == "Running")

    assert (world.status["attempt"], world.status["restarts"]) == (2, ONE_LOSS)
    assert world.status["failure"]["class"] in ("PodLost", "Evicted")
    assert ("nodeFailures" in world.status) is (goes is modern.evict_by_kubelet)


@pytest.mark.parametrize("strategy", ["Horovod", "TorchDistributed", "ParameterServer"])
async def test_a_drain_evicts_completed_pods_and_the_success_counts(strategy: str) -> None:
    roles = {"worker": {"replicas": 3}} | ({"ps": {}} if strategy == "ParameterServer" else {})
    world, done = World(strategy=strategy, replicaSpecs=roles), set[str]()

    def program(pod: Manifest, ran: int) -> Ending | None:
        labels = pod["metadata"]["labels"]
        return (0, "") if ran >= 2 and f"{labels['dtj.dev/role']}-{labels[LABEL_INDEX]}" in done else None

    world.kubelet.program = program
    await world.until(lambda: world.phase == "Running")
    chief = {"Horovod": "launcher-0", "TorchDistributed": "worker-0", "ParameterServer": "chief-0"}[strategy]
    done |= {"worker-1"} if strategy == "TorchDistributed" else {chief}
    await world.until(lambda: world.cluster.pod(f"mnist-{min(done)}")["status"]["phase"] == "Succeeded")
    await world.step()
    modern.evict(world.cluster, f"mnist-{min(done)}")
    for _ in range(10):
        await world.step()
    done |= {"worker-0", "worker-1", "worker-2", chief}
    await world.rest()

    assert (world.phase, world.status["attempt"]) == ("Succeeded", 1)
    assert world.status["restarts"] == NO_RESTART


# --- restarts in place --------------------------------------------------------------------------------


@pytest.mark.parametrize("container", ["log-agent", None], ids=["sidecar", "all"])
async def test_containers_that_restart_in_a_living_pod_disturb_no_pass(container: str | None) -> None:
    """Validation refuses the rule that restarts all of them. A job of an earlier release may have it."""
    template = {"spec": {"containers": [{"name": "log-agent", "image": "agent:1"}]}}
    world = await running(
        strategy="TorchDistributed", replicaSpecs={"worker": {"replicas": 2, "template": template}}
    )
    for _ in range(3):
        modern.restart_in_place(world.cluster, "mnist-worker-1", container)
        await world.step()
    assert (world.phase, world.status["attempt"]) == ("Running", 1)

    world.kubelet.program = lambda pod, ran: (0, "") if ran >= 2 else None
    await world.rest()
    assert (world.phase, world.status["restarts"]) == ("Succeeded", NO_RESTART)
