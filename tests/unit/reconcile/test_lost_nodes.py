"""Silent nodes: the operator counts their pods as lost, force-deletes them in time, and recreates them elsewhere.

* when a node is silent
* tolerations of pods
* restarts elsewhere, suspension and deletion with a pod on a silent node
* pods of other owners
"""

from __future__ import annotations

from typing import Any

import pytest

from dtj.api.job import Manifest
from dtj.plan.job import plan_job
from dtj.plan.pods import LOST_NODE_SECONDS
from dtj.status.force_deletion import FORCE_SLACK_SECONDS, describe_ending, seconds_until_force_deletion
from dtj.status.pods import view_pod
from dtj.status.times import written_time
from tests.unit.support.jobs import job, manifest, with_template
from tests.unit.support.kubelet import Ending
from tests.unit.support.pods import WORKER_0, at, deleting, ended, running, views
from tests.unit.support.world import KEY, World

WORKER, LAUNCHER = "mnist-worker-1", "mnist-launcher-0"
GRACE = 120
PS_SPEC: dict[str, Any] = {
    "strategy": "ParameterServer",
    "replicaSpecs": {"worker": {"replicas": 2}, "ps": {}},
}
NOTICED = pytest.mark.parametrize("noticed", [True, False], ids=["silent", "not known to be silent"])
JOB = ("DistributedTrainingJob", *KEY)


def terminating(*, grace: int = GRACE, told: float = 0, silent: bool = False, **spec: Any) -> Manifest:
    made = running(WORKER_0)
    by = written_time(at(told + grace))
    made["metadata"] |= {"deletionTimestamp": by, "deletionGracePeriodSeconds": grace}
    made["spec"] |= spec
    if silent:
        made["status"]["conditions"] = [
            {"type": "Ready", "status": "False"},
            {"type": "ContainersReady", "status": "True"},
        ]
    return made


def endless(pod: Manifest, ran: int) -> Ending | None:
    return None


async def ran(noticed: bool, name: str = WORKER, **spec: Any) -> World:
    """A job that runs, one node of which is lost: the control plane has told its pod to end."""
    world = World(**spec)
    world.kubelet.program = endless
    await world.until(lambda: world.phase == "Running")
    world.lose_node_of(name, noticed=noticed)
    world.cluster.end_pod(world.cluster.pod(name))
    return world


async def seconds_until_gone(world: World, uid: str) -> float:
    """How long the operator waits, which is woken only when it asked to be."""
    began = world.cluster.now
    await world.until(lambda: all(p["metadata"]["uid"] != uid for p in world.cluster.of_kind("Pod")), 400)
    return (world.cluster.now - began).total_seconds()


# --- when --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pod", "seconds"),
    [
        (running(WORKER_0), None),
        (terminating(), GRACE + FORCE_SLACK_SECONDS),
        (terminating(told=-GRACE), FORCE_SLACK_SECONDS),
        (terminating(told=-1000), GRACE + FORCE_SLACK_SECONDS - 1000),
        (terminating(silent=True), FORCE_SLACK_SECONDS),
        (terminating(silent=True, readinessGates=[{"conditionType": "x"}]), GRACE + FORCE_SLACK_SECONDS),
        (terminating(grace=0), None),
    ],
    ids=["runs", "told", "grace over", "long over", "silent", "readiness gate", "held by a finalizer"],
)
def test_a_pod_has_its_grace_and_some_more_unless_its_node_is_silent(
    pod: Manifest, seconds: float | None
) -> None:
    assert seconds_until_force_deletion(view_pod(pod), at(0)) == seconds


@pytest.mark.parametrize(
    ("conditions", "silent"),
    [
        ({"Ready": "True", "ContainersReady": "True"}, False),
        ({"Ready": "False", "ContainersReady": "False"}, False),
        ({"Ready": "False"}, False),
        ({"Ready": "False", "ContainersReady": "True"}, True),
    ],
)
def test_a_node_is_silent_when_only_its_controller_says_that_the_pod_is_not_ready(
    conditions: dict[str, str], silent: bool
) -> None:
    pod = running(WORKER_0)
    pod["status"]["conditions"] = [{"type": kind, "status": status} for kind, status in conditions.items()]

    assert view_pod(pod).silent is silent


# --- tolerations ---------------------------------------------------------------------------------------


def tolerations(**job_or_template: Any) -> list[Manifest]:
    given = job(**job_or_template["job"]) if "job" in job_or_template else None
    if given is None:
        template = {"spec": {"tolerations": job_or_template["template"]}}
        given = job(**with_template(template)["spec"])
    worker = next(pod for pod in plan_job(given).pods if pod["metadata"]["name"] == WORKER_0)
    found: list[Manifest] = worker["spec"]["tolerations"]
    return found


def lost(key: str) -> Manifest:
    return {
        "key": f"node.kubernetes.io/{key}",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": LOST_NODE_SECONDS,
    }


BOTH = [lost("not-ready"), lost("unreachable")]


@pytest.mark.parametrize(
    "spec",
    [{}, PS_SPEC, {"strategy": "TorchDistributed"}],
    ids=["Horovod", "ParameterServer", "TorchDistributed"],
)
def test_every_pod_is_given_up_soon_after_its_node_went_silent(spec: dict[str, Any]) -> None:
    for pod in plan_job(job(**spec)).pods:
        assert pod["spec"]["tolerations"] == BOTH


@pytest.mark.parametrize(
    ("own", "added"),
    [
        ([{"key": "spot", "operator": "Exists"}], BOTH),
        ([lost("unreachable") | {"tolerationSeconds": 900}], [lost("not-ready")]),
        ([{"key": "node.kubernetes.io/unreachable", "operator": "Exists"}], [lost("not-ready")]),
        ([lost("unreachable") | {"effect": "NoSchedule"}], BOTH),
        ([{"operator": "Exists"}], []),
        ([{"operator": "Exists", "effect": "NoSchedule"}], BOTH),
    ],
)
def test_a_template_that_says_itself_how_long_a_pod_stays_is_followed(
    own: list[Manifest], added: list[Manifest]
) -> None:
    assert tolerations(template=own) == own + added


def test_tolerations_of_the_accelerator_stay() -> None:
    worker = {"replicas": 2, "gpus": 1}
    accelerator = {"tolerations": [{"key": "gpu-pool", "operator": "Exists", "effect": "NoSchedule"}]}

    found = tolerations(job={"replicaSpecs": {"worker": worker}, "accelerator": accelerator})

    assert [toleration["key"] for toleration in found] == [
        "nvidia.com/gpu",
        "gpu-pool",
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    ]


# --- what follows ----------------------------------------------------------------------------------------


@NOTICED
async def test_the_attempt_goes_on_elsewhere_and_the_loss_is_the_infrastructures(noticed: bool) -> None:
    world = await ran(noticed)
    uid = world.cluster.pod(WORKER)["metadata"]["uid"]

    waited = await seconds_until_gone(world, uid)
    await world.until(lambda: world.phase == "Running")

    assert world.status["attempt"] == 2
    assert world.status["restarts"] == {"application": 0, "infrastructure": 1}
    least = FORCE_SLACK_SECONDS + (0 if noticed else GRACE)
    assert least <= waited <= least + 3
    (event,) = (e for e in world.cluster.of_kind("Event") if e["reason"] == "PodForceDeleted")
    assert event["type"] == "Warning"
    why = "does not answer" if noticed else f"has not ended the pod within {GRACE} s"
    assert f"pod {WORKER} of attempt 1" in event["message"]
    assert f"node node-1 {why}" in event["message"]
    assert ("should have ended by" in event["message"]) is not noticed, "its grace period is not over"


@NOTICED
async def test_a_node_lost_before_any_rank_started_costs_no_restart(noticed: bool) -> None:
    world = World()
    await world.until(lambda: len(world.pod_names()) == 2)
    await world.until(lambda: world.cluster.pod(WORKER)["status"]["phase"] == "Running")
    world.lose_node_of(WORKER, noticed=noticed)
    world.cluster.end_pod(world.cluster.pod(WORKER))

    await world.until(lambda: world.phase == "Succeeded", 400)

    assert world.status["attempt"] == 1
    assert world.status["restarts"] == {"application": 0, "infrastructure": 0}
    assert world.cluster.created_pods.count((WORKER, "1")) == 2


async def test_the_job_says_for_whom_it_waits() -> None:
    world = await ran(noticed=True)

    await world.until(lambda: world.condition("Running")["reason"] == "PodsEnding")
    await world.until(lambda: world.pod_names() == [WORKER])
    await world.step()

    assert "mnist-worker-1 (node node-1 does not answer)" in world.condition("Running")["message"]


async def test_a_pod_that_ends_within_its_grace_is_left_to_do_so() -> None:
    world = World()
    world.kubelet.program, world.kubelet.end_steps = endless, GRACE
    await world.until(lambda: world.phase == "Running")

    world.cluster.end_pod(world.cluster.pod(WORKER))
    await world.until(lambda: world.phase == "Running" and world.status["attempt"] == 2, 500)

    assert "PodForceDeleted" not in world.events()


@NOTICED
async def test_a_replica_that_starts_alone_gets_its_name_back(noticed: bool) -> None:
    world = await ran(noticed, **PS_SPEC)
    others = {p["metadata"]["name"]: p["metadata"]["uid"] for p in world.cluster.of_kind("Pod")}
    del others[WORKER]

    await world.until(lambda: world.status.get("replicaAttempts") == {"worker-1": 2})
    await world.until(lambda: world.phase == "Running", 400)

    assert world.status["restarts"] == {"application": 0, "infrastructure": 1}
    assert {name: world.cluster.pod(name)["metadata"]["uid"] for name in others} == others
    assert world.events().count("PodForceDeleted") == 1


@NOTICED
async def test_a_job_on_a_lost_node_can_be_suspended(noticed: bool) -> None:
    world = World()
    world.kubelet.program = endless
    await world.until(lambda: world.phase == "Running")
    world.lose_node_of(WORKER, noticed=noticed)

    def suspend(job: Manifest) -> None:
        job["spec"]["runPolicy"] = {"suspend": True}

    world.cluster.change(JOB, suspend)
    await world.until(lambda: world.phase == "Suspended", 400)

    assert world.pod_names() == []
    assert world.status["restarts"] == {"application": 0, "infrastructure": 0}


async def test_a_job_that_is_over_leaves_no_pod_on_a_lost_node() -> None:
    world = World()
    await world.until(lambda: world.phase == "Running")
    world.lose_node_of(WORKER, noticed=False)

    await world.until(lambda: world.phase == "Succeeded")
    await world.until(lambda: WORKER not in world.pod_names(), 400)

    assert "PodForceDeleted" in world.events()
    assert world.phase == "Succeeded"


async def test_a_pod_of_a_deleted_job_does_not_keep_its_name_from_the_next_one() -> None:
    world = await ran(noticed=False)
    world.cluster.remove(JOB)
    world.kubelet.step()
    world.apply(manifest())

    await world.until(lambda: world.phase == "Running", 400)

    assert world.status["restarts"] == {"application": 0, "infrastructure": 0}


async def test_a_pod_of_a_deleted_job_goes_also_when_no_other_job_takes_the_name() -> None:
    world = await ran(noticed=False)
    world.cluster.remove(JOB)

    await world.until(lambda: world.pod_names() == [], 400)
    await world.rest()

    assert world.again is None


async def test_a_pod_of_somebody_else_that_has_the_jobs_label_is_left_alone() -> None:
    world = World()
    other = running("mnist-extra-0") | {"kind": "Pod"}
    other["metadata"] = {"name": "mnist-extra-0", "namespace": "ml", "labels": {"dtj.dev/job": "mnist"}}
    world.cluster.add(other)
    world.cluster.change(
        ("Pod", "ml", "mnist-extra-0"),
        lambda pod: pod["metadata"].update(
            deletionTimestamp=written_time(world.cluster.now), deletionGracePeriodSeconds=30
        ),
    )
    world.kubelet.lost.add(world.cluster.pod("mnist-extra-0")["metadata"]["uid"])
    world.kubelet.program = endless

    for _ in range(100):
        await world.step()

    assert "mnist-extra-0" in world.pod_names()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", range(1, 11))
async def test_an_operator_that_dies_meanwhile_goes_on_and_tells_it_once(call: int, when: Any) -> None:
    world = await ran(noticed=True)
    world.cluster.die_at, world.cluster.die_when = call, when

    await world.until(lambda: world.status["attempt"] == 2 and world.phase == "Running", 400)

    assert world.deaths == 1
    assert world.events().count("PodForceDeleted") == 1
    assert world.status["restarts"] == {"application": 0, "infrastructure": 1}


def test_a_finalizer_that_holds_an_ended_pod_is_named() -> None:
    pod = deleting(ended("mnist-worker-0", 0))
    pod["metadata"]["finalizers"] = ["example.com/copy"]
    assert describe_ending(views(pod)) == "mnist-worker-0 (its finalizer example.com/copy holds it)"
    runs = deleting(running("mnist-worker-0"))
    runs["metadata"]["finalizers"] = ["example.com/copy"]
    assert describe_ending(views(runs)) == "mnist-worker-0"
