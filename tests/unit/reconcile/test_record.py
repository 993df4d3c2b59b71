"""Record pods: the end of a job whose own pods did not record it, and a suspension that lasts.

* jobs whose pods recorded the success: no record pod, and no write more
* every other end, and jobs that have no record
* the TTL
* pods that fail, that the cluster takes away, that do not run, or that the API server refuses
* restarts of the operator, and many jobs at once
* suspensions
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from dtj.api.identity import LABEL_RECORD
from dtj.api.job import Manifest
from dtj.cluster.interface import ApiError
from dtj.reconcile.record import MOST_IN_VAIN, MOST_LOST
from dtj.status import record as status_record
from tests.unit.support.fake_cluster import WRITES, Call, FakeCluster
from tests.unit.support.jobs import manifest
from tests.unit.support.kubelet import Ending
from tests.unit.support.world import KEY, World

ARTIFACTS = {"uri": "s3://training/jobs", "secretName": "s3-credentials"}


class Recorded(World):
    """A job that keeps artifacts, and whose program fails unless a test says otherwise."""

    records = 16
    code: int | None = 3
    """The exit code of the launcher; None: it does not end."""
    message = ""
    """The termination message of the launcher."""
    record: Ending | None = (0, "")
    """How a record pod ends; None: it does not end."""

    def __init__(self, **spec: Any) -> None:
        super().__init__(**{"artifacts": ARTIFACTS, "runPolicy": {"backoffLimit": 0}} | spec)
        self.kubelet.program = self.program
        self.kubelet.record = lambda _pod, ran: self.record if ran >= 2 else None
        self.made: list[Manifest] = []

    def program(self, pod: Manifest, ran: int) -> Ending | None:
        labels = pod["metadata"]["labels"]
        if labels["dtj.dev/role"] != "launcher" or ran < 2 or self.code is None:
            return None
        return self.code, self.message

    def record_pods(self) -> list[Manifest]:
        return [pod for pod in self.cluster.of_kind("Pod") if LABEL_RECORD in pod["metadata"]["labels"]]

    async def step(self) -> bool:
        happened = await super().step()
        known = {pod["metadata"]["uid"] for pod in self.made}
        self.made += [pod for pod in self.record_pods() if pod["metadata"]["uid"] not in known]
        return happened

    @property
    def recorded(self) -> tuple[str | None, str | None]:
        condition = self.condition("Recorded")
        return condition.get("status"), condition.get("reason")


def end_in(pod: Manifest) -> dict[str, Any]:
    """The `end.json` that a record pod was handed."""
    (container,) = pod["spec"]["containers"]
    value = next(variable["value"] for variable in container["env"] if variable["name"] == "DTJ_END")
    found: dict[str, Any] = json.loads(value.replace("$$", "$"))
    return found


def conditions(status: Manifest) -> dict[str, tuple[str, str, str]]:
    """Status, reason and message of each condition."""
    return {each["type"]: (each["status"], each["reason"], each["message"]) for each in status["conditions"]}


# --- a success ---------------------------------------------------------------------------------------


async def test_a_success_that_a_pod_recorded_costs_nothing_more() -> None:
    writes = []
    for message in ("", json.dumps({"exitCode": 0, "recorded": True})):
        world = Recorded()
        world.code, world.message = 0, message
        if not message:
            world.records = 0
            world.start_operator()
        await world.rest()
        assert world.phase == "Succeeded"
        assert world.made == []
        writes.append([(call.verb, call.kind) for call in world.cluster.calls if call.verb in WRITES])
    assert world.recorded == ("True", "EndRecorded")
    assert world.condition("Recorded")["message"] == "mnist-launcher-0 wrote end.json"
    assert writes[0] == writes[1]


async def test_a_success_that_no_pod_recorded_gets_a_record_pod() -> None:
    world = Recorded()
    world.code = 0
    await world.rest()
    assert (world.phase, world.recorded) == ("Succeeded", ("True", "EndRecorded"))
    (pod,) = world.made
    assert end_in(pod)["status"]["phase"] == "Succeeded"
    assert world.record_pods() == []


async def test_a_pod_that_ran_on_while_others_started_again_does_not_record_the_success_alone() -> None:
    world = Recorded(
        strategy="ParameterServer",
        replicaSpecs={"worker": {"replicas": 1}, "ps": {"replicas": 1}},
        runPolicy={"backoffLimit": 1},
    )
    ended = json.dumps({"exitCode": 0, "recorded": True})

    def program(pod: Manifest, ran: int) -> Ending | None:
        labels = pod["metadata"]["labels"]
        if labels["dtj.dev/role"] == "worker":
            return (3, "") if ran >= 2 and labels["dtj.dev/attempt"] == "1" else None
        return (0, ended) if labels["dtj.dev/role"] == "chief" and world.code == 0 else None

    world.kubelet.program = program
    await world.until(lambda: world.phase == "Running" and world.status["restarts"]["application"] == 1)
    world.code = 0
    await world.rest()
    assert (world.phase, world.recorded) == ("Succeeded", ("True", "EndRecorded"))
    assert world.status["restarts"]["application"] == 1
    assert world.cluster.pod("mnist-chief-0")["metadata"]["labels"]["dtj.dev/attempt"] == "1"
    (pod,) = world.made
    assert end_in(pod)["status"]["restarts"]["application"] == 1


# --- other ends --------------------------------------------------------------------------------------


async def test_a_failure_is_recorded_with_the_status_and_the_nodes() -> None:
    world = Recorded()
    await world.until(lambda: bool(world.record_pods()))
    assert world.recorded == ("False", "RecordPending")
    await world.rest()

    assert world.recorded == ("True", "EndRecorded")
    (pod,) = world.made
    assert pod["metadata"]["name"] == f"mnist-record-{world.cluster.job()['metadata']['uid'].split('-')[0]}-1"
    assert pod["metadata"]["ownerReferences"][0]["uid"] == world.cluster.job()["metadata"]["uid"]
    assert "dtj.dev/job" not in pod["metadata"]["labels"]
    end = end_in(pod)
    assert end["status"]["failure"]["exitCode"] == 3
    assert {(each["name"], each["node"]) for each in end["pods"]} == {
        ("mnist-launcher-0", "node-0"), ("mnist-worker-0", "node-0"), ("mnist-worker-1", "node-1"),
    }  # fmt: skip
    assert end["pods"][0]["name"] == "mnist-launcher-0"
    assert world.record_pods() == []
    assert world.status["replicaStatuses"].keys() == {"launcher", "worker"}
    assert conditions(end["status"]) == conditions(world.status)
    assert end["workers"] == 2
    world.cluster.calls.clear()
    await world.rest()
    assert world.cluster.calls == []


async def test_a_deadline_and_an_image_that_does_not_exist_are_recorded() -> None:
    world = Recorded(runPolicy={"activeDeadlineSeconds": 5})
    world.code = None
    await world.rest()
    assert (world.condition("Failed")["reason"], world.recorded) == (
        "DeadlineExceeded",
        ("True", "EndRecorded"),
    )
    assert end_in(world.made[0])["status"]["conditions"][1]["reason"] == "DeadlineExceeded"


async def test_a_wrong_spec_is_recorded_where_its_artifacts_are_right() -> None:
    world = Recorded(
        replicaSpecs={"worker": {"replicas": 2, "gpus": 1, "resources": {"limits": {"nvidia.com/gpu": 2}}}}
    )
    await world.rest()
    assert (world.condition("Failed")["reason"], world.recorded) == (
        "ValidationFailed",
        ("True", "EndRecorded"),
    )
    assert {pod["metadata"]["labels"]["app.kubernetes.io/name"] for pod in world.made} == {"dtj-record"}


@pytest.mark.parametrize(
    "artifacts", [None, {"uri": "s3://training/jobs", "resume": "FromURI"}], ids=["none", "faulty"]
)
async def test_a_job_without_usable_artifacts_has_no_record(artifacts: Any) -> None:
    world = Recorded(artifacts=artifacts)
    await world.rest()
    assert world.phase == "Failed"
    assert (world.made, world.condition("Recorded")) == ([], {})


async def test_a_job_that_ended_under_an_earlier_release_is_left_alone() -> None:
    world = Recorded()
    world.records = 0
    world.start_operator()
    await world.rest()
    del world.records
    world.start_operator()
    world.cluster.calls.clear()
    await world.rest()
    assert (world.phase, world.cluster.calls) == ("Failed", [])


# --- the TTL -----------------------------------------------------------------------------------------


def exists(world: World) -> bool:
    return ("DistributedTrainingJob", *KEY) in world.cluster.objects


async def test_the_ttl_waits_for_the_record() -> None:
    world = Recorded(runPolicy={"backoffLimit": 0, "ttlSecondsAfterFinished": 0})
    await world.until(lambda: bool(world.record_pods()))
    assert exists(world)
    await world.until(lambda: not exists(world))
    assert len(world.made) == 1


@pytest.mark.bound(
    "operator",
    "Who may create jobs, with a store that does not answer",
    "The time that an ended job waits for its record",
    "5 minutes",
)
async def test_the_ttl_waits_five_minutes_at_most() -> None:
    world = Recorded(runPolicy={"backoffLimit": 0, "ttlSecondsAfterFinished": 0})
    world.record = None
    await world.until(lambda: bool(world.record_pods()))
    began = world.cluster.now
    await world.until(lambda: not exists(world), 400)
    assert timedelta(seconds=290) < world.cluster.now - began < timedelta(seconds=310)


async def test_the_ttl_waits_for_the_turn() -> None:
    world = Recorded(runPolicy={"backoffLimit": 0, "ttlSecondsAfterFinished": 60})
    world.records = 1
    world.start_operator()
    world.places.hold(("noisy", "other"))
    await world.until(lambda: world.phase == "Failed")
    began = world.cluster.now
    await world.until(lambda: world.cluster.now - began >= timedelta(seconds=500), 600)
    assert exists(world)
    assert (world.recorded, world.made) == (("False", "RecordPending"), [])
    world.places.leave(("noisy", "other"))
    await world.until(lambda: not exists(world), 200)
    assert len(world.made) == 1


async def test_the_ttl_does_not_wait_for_ever_for_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_record, "TURN_SECONDS", 100.0)
    world = Recorded(runPolicy={"backoffLimit": 0, "ttlSecondsAfterFinished": 60})
    world.records = 1
    world.start_operator()
    world.places.hold(("noisy", "other"))
    await world.until(lambda: not exists(world), 300)
    assert world.made == []


# --- what goes wrong ---------------------------------------------------------------------------------


async def test_a_store_that_refuses_is_told_and_tried_once() -> None:
    world = Recorded()
    world.record = (69, "access denied to s3://training/jobs\n")
    await world.rest()
    assert world.recorded == ("False", "RecordRefused")
    assert world.condition("Recorded")["message"].endswith(": access denied to s3://training/jobs")
    assert (len(world.made), world.record_pods()) == (1, [])
    assert world.events()[-1] == "RecordRefused"


async def test_a_pod_that_the_cluster_takes_away_is_made_again() -> None:
    world = Recorded()
    await world.until(lambda: bool(world.record_pods()))
    (pod,) = world.record_pods()
    name = ("Pod", "ml", pod["metadata"]["name"])
    world.cluster.change(name, lambda there: there.update(status={"phase": "Failed", "reason": "Evicted"}))
    await world.rest()
    assert (len(world.made), world.recorded) == (2, ("True", "EndRecorded"))


async def test_pods_that_the_cluster_takes_away_again_and_again_are_given_up() -> None:
    """The pod is gone at once each time, for example with OutOfpods."""
    world = Recorded()
    world.record = None
    await world.until(lambda: bool(world.record_pods()))
    began = world.cluster.now
    while world.recorded != ("False", "RecordRefused"):
        for pod in world.record_pods():
            name = "Pod", "ml", pod["metadata"]["name"]
            world.cluster.change(
                name, lambda there: there["status"].update(phase="Failed", reason="OutOfpods")
            )
        await world.step()
    assert len(world.made) == MOST_LOST
    assert world.cluster.now - began >= timedelta(seconds=8 + 16 + 32 + 64), "without a pause"
    assert world.condition("Recorded")["message"] == "the cluster took 5 record pods away, one after another"
    await world.until(lambda: world.record_pods() == [])


async def test_a_secret_that_is_missing_is_no_reason_to_wait() -> None:
    world = Recorded()
    await world.until(lambda: bool(world.record_pods()))
    (pod,) = world.record_pods()
    name, waiting = ("Pod", "ml", pod["metadata"]["name"]), {
        "reason": "CreateContainerConfigError", "message": 'secret "s3-credentials" not found',
    }  # fmt: skip
    states = [{"name": "record", "state": {"waiting": waiting}}]
    world.cluster.change(name, lambda there: there["status"].update(containerStatuses=states))
    await world.rest()
    assert world.recorded == ("False", "RecordRefused")
    assert 's3-credentials" not found' in world.condition("Recorded")["message"]


@pytest.mark.parametrize(
    ("code", "condition"), [(0, ("True", "EndRecorded")), (69, ("False", "RecordRefused"))]
)
async def test_a_sidecar_that_runs_on_is_no_failure_of_the_record(
    code: int, condition: tuple[str, str]
) -> None:
    world = Recorded()
    world.record = (code, "access denied")
    world.kubelet.run_on = {"istio-proxy"}

    def inject(call: Call, made: Manifest) -> None:
        if call.verb == "create" and LABEL_RECORD in made["metadata"].get("labels", {}):
            made["spec"]["containers"].append({"name": "istio-proxy"})

    world.cluster.meanwhile = inject
    began = world.cluster.now
    await world.until(lambda: world.recorded == condition)
    assert world.cluster.now - began < timedelta(seconds=60)
    await world.until(lambda: world.record_pods() == [])
    assert len(world.made) == 1


async def test_a_queue_of_kueue_that_holds_the_pod_is_told() -> None:
    """A namespace with a LocalQueue `default`: Kueue's webhook gates each pod without a queue."""
    world = Recorded()

    def gate(call: Call, made: Manifest) -> None:
        if call.verb == "create" and LABEL_RECORD in made["metadata"].get("labels", {}):
            made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "default"
            made["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]

    world.cluster.meanwhile = gate
    await world.until(lambda: "Kueue" in world.condition("Recorded").get("message", ""))
    (pod,) = world.record_pods()
    name = pod["metadata"]["name"]
    assert world.recorded == ("False", "RecordPending")
    assert world.condition("Recorded")["message"] == f"{name} waits: Kueue holds it in LocalQueue default"
    await world.until(lambda: world.recorded == ("False", "RecordGivenUp"), 400)
    assert world.condition("Recorded")["message"].endswith(": Kueue holds it in LocalQueue default")


async def test_a_pod_that_does_not_end_is_given_up() -> None:
    world = Recorded()
    world.record = None
    await world.until(lambda: world.recorded == ("False", "RecordGivenUp"), 400)
    await world.until(lambda: world.record_pods() == [])
    places = [world.places.take((KEY[0], f"other-{number}")) for number in range(20)]
    assert places.count(True) == MOST_IN_VAIN


async def test_a_quota_is_waited_for_and_then_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    world, create = Recorded(), FakeCluster.create

    async def refuse(cluster: FakeCluster, made: Manifest) -> Manifest:
        if LABEL_RECORD in made["metadata"].get("labels", {}):
            raise ApiError(403, "Forbidden", "exceeded quota: pods")
        return await create(cluster, made)

    monkeypatch.setattr(FakeCluster, "create", refuse)
    await world.until(lambda: world.phase == "Failed")
    await world.until(lambda: world.recorded == ("False", "RecordRefused"), 400)
    assert "exceeded quota" in world.condition("Recorded")["message"]


async def test_an_operator_that_starts_anew_goes_on() -> None:
    world = Recorded()
    await world.until(lambda: world.phase == "Failed")
    world.start_operator()
    await world.rest()
    assert (len(world.made), world.recorded) == (1, ("True", "EndRecorded"))


@pytest.mark.bound(
    "operator",
    "Who may create jobs",
    "Record pods, when many jobs end",
    "A fixed number at a time; other jobs wait for their turn",
)
async def test_thousands_of_ends_have_a_few_record_pods_at_a_time() -> None:
    world = Recorded()
    world.records = 1
    world.start_operator()
    world.record = None
    await world.until(lambda: bool(world.record_pods()))
    other = manifest("other", artifacts=ARTIFACTS, runPolicy={"backoffLimit": 0}, command=[])
    world.apply(other)

    async def turn() -> float | None:
        await Recorded.step(world)
        return await world.reconciler.reconcile(("ml", "other"))

    waits = [await turn() for _ in range(5)]
    assert world.cluster.objects["DistributedTrainingJob", "ml", "other"]["status"]["phase"] == "Failed"
    assert len(world.record_pods()) == 1
    assert waits[-1] is not None
    assert 60 <= waits[-1] <= 120, "it is woken when it has its turn"
    world.record = (0, "")
    for _ in range(10):
        await turn()
    assert len(world.made) == 2


# --- suspensions -------------------------------------------------------------------------------------


def suspend(world: World, value: bool) -> None:
    world.cluster.change(
        ("DistributedTrainingJob", *KEY), lambda job: job["spec"]["runPolicy"].update(suspend=value)
    )


async def test_a_suspension_that_lasts_is_recorded_and_so_is_the_end_that_follows() -> None:
    world = Recorded()
    world.code = None
    await world.until(lambda: world.phase == "Running")
    suspend(world, True)
    await world.until(lambda: world.phase == "Suspended")
    began = world.cluster.now
    await world.until(lambda: world.recorded == ("True", "SuspensionRecorded"))
    assert world.cluster.now - began >= timedelta(seconds=60)
    await world.rest()
    assert end_in(world.made[0])["status"]["phase"] == "Suspended"
    assert conditions(end_in(world.made[0])["status"]) == conditions(world.status)
    assert (len(world.made), world.record_pods()) == (1, [])

    world.code = 3
    suspend(world, False)
    await world.rest()
    assert (world.phase, world.recorded) == ("Failed", ("True", "EndRecorded"))
    assert [end_in(pod)["status"]["phase"] for pod in world.made] == ["Suspended", "Failed"]


async def test_a_short_suspension_and_a_job_that_never_ran_are_not() -> None:
    world = Recorded(runPolicy={"suspend": True, "backoffLimit": 0})
    world.code = None
    await world.until(lambda: world.phase == "Suspended")
    world.cluster.now += timedelta(seconds=300)
    await world.rest()
    suspend(world, False)
    await world.until(lambda: world.phase == "Running")
    suspend(world, True)
    await world.until(lambda: world.phase == "Suspended")
    suspend(world, False)
    await world.until(lambda: world.phase == "Running")
    assert (world.made, world.condition("Recorded")) == ([], {})
