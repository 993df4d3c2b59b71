"""The run policy in the status: start deadline, TTL after the end, and `managedBy`.

* startDeadlineSeconds: obstacles, retries, suspensions, partial starts
* ttlSecondsAfterFinished: deletion, changes of the TTL, an operator that dies
* managedBy: jobs of other controllers
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from dtj.api.crd import custom_resource_definition
from dtj.api.identity import OPERATOR, is_domain_path
from dtj.api.job import Manifest
from dtj.cluster.interface import ApiError
from dtj.cluster.user_api import connect
from dtj.reconcile.informers import Informers, Lister
from dtj.reconcile.patch import patched
from dtj.status.pods import view_pod
from tests.unit.support.http_cluster import http_cluster
from tests.unit.support.jobs import stored
from tests.unit.support.kubeconfig import write_kubeconfig
from tests.unit.support.kubelet import Ending
from tests.unit.support.pods import (
    LAUNCHER,
    WORKER_0,
    WORKER_1,
    Life,
    condition,
    deleting,
    ended,
    healthy,
    running,
    scheduled,
    unschedulable,
    waiting,
)
from tests.unit.support.pods import pod as made
from tests.unit.support.structural import schema_faults
from tests.unit.support.world import KEY, World

STATUS_SCHEMA = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"][
    "properties"
]["status"]
JOB = ("DistributedTrainingJob", *KEY)


def patch(world: World, **policy: Any) -> None:
    """What `kubectl patch` does to the job's run policy."""

    def change(job: Manifest) -> None:
        job["spec"]["runPolicy"] = patched(job["spec"]["runPolicy"], policy)
        job["metadata"]["generation"] += 1

    world.cluster.change(JOB, change)


def fails(pod: Manifest, ran: int) -> Ending | None:
    return (3, "") if ran >= 2 and pod["metadata"]["labels"]["dtj.dev/role"] == "launcher" else None


async def seconds_until_gone(world: World, most: int = 500) -> float:
    """Let time pass only as far as the operator asks to be called again; how much that was after the job's end."""
    await world.until(lambda: "completionTime" in world.status)
    ended = world.cluster.now
    for _ in range(most):
        if JOB not in world.cluster.objects:
            return (world.cluster.now - ended).total_seconds()
        await world.step()
    raise AssertionError(f"still there after {most} steps")


# --- startDeadlineSeconds -------------------------------------------------------------------------

DEADLINE = {"startDeadlineSeconds": 60}
SIDECAR_CRASHES = {
    "state": {
        "waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s restarting failed container"}
    },
    "lastState": {"terminated": {"exitCode": 2, "reason": "Error"}},
}


def with_container(made: Manifest, status: Manifest, kind: str = "containerStatuses") -> Manifest:
    """The pod with a container `proxy` besides."""
    made["status"][kind] = [*made["status"].get(kind, []), {"name": "proxy", **status}]
    return made


@pytest.mark.parametrize(
    ("pod", "kind", "told"),
    [
        (
            waiting(WORKER_1, "ImagePullBackOff", 'Back-off pulling image "trainer:1"'),
            "ImagePull",
            'the image can\'t be pulled: mnist-worker-1: Back-off pulling image "trainer:1"',
        ),
        (
            waiting(WORKER_1, "InvalidImageName", "couldn't parse image"),
            "ImagePull",
            "the image can't be pulled: mnist-worker-1: couldn't parse image",
        ),
        (
            unschedulable(WORKER_1, "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."),
            "Unschedulable",
            "no node takes mnist-worker-1: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
        ),
        (
            waiting(WORKER_1, "CreateContainerConfigError", 'secret "s3" not found'),
            "CreateContainerConfigError",
            'mnist-worker-1: secret "s3" not found',
        ),
        (
            waiting(WORKER_1, "CreateContainerError", "device not found"),
            "CreateContainerError",
            "mnist-worker-1: device not found",
        ),
        (
            waiting(WORKER_1, "RunContainerError", "no such file"),
            "RunContainerError",
            "mnist-worker-1: no such file",
        ),
        (waiting(WORKER_1, "CrashLoopBackOff"), "CrashLoopBackOff", "mnist-worker-1: CrashLoopBackOff"),
        (
            with_container(running(WORKER_1, ready=False), SIDECAR_CRASHES, "initContainerStatuses"),
            "CrashLoopBackOff",
            "mnist-worker-1: container proxy ends again and again, last with exit code 2",
        ),
        (
            with_container(
                running(WORKER_1, ready=False),
                {"state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}},
            ),
            "SidecarEnded",
            "mnist-worker-1: container proxy ended with exit code 137 (OOMKilled): the pod is not ready without it",
        ),
        (
            waiting(WORKER_1, "ContainerCreating"),
            "StartDeadlineExceeded",
            "mnist-worker-1, which node-of-mnist-worker-1 has not started: see the events of the pod",
        ),
        (
            running(WORKER_1, ready=False),
            "StartDeadlineExceeded",
            "mnist-worker-1, which runs but is not ready: see the events of the pod",
        ),
        (
            made(WORKER_1),
            "StartDeadlineExceeded",
            "mnist-worker-1, which has no node yet: see the events of the pod",
        ),
    ],
)
def test_what_a_job_waits_for_is_said_at_once_and_ends_it_at_its_deadline(
    pod: Manifest, kind: str, told: str
) -> None:
    life = Life(runPolicy=DEADLINE)
    status = life.see(running(WORKER_0), pod)
    waits = condition(status, "Running")
    if kind == "StartDeadlineExceeded":
        assert waits["reason"] == "PodsStarting"
    else:
        assert (waits["reason"], waits["message"]) == (kind, told)
    status = life.see(running(WORKER_0), pod, seconds=59)
    assert status["phase"] in ("Pending", "Starting")
    assert life.decision is not None
    assert life.decision.look_again == 1

    status = life.see(running(WORKER_0), pod, seconds=60)
    failed = condition(status, "Failed")
    assert (status["phase"], failed["reason"]) == ("Failed", "StartDeadlineExceeded")
    said = "not all pods ran in 60 s (runPolicy.startDeadlineSeconds); it waited for"
    assert failed["message"].startswith(said)
    assert failed["message"].endswith(told)
    assert status["failure"] == {
        "attempt": 1,
        "role": "worker",
        "index": 1,
        "pod": WORKER_1,
        "class": kind,
        "message": failed["message"],
        **({"node": pod["spec"]["nodeName"]} if pod["spec"] else {}),
    }
    assert list(schema_faults(STATUS_SCHEMA, status)) == []


async def test_a_job_with_half_of_what_it_needs_says_so_and_gives_it_back_at_its_deadline() -> None:
    world = World(runPolicy=DEADLINE)
    world.kubelet.places = 1
    await world.until(lambda: condition(world.status, "Running").get("reason") == "Unschedulable")
    assert world.status["phase"] == "Pending"
    assert condition(world.status, "Running")["message"] == f"no node takes {WORKER_1}: full"
    assert [event["reason"] for event in world.cluster.of_kind("Event")] == ["Unschedulable"]

    await world.rest()

    assert (world.status["phase"], world.status["failure"]["class"]) == ("Failed", "Unschedulable")
    assert world.cluster.of_kind("Pod") == []


def test_a_sidecar_that_ended_after_the_trainer_is_no_obstacle() -> None:
    done = with_container(ended(WORKER_0), {"state": {"terminated": {"exitCode": 0}}})
    assert view_pod(done).waiting is None


def test_an_image_that_a_crashing_container_does_not_get_any_more_is_told_as_such() -> None:
    status = SIDECAR_CRASHES | {"state": {"waiting": {"reason": "ErrImagePull", "message": "unauthorized"}}}
    pod = with_container(running(WORKER_0), status, "initContainerStatuses")
    assert view_pod(pod).waiting == ("ErrImagePull", "unauthorized")


def test_a_quota_that_stays_full_is_the_cause_also_for_an_operator_that_was_just_started() -> None:
    refusal = ("QuotaExceeded", "Pod mnist-worker-1 can't be made: exceeded quota")
    for seen_last in (refusal, None):
        life = Life(runPolicy=DEADLINE)
        life.see(running(WORKER_0), refusal=refusal)
        status = life.see(running(WORKER_0), refusal=seen_last, seconds=70)
        assert condition(status, "Failed")["message"].endswith(f"; it waited for: {refusal[1]}")
        assert status["failure"]["class"] == "QuotaExceeded"
        assert "pod" not in status["failure"]


def test_what_a_job_that_runs_does_without_is_not_what_its_deadline_was_missed_for() -> None:
    life = Life(runPolicy={"activeDeadlineSeconds": 60})
    life.see(*healthy())
    crashing = with_container(running(WORKER_1, ready=False), SIDECAR_CRASHES, "initContainerStatuses")
    assert life.see(running(WORKER_0), crashing, running(LAUNCHER), seconds=30)["phase"] == "Running"
    status = life.see(running(WORKER_0), crashing, running(LAUNCHER), seconds=60)
    expected = "the job was not done 60 s after its start (runPolicy.activeDeadlineSeconds)"
    assert status["failure"]["message"] == expected


def test_a_job_whose_pods_all_run_in_time_has_met_its_deadline_for_good() -> None:
    life = Life(runPolicy=DEADLINE)
    life.see(scheduled(WORKER_0), scheduled(WORKER_1), seconds=30)
    assert life.see(*healthy(), seconds=61)["phase"] == "Running", "also in the very moment of the deadline"
    assert life.decision is not None
    assert life.decision.look_again is None
    status = life.see(*healthy()[1:], running(WORKER_0, ready=False), seconds=5000)
    assert status["phase"] == "Running"
    status = life.see(*healthy()[1:], ended(WORKER_0), seconds=5001)
    assert condition(status, "Running")["reason"] == "RankLost"
    assert status["phase"] == "Running"


def test_a_retry_has_the_whole_time_after_its_pause() -> None:
    life = Life(runPolicy=DEADLINE | {"backoffLimit": 9})
    for attempt, pause in ((1, 0), (2, 10), (3, 20)):
        begun = 10_000 * attempt
        life.see(*healthy(attempt), seconds=begun - 20)
        life.see(running(WORKER_0, attempt=attempt), running(WORKER_1, attempt=attempt),
                 ended(LAUNCHER, 3, attempt=attempt, seconds=begun - 10), seconds=begun)  # fmt: skip
        assert life.job.status.attempt == attempt + 1
        status = life.see(seconds=begun + pause + 59)
        assert status["phase"] == "Restarting"
        assert life.decision is not None
        assert life.decision.look_again == 1
    status = life.see(scheduled(WORKER_0, attempt=4), seconds=30_000 + 80)
    assert condition(status, "Failed")["message"].startswith("not all pods ran in 60 s")
    assert status["failure"]["attempt"] == 4


def evicted_worker(life: Life, attempt: int, seconds: float) -> Manifest:
    """The cluster takes a pod before the launcher was made."""
    taken = ended(WORKER_0, 137, attempt=attempt, seconds=seconds)
    taken["status"] |= {"reason": "Evicted", "message": "The node was low on resource: memory."}
    return life.see(taken, running(WORKER_1, attempt=attempt), seconds=seconds)


@pytest.mark.parametrize("ran_before", [False, True])
def test_retries_whose_pods_the_cluster_takes_before_all_ran_have_one_time_together(ran_before: bool) -> None:
    life, first, begun = Life(runPolicy={"startDeadlineSeconds": 100}), 1, 0
    life.see()
    if ran_before:
        first, begun = 2, 5000
        life.see(*healthy(), seconds=10)
        life.see(*healthy()[:2], seconds=begun)

    # Pauses before: 0, 0 (ran for long before), 10, 20 s.
    for attempt, seconds in enumerate((20, 50, 80), first):
        status = evicted_worker(life, attempt, begun + seconds)
        assert (status["phase"], status["attempt"]) == ("Restarting", attempt + 1)
    last = first + 3
    status = life.see(running(WORKER_0, attempt=last), seconds=begun + 99)
    assert status["phase"] == "Restarting"
    assert life.decision is not None
    assert life.decision.look_again == 1
    status = life.see(running(WORKER_0, attempt=last), seconds=begun + 100)
    assert (status["phase"], condition(status, "Failed")["reason"]) == ("Failed", "StartDeadlineExceeded")
    restart = f"; the last restart was after attempt {last - 1}: pod {WORKER_0}: Evicted: The node was low"
    assert restart in status["failure"]["message"]


def test_a_replica_that_the_cluster_takes_again_before_it_ran_has_one_time_too() -> None:
    life = Life(
        strategy="ParameterServer",
        replicaSpecs={"worker": {"replicas": 2}, "ps": {}},
        runPolicy={"startDeadlineSeconds": 100},
    )
    others = [running(f"mnist-{name}") for name in ("chief-0", "ps-0", "worker-0")]
    life.see(*others, running(WORKER_1))
    for attempt, seconds in ((1, 1000), (2, 1050)):
        taken = ended(WORKER_1, 137, attempt=attempt, seconds=seconds)
        taken["status"] |= {"reason": "Evicted", "message": "The node was low on resource: memory."}
        assert life.see(*others, taken, seconds=seconds)["attempt"] == attempt + 1

    assert life.see(*others, seconds=1099)["phase"] == "Restarting"
    assert life.see(*others, seconds=1100)["failure"]["class"] == "StartDeadlineExceeded"


def test_pods_taken_before_all_ran_do_not_shorten_the_time_after_a_failure_of_the_program() -> None:
    life = Life(runPolicy={"startDeadlineSeconds": 100, "backoffLimit": 9})
    life.see(running(WORKER_0), running(WORKER_1))
    evicted_worker(life, 1, 50)
    early = ended(LAUNCHER, 3, attempt=2, seconds=55)
    life.see(running(WORKER_0, attempt=2), running(WORKER_1, attempt=2), early, seconds=65)
    assert life.job.status.attempt == 3
    assert life.see(seconds=65 + 10 + 99)["phase"] == "Restarting"
    assert life.see(seconds=65 + 10 + 100)["phase"] == "Failed"


def test_a_retry_of_a_job_that_begins_again_later_has_the_whole_time_from_then() -> None:
    life = Life(runPolicy=DEADLINE)
    life.see(*healthy())
    status = life.see(running(WORKER_0), running(WORKER_1), seconds=10)
    assert status["phase"] == "Restarting"
    del status["startTime"]
    again = Life(status=status, runPolicy=DEADLINE)
    assert again.see(seconds=5000)["phase"] == "Restarting"
    assert again.see(seconds=5059)["phase"] == "Restarting"
    assert again.see(seconds=5060)["phase"] == "Failed"


def test_pods_of_the_attempt_before_that_do_not_end_are_named() -> None:
    life = Life(runPolicy=DEADLINE)
    life.see(*healthy())
    life.see(running(WORKER_0), running(WORKER_1), seconds=100)
    assert life.job.status.attempt == 2
    status = life.see(deleting(running(WORKER_0)), seconds=161)
    assert status["failure"]["class"] == "StartDeadlineExceeded"
    assert (
        f"it waited for: waits until {WORKER_0} of the previous attempt ended" in status["failure"]["message"]
    )


@pytest.mark.parametrize("policy", ["Running", "None"])
async def test_at_the_deadline_no_pod_is_left_and_it_is_met_without_an_event(policy: str) -> None:
    world = World(runPolicy=DEADLINE | {"cleanPodPolicy": policy})
    world.kubelet.hold.add("mnist-worker-1")
    await world.until(lambda: world.phase == "Starting")
    for _ in range(3):
        await world.step()
    # A pass tells of the pod that has no container, and the next one meets the deadline.
    for reason in ("PodNotStarted", "StartDeadlineExceeded"):
        assert world.again is not None
        world.cluster.now += timedelta(seconds=world.again)
        await world.turn()
        assert reason in [condition["reason"] for condition in world.status["conditions"]]
    await world.rest()
    assert world.pod_names() == []
    assert world.events() == ["StartDeadlineExceeded"]


async def test_a_suspended_job_has_the_whole_time_again() -> None:
    world = World(runPolicy=DEADLINE)
    world.kubelet.hold.add("mnist-worker-1")
    for _ in range(50):
        await world.step()
    patch(world, suspend=True)
    for _ in range(100):
        await world.step()
    assert world.phase == "Suspended"
    patch(world, suspend=False)
    for _ in range(50):
        await world.step()
    assert world.phase == "Starting"
    world.kubelet.hold.clear()
    await world.until(lambda: world.phase == "Succeeded")


async def test_a_replica_that_starts_again_alone_has_the_same_time() -> None:
    world = World(
        strategy="ParameterServer",
        replicaSpecs={"worker": {"replicas": 2}, "ps": {}},
        runPolicy=DEADLINE,
    )
    world.kubelet.program = lambda pod, ran: None
    await world.until(lambda: world.phase == "Running")
    for _ in range(100):
        await world.step()
    world.kubelet.hold.add("mnist-worker-1")
    world.cluster.end_pod(world.cluster.pod("mnist-worker-1"))
    lost = world.cluster.now
    await world.until(lambda: world.phase == "Failed")
    assert 60 <= (world.cluster.now - lost).total_seconds() <= 66
    assert world.status["failure"]["pod"] == "mnist-worker-1"
    await world.rest()
    assert world.pod_names() == []


# --- ttlSecondsAfterFinished ----------------------------------------------------------------------


@pytest.mark.parametrize("ttl", [0, 30])
@pytest.mark.parametrize("program", [None, fails], ids=["succeeds", "fails"])
@pytest.mark.parametrize("policy", ["Running", "All", "None"])
async def test_a_job_is_deleted_with_its_pods_so_long_after_its_end(
    ttl: int, program: Any, policy: str
) -> None:
    world = World(runPolicy={"ttlSecondsAfterFinished": ttl, "backoffLimit": 0, "cleanPodPolicy": policy})
    world.kubelet.program = program or world.kubelet.program

    assert ttl <= await seconds_until_gone(world) <= ttl + 3
    await world.rest()
    assert [kind for kind, _, _ in world.cluster.objects if kind != "Event"] == []
    assert world.events()[-1] == ("BackoffLimitExceeded" if program else "JobSucceeded")


async def test_the_operator_asks_to_be_woken_when_the_time_has_come() -> None:
    world = World(runPolicy={"ttlSecondsAfterFinished": 3600})
    await world.until(lambda: world.phase == "Succeeded")
    await world.step()
    await world.step()
    ended = world.cluster.now
    assert world.again is not None
    assert 3590 < world.again <= 3600
    world.start_operator()
    await world.turn()
    assert world.again is not None, "an operator that is started later asks too"
    assert 3590 < world.again <= 3600 - (world.cluster.now - ended).total_seconds()


async def test_a_job_without_ttl_stays() -> None:
    world = World()
    await world.rest()
    world.cluster.now += timedelta(days=365)
    await world.turn()
    assert world.phase == "Succeeded"
    assert world.again is None


async def test_a_ttl_given_or_changed_after_the_end_holds() -> None:
    world = World(runPolicy={"ttlSecondsAfterFinished": 3600})
    await world.until(lambda: world.phase == "Succeeded")
    await world.step()
    patch(world, ttlSecondsAfterFinished=None)
    world.cluster.now += timedelta(hours=2)
    await world.rest()
    assert JOB in world.cluster.objects
    patch(world, ttlSecondsAfterFinished=5)
    await world.step()
    assert JOB not in world.cluster.objects


async def test_a_job_that_somebody_just_wants_to_keep_is_not_deleted() -> None:
    world = World(runPolicy={"ttlSecondsAfterFinished": 20})
    await world.until(lambda: world.phase == "Succeeded")
    for _ in range(15):
        await world.step()
    world.view.deliver()
    patch(world, ttlSecondsAfterFinished=7200)
    world.kubelet.step()
    for _ in range(10):
        world.kubelet.step()
        await world.turn()  # the cache has not seen the change
    assert JOB in world.cluster.objects
    for _ in range(100):
        await world.step()
    assert JOB in world.cluster.objects


async def test_another_job_of_the_name_is_not_deleted_for_the_one_before() -> None:
    world = World(runPolicy={"ttlSecondsAfterFinished": 20})
    await world.rest()
    assert JOB not in world.cluster.objects

    world = World(runPolicy={"ttlSecondsAfterFinished": 20})
    await world.until(lambda: world.phase == "Succeeded")
    await world.step()
    new = {**world.cluster.job(), "status": {}}
    world.cluster.remove(JOB)
    world.apply(new)
    for _ in range(30):
        world.kubelet.step()
        await world.turn()  # the cache still has the one before
    assert JOB in world.cluster.objects


async def test_a_job_that_never_could_run_goes_too() -> None:
    world = World(image="No Image", runPolicy={"ttlSecondsAfterFinished": 10})
    await world.until(lambda: world.phase == "Failed")
    assert await seconds_until_gone(world) <= 12


@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_operator_that_dies_at_any_call_deletes_the_job_all_the_same(
    when: Literal["before", "after"],
) -> None:
    for call in range(1, 200):
        world = World(runPolicy={"ttlSecondsAfterFinished": 5})
        world.cluster.die_at, world.cluster.die_when = call, when
        await world.rest()
        assert [kind for kind, _, _ in world.cluster.objects if kind != "Event"] == []
        if not world.deaths:
            return
    pytest.fail("more calls than expected")


async def test_a_delete_is_of_one_version_of_one_job(tmp_path: Path) -> None:
    async with http_cluster(moves=False) as server:
        write_kubeconfig(tmp_path / "config", server.url)
        job = server.cluster.put(stored())
        uid, version = job["metadata"]["uid"], job["metadata"]["resourceVersion"]
        api = await connect(None, str(tmp_path / "config"))
        try:
            for about in (("another", version), (uid, "99")):
                with pytest.raises(ApiError) as refused:
                    await api.expire_job("ml", "mnist", *about)
                assert refused.value.status == 409
            assert "mnist" in server.jobs
            await api.expire_job("ml", "mnist", uid, version)
            assert "mnist" not in server.jobs
            await api.expire_job("ml", "mnist", uid, version)
        finally:
            await api.close()


# --- managedBy ------------------------------------------------------------------------------------


async def test_a_job_of_another_controller_is_not_touched() -> None:
    world = World(runPolicy={"managedBy": "kueue.x-k8s.io/multikueue", "ttlSecondsAfterFinished": 0})
    await world.rest()
    assert world.cluster.calls == []
    assert world.status == {}

    def told(job: Manifest) -> None:
        condition = {
            "type": "Succeeded",
            "status": "True",
            "reason": "X",
            "lastTransitionTime": "2026-11-21T12:00:00Z",
        }
        job["status"] = {
            "phase": "Succeeded",
            "completionTime": "2026-11-21T12:00:00Z",
            "conditions": [condition],
        }

    world.cluster.change(JOB, told)
    await world.rest()
    assert world.cluster.calls == []
    assert JOB in world.cluster.objects


async def test_a_wrong_job_of_another_controller_is_not_touched_either() -> None:
    world = World(image="No Image", runPolicy={"managedBy": "example.com/queue"})
    await world.rest()
    assert world.cluster.calls == []


def test_a_job_of_another_controller_is_not_among_those_that_the_operator_looks_at() -> None:
    informers = Informers(SimpleNamespace(), [], *3 * [lambda key: None])  # type: ignore[arg-type]
    for name, manager in (("theirs", "example.com/queue"), ("ours", OPERATOR)):
        metadata = {"namespace": "ml", "name": name, "uid": name, "resourceVersion": "1"}
        informers.jobs.put({"metadata": metadata, "spec": {"runPolicy": {"managedBy": manager}}})
    assert Lister(informers).active() == [("ml", "ours")]


async def test_a_job_given_to_this_operator_by_name_is_carried_out() -> None:
    world = World(runPolicy={"managedBy": OPERATOR})
    await world.rest()
    assert world.phase == "Succeeded"


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("dtj.dev/operator", True),
        ("a/b", True),
        ("kueue.x-k8s.io/multikueue", True),
        ("example.com/a/b~(c)%20", True),
        ("example.com", False),
        ("example.com/", False),
        ("/operator", False),
        ("Example.com/operator", False),
        ("example..com/operator", False),
        ("-example.com/operator", False),
        ("example.com/opera tor", False),
        ("example.com/operator\n", False),
        ("example.com/a?b", False),
        ("", False),
    ],
)
def test_a_controller_has_a_name_as_in_a_kubernetes_job(text: str, valid: bool) -> None:
    assert is_domain_path(text) == valid
