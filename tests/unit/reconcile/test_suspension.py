"""Suspension and resumption: pods end first, nothing counts as a loss, and the time does not count.

* pods end before the job is Suspended
* checkpoints and the order of the end
* changes of the spec during a suspension
* a checkpoint to go back to
* deadlines and the TTL during a suspension
* an operator that dies at any request
"""

from __future__ import annotations

from typing import Any, Literal

import pytest

from dtj.api.job import Manifest
from dtj.api.status import ArtifactsStatus, CheckpointStatus
from dtj.plan.job import PlanCache, plan_job
from dtj.plan.pods import trainer_container
from tests.unit.support.jobs import job
from tests.unit.support.kubelet import Ending
from tests.unit.support.pods import ALL, Life, condition, deleting, ended, healthy, running
from tests.unit.support.programs import decides
from tests.unit.support.world import KEY, World

PS_SPEC: dict[str, Any] = {
    "strategy": "ParameterServer",
    "replicaSpecs": {"worker": {"replicas": 2}, "ps": {}, "evaluator": {}},
}
JOB = ("DistributedTrainingJob", *KEY)
TORCH_SPEC: dict[str, Any] = {"strategy": "TorchDistributed"}
STRATEGIES = pytest.mark.parametrize(
    "spec", [{}, PS_SPEC, TORCH_SPEC], ids=["Horovod", "ParameterServer", "TorchDistributed"]
)


def patch(world: World, **spec: Any) -> None:
    """What `kubectl patch` does to the job's spec."""

    def change(job: Manifest) -> None:
        job["spec"] |= spec
        job["metadata"]["generation"] += 1

    world.cluster.change(JOB, change)


def suspend(world: World, value: bool = True) -> None:
    patch(world, runPolicy={**world.cluster.job()["spec"].get("runPolicy", {}), "suspend": value})


def endless(pod: Manifest, ran: int) -> Ending | None:
    return None


def ends_in_attempt(attempt: int) -> Any:
    def program(pod: Manifest, ran: int) -> Ending | None:
        labels = pod["metadata"]["labels"]
        ends = decides(pod) or labels["dtj.dev/role"] == "evaluator"
        return (0, "") if ends and ran > 3 and int(labels["dtj.dev/attempt"]) >= attempt else None

    return program


@STRATEGIES
async def test_all_pods_end_then_the_job_is_suspended_and_goes_on_where_it_was(spec: dict[str, Any]) -> None:
    world = World(**spec)
    world.kubelet.program = ends_in_attempt(2)
    await world.until(lambda: world.phase == "Running")
    started = world.status["startTime"]

    suspend(world)
    await world.rest()
    assert world.phase == "Suspended"
    assert world.pod_names() == []
    assert condition(world.status, "Suspended")["status"] == "True"
    assert condition(world.status, "Running")["status"] == "False"
    assert "startTime" not in world.status
    assert all(not any((s["active"], s["ready"])) for s in world.status["replicaStatuses"].values())

    suspend(world, False)
    await world.until(lambda: world.phase == "Succeeded")
    assert world.status["startTime"] > started
    assert world.status["attempt"] == 2
    assert world.status["restarts"] == {"application": 0, "infrastructure": 0}
    assert condition(world.status, "Suspended")["status"] == "False"
    assert [reason for reason in world.events() if "Suspen" in reason or "Resum" in reason] == [
        "Suspending",
        "JobSuspended",
        "JobResumed",
    ]
    assert "JobRestarting" not in world.events()


async def test_a_job_made_suspended_has_no_pod_until_it_is_resumed() -> None:
    world = World(runPolicy={"suspend": True})

    await world.rest()
    assert (world.phase, world.pod_names()) == ("Suspended", [])
    suspend(world, False)
    await world.rest()
    assert (world.phase, world.status["attempt"]) == ("Succeeded", 1)


def test_while_pods_end_the_job_is_not_said_to_be_suspended() -> None:
    before = Life().see(*healthy())

    status = Life(status=before, runPolicy={"suspend": True}).see(*healthy())
    assert status["phase"] == "Running"
    assert condition(status, "Running")["status"] == "False"
    assert condition(status, "Running")["reason"] == "Suspending"
    assert f"{', '.join(sorted(ALL))} ended" in condition(status, "Running")["message"]


def test_the_checkpoint_that_is_saved_at_the_end_is_told_of() -> None:
    life = Life(**PS_SPEC, artifacts={"uri": "s3://bucket/jobs"})
    names = [f"mnist-{replica}" for replica in ("chief-0", "ps-0", "worker-0", "worker-1", "evaluator-0")]
    told = ArtifactsStatus(checkpoint=CheckpointStatus(step=293))
    life.see(*map(running, names), artifacts=told)
    life.spec["runPolicy"] = {"suspend": True}
    said = {
        "class": "Interrupted",
        "exitCode": 143,
        "progress": {"step": 310},
        "artifacts": {"checkpoint": {"step": 310}},
    }

    status = life.see(deleting(ended(names[0], 143, said)), *map(running, names[1:]), artifacts=told)

    assert (status["progress"]["step"], status["artifacts"]["checkpoint"]["step"]) == (310, 310)


@STRATEGIES
async def test_those_that_save_the_checkpoint_end_before_those_that_they_need(spec: dict[str, Any]) -> None:
    world = World(**spec)
    world.kubelet.program = endless
    await world.until(lambda: world.phase == "Running")
    last = {f"mnist-{role}-0" for role in ("launcher", "chief", "evaluator")}
    suspend(world)
    while set(world.pod_names()) & last:
        assert not any(
            "deletionTimestamp" in pod["metadata"]
            for pod in world.cluster.of_kind("Pod")
            if pod["metadata"]["name"] not in last
        )
        await world.step()
    await world.until(lambda: world.phase == "Suspended")


@STRATEGIES
async def test_a_job_resumed_while_its_pods_end_goes_on_when_they_have(spec: dict[str, Any]) -> None:
    world = World(**spec)
    world.kubelet.program = ends_in_attempt(2)
    await world.until(lambda: world.phase == "Running")
    suspend(world)
    await world.until(lambda: condition(world.status, "Running")["reason"] == "Suspending")
    suspend(world, False)
    await world.until(lambda: world.phase == "Succeeded")
    assert world.status["attempt"] == 2
    assert world.status["restarts"] == {"application": 0, "infrastructure": 0}


async def test_after_a_suspension_the_launcher_waits_for_its_workers_again() -> None:
    world = World()
    world.kubelet.program = endless
    await world.until(lambda: world.phase == "Running")
    suspend(world)
    await world.rest()

    world.kubelet.hold.add("mnist-worker-1")
    suspend(world, False)
    await world.until(lambda: "mnist-worker-1" in world.pod_names())
    for _ in range(10):
        await world.step()
        assert world.pod_names() == ["mnist-worker-0", "mnist-worker-1"]
    world.kubelet.hold.clear()
    await world.until(lambda: world.phase == "Running")


async def test_a_suspended_job_can_be_made_larger() -> None:
    world = World()
    world.kubelet.program = ends_in_attempt(2)
    await world.until(lambda: world.phase == "Running")
    suspend(world)
    await world.rest()

    patch(world, replicaSpecs={"worker": {"replicas": 3}}, runPolicy={"suspend": False})
    await world.until(lambda: world.phase == "Running")
    assert world.pod_names() == ["mnist-launcher-0", *(f"mnist-worker-{n}" for n in range(3))]
    hosts = next(c for c in world.cluster.of_kind("ConfigMap"))["data"]["hostfile"]
    assert [line.split(".")[0] for line in hosts.splitlines()] == [f"mnist-worker-{n}" for n in range(3)]
    await world.until(lambda: world.phase == "Succeeded")


@STRATEGIES
async def test_a_place_chosen_while_the_job_is_suspended_is_every_pods(spec: dict[str, Any]) -> None:
    """As a queue does that admits a job to certain nodes."""
    world = World(**spec)
    world.kubelet.program = endless
    await world.until(lambda: world.phase == "Running")
    suspend(world)
    await world.rest()

    template = {"template": {"spec": {"nodeSelector": {"pool": "b"}}}}
    roles = world.cluster.job()["spec"]["replicaSpecs"]
    others = {"ParameterServer": ["chief"], "TorchDistributed": []}.get(
        spec.get("strategy", ""), ["launcher"]
    )
    chosen = {role: replica | template for role, replica in roles.items()} | dict.fromkeys(others, template)
    patch(world, replicaSpecs=chosen, runPolicy={"suspend": False})
    await world.until(lambda: world.phase == "Running")

    pods = world.cluster.of_kind("Pod")
    assert len(pods) == len(plan_job(job(**spec)).shape.replicas)
    assert all(pod["spec"]["nodeSelector"]["pool"] == "b" for pod in pods)


async def test_what_is_changed_while_the_job_is_suspended_is_every_pods() -> None:
    world = World(runPolicy={"suspend": True})
    await world.rest()

    template = {
        "template": {"metadata": {"annotations": {"team": "b"}}, "spec": {"priorityClassName": "high"}}
    }
    patch(
        world,
        image="trainer:2",
        args=["--lr=2"],
        env=[{"name": "LR", "value": "2"}],
        replicaSpecs={"worker": {"replicas": 2} | template, "launcher": template},
        runPolicy={"suspend": False},
    )
    await world.until(lambda: world.phase == "Running")

    pods = world.cluster.of_kind("Pod")
    assert len(pods) == 3
    for pod in pods:
        container = pod["spec"]["containers"][0]
        assert container["image"] == "trainer:2"
        assert {"name": "LR", "value": "2"} in container["env"]
        assert pod["metadata"]["annotations"]["team"] == "b"
        assert pod["spec"]["priorityClassName"] == "high"
    launcher = world.cluster.pod("mnist-launcher-0")["spec"]["containers"][0]
    assert (launcher["command"] + launcher.get("args", []))[-1] == "--lr=2"


@STRATEGIES
async def test_a_suspended_job_is_not_over_whatever_its_ttl(spec: dict[str, Any]) -> None:
    world = World(runPolicy={"ttlSecondsAfterFinished": 5}, **spec)
    world.kubelet.program = endless
    await world.until(lambda: world.phase == "Running")
    suspend(world)
    for _ in range(50):
        await world.step()
    assert (world.phase, world.pod_names()) == ("Suspended", [])

    suspend(world, False)
    world.kubelet.program = ends_in_attempt(1)
    await world.until(lambda: world.phase == "Succeeded")
    await world.until(lambda: JOB not in world.cluster.objects)


async def test_the_time_of_a_suspension_does_not_count_against_the_deadline() -> None:
    world = World(runPolicy={"activeDeadlineSeconds": 60})
    world.kubelet.program = endless
    await world.until(lambda: world.phase == "Running")
    suspend(world)
    await world.rest()
    for _ in range(200):
        await world.step()
    assert world.phase == "Suspended"

    suspend(world, False)
    world.kubelet.program = ends_in_attempt(1)
    await world.until(lambda: world.phase == "Succeeded")


@STRATEGIES
async def test_every_suspension_is_told_and_no_replica_has_an_attempt_twice(spec: dict[str, Any]) -> None:
    world = World(**spec)
    world.kubelet.program = endless
    for workers in (1, 3):
        await world.until(lambda: world.phase == "Running")
        suspend(world)
        await world.rest()
        roles = world.cluster.job()["spec"]["replicaSpecs"]
        patch(
            world,
            replicaSpecs={**roles, "worker": {**roles["worker"], "replicas": workers}},
            runPolicy={"suspend": False},
        )
    world.kubelet.program = ends_in_attempt(3)
    await world.until(lambda: world.phase == "Succeeded")

    assert len(set(world.cluster.created_pods)) == len(world.cluster.created_pods)
    for reason in ("Suspending", "JobSuspended", "JobResumed"):
        assert world.events().count(reason) == 2


@STRATEGIES
async def test_a_wrong_edit_of_a_suspended_job_can_be_mended(spec: dict[str, Any]) -> None:
    world = World(**spec)
    world.kubelet.program = ends_in_attempt(2)
    await world.until(lambda: world.phase == "Running")
    image = world.cluster.job()["spec"]["image"]
    suspend(world)
    await world.rest()

    patch(world, image="No Image", runPolicy={"suspend": False})
    await world.rest()
    assert (world.phase, world.pod_names()) == ("Suspended", [])
    assert condition(world.status, "Created")["reason"] == "SpecInvalid"
    assert "startTime" not in world.status

    patch(world, image=image)
    await world.until(lambda: world.phase == "Succeeded")


@STRATEGIES
async def test_a_job_is_suspended_whatever_of_its_pods_the_operator_has_seen(spec: dict[str, Any]) -> None:
    for steps in range(9):
        world = World(**spec)
        world.kubelet.program = ends_in_attempt(1)
        for _ in range(steps):
            await world.step()
        if all(pod["status"]["phase"] == "Succeeded" for pod in world.cluster.of_kind("Pod")) and steps > 5:
            break  # The job of a single stage has come to its end.
        suspend(world)
        world.view.deliver("DistributedTrainingJob")
        await world.turn()
        await world.rest()
        assert (world.phase, world.pod_names()) == ("Suspended", [])

        suspend(world, False)
        await world.until(lambda world=world: world.phase == "Succeeded")  # type: ignore[misc]
        assert world.status["restarts"] == {"application": 0, "infrastructure": 0}
        assert "JobRestarting" not in world.events()


async def test_a_training_that_came_to_its_end_is_not_suspended_any_more() -> None:
    world = World()
    await world.until(lambda: world.phase == "Succeeded")

    suspend(world)
    await world.rest()
    assert world.phase == "Succeeded"


@STRATEGIES
@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_operator_that_dies_at_any_call_suspends_and_resumes_all_the_same(
    spec: dict[str, Any], when: Literal["before", "after"]
) -> None:
    for call in range(1, 200):
        world = World(**spec)
        world.kubelet.program = ends_in_attempt(2)
        await world.until(lambda world=world: world.phase == "Running")  # type: ignore[misc]
        world.cluster.die_at, world.cluster.die_when = call, when
        suspend(world)
        await world.rest()
        assert (world.phase, world.pod_names()) == ("Suspended", [])
        suspend(world, False)
        await world.until(lambda world=world: world.phase == "Succeeded")  # type: ignore[misc]
        assert world.status["attempt"] == 2
        assert world.status["restarts"] == {"application": 0, "infrastructure": 0}
        if not world.deaths:
            break
    else:
        pytest.fail("more calls than expected")
    assert call > 5
    assert KEY not in world.progress.followed


# --- a checkpoint to go back to ----------------------------------------------------------------


def told(life: Life) -> tuple[str, str | None]:
    """What the pods of the attempt are told to restore, and since which attempt."""
    plan = PlanCache(plan_job)(life.job)
    env = {
        each["name"]: each.get("value")
        for each in trainer_container(plan.pod(plan.shape.stages[0][0]))["env"]
    }
    return env["DTJ_RESUME"], env.get("DTJ_RESUME_SINCE")


def suspended_and_resumed(life: Life, uri: str | None) -> Manifest:
    """See the user suspend the job, choose `resumeUri`, and resume it."""
    life.spec["runPolicy"] = {"suspend": True}
    for _ in range(3):
        life.see()
    resume = {"resume": "FromURI", "resumeUri": uri} if uri else {}
    life.spec |= {"artifacts": {"uri": "s3://bucket/jobs", **resume}, "runPolicy": {"suspend": False}}
    life.see()
    return life.see()


def test_a_resumption_from_a_checkpoint_of_the_job_goes_back_to_it_until_the_next_one() -> None:
    life = Life(artifacts={"uri": "s3://bucket/jobs"})
    life.see(*healthy())
    prefix = f"{life.job.artifacts_uri}/checkpoints"
    status = suspended_and_resumed(life, f"{prefix}/20/")
    attempt = status["attempt"]
    assert status["resumedFrom"] == {"uri": f"{prefix}/20/", "attempt": attempt}
    assert condition(status, "Suspended")["message"].endswith(f"begins from {prefix}/20/")
    assert told(life) == (f"{prefix}/20", str(attempt))

    # A failure, and an eviction, do not bring the job back to the checkpoint.
    life.see(*healthy(attempt))
    status = life.see(*healthy(attempt)[:-1], seconds=1000)
    assert told(life) == (f"{prefix}/20", str(attempt))
    # Nor does a queue that suspends and resumes it, or a resumption without another checkpoint, or for another scale.
    for uri in (f"{prefix}/20/", None, "s3://bucket/other/checkpoints/20"):
        assert suspended_and_resumed(life, uri)["resumedFrom"]["attempt"] == attempt
        assert told(life) == (f"{prefix}/20", str(attempt))
    # A user who wants to start anew can.
    life.spec["artifacts"] = {"uri": "s3://bucket/jobs", "resume": "Never"}
    life.see()
    assert told(life) == ("Never", None)
    # Another value does, also of the same checkpoint.
    for uri in (f"{prefix}/20", f"{prefix}/40-3"):
        status = suspended_and_resumed(life, uri)
        assert status["resumedFrom"] == {"uri": uri, "attempt": status["attempt"]}
        assert told(life) == (uri, str(status["attempt"]))


@pytest.mark.parametrize("odd", ["", "/", "/20/extra", "/..//20"])
def test_what_is_no_checkpoint_of_the_job_is_not_gone_back_to(odd: str) -> None:
    life = Life(artifacts={"uri": "s3://bucket/jobs"})
    life.see(*healthy())
    status = suspended_and_resumed(life, f"{life.job.artifacts_uri}/checkpoints{odd}")
    assert "resumedFrom" not in status


def test_an_own_checkpoint_in_the_spec_of_a_running_job_changes_nothing() -> None:
    life = Life(artifacts={"uri": "s3://bucket/jobs"})
    life.see(*healthy())
    life.spec["artifacts"] |= {
        "resume": "FromURI",
        "resumeUri": f"{life.job.artifacts_uri}/checkpoints/20",
    }
    for _ in range(2):
        assert "resumedFrom" not in life.see(*healthy())
