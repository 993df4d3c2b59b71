"""The requests of an undisturbed job: no object is read twice, and counts of pods are written together.

* requests of a whole life and of a restart
* a cache that lags behind
* counts of pods that are written together
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from datetime import timedelta

import pytest

from dtj.api.identity import KIND, LABEL_INDEX, LABEL_RECORD
from dtj.api.job import Manifest
from dtj.cluster.interface import ApiError
from dtj.reconcile.boot_clock import BootClock
from dtj.reconcile.memory import EventRecorder
from dtj.reconcile.record import MOST_LOST
from dtj.reconcile.refusal import pause
from dtj.status.events import Happening
from tests.unit.support import modern
from tests.unit.support.fake_cluster import name_of
from tests.unit.support.jobs import job
from tests.unit.support.kubelet import succeed_after_two_steps
from tests.unit.support.programs import fails
from tests.unit.support.world import KEY, World

JOB = (KIND, *KEY)
CODE = {"configMap": "mnist-code", "digest": f"sha256:{'5' * 64}", "entrypoint": "train.py"}
CODED = pytest.mark.parametrize(
    "code", [{}, {"code": CODE, "command": [], "args": []}], ids=["in the image", "in a ConfigMap"]
)


class ThriftyWorld(World):
    """As the operator's process has it."""

    counts_after = 5.0
    passed: float | None = None
    """Seconds of the boot clock; None: as many as of the other clock."""

    def elapsed(self) -> float:
        return super().elapsed() if self.passed is None else self.passed

    def asked(self, since: int = 0) -> Counter[tuple[str, str]]:
        return Counter((call.verb, call.kind) for call in self.cluster.calls[since:])


@CODED
async def test_a_whole_life_costs_thirteen_writes_and_no_read(code: Manifest) -> None:
    world = ThriftyWorld(**code)

    await world.rest()

    assert world.phase == "Succeeded"
    assert world.asked() == {
        ("create", "Service"): 1,
        ("create", "Secret"): 1,
        ("create", "ConfigMap"): 1,
        ("create", "Pod"): 3,
        ("create", "Event"): 2,
        ("delete", "Pod"): 2,
        ("patch", "DistributedTrainingJob"): 3,
    }
    assert {role: counts["active"] for role, counts in world.status["replicaStatuses"].items()} == {
        "launcher": 0,
        "worker": 0,
    }


@CODED
async def test_a_life_without_launcher_and_secret_costs_nine_writes_and_no_read(code: Manifest) -> None:
    world = ThriftyWorld(strategy="TorchDistributed", **code)
    world.kubelet.program = lambda pod, ran: (0, "") if ran >= 2 else None

    await world.rest()

    assert world.phase == "Succeeded"
    assert world.asked() == {
        ("create", "Service"): 1,
        ("create", "ConfigMap"): 1,
        ("create", "Pod"): 2,
        ("create", "Event"): 2,
        ("patch", "DistributedTrainingJob"): 3,
    }


async def test_the_ends_of_many_workers_are_written_together() -> None:
    world = ThriftyWorld(strategy="TorchDistributed", replicaSpecs={"worker": {"replicas": 30}})
    world.kubelet.program = lambda pod, ran: None
    await world.until(lambda: world.phase == "Running")
    # One worker ends in each second.
    world.kubelet.program = lambda pod, ran: (
        (0, "") if ran > 10 + int(pod["metadata"]["labels"][LABEL_INDEX]) else None
    )
    before = len(world.cluster.calls)

    await world.until(lambda: world.phase == "Succeeded")

    assert world.asked(before)["patch", "DistributedTrainingJob"] <= 30 / world.counts_after + 2


async def test_a_restart_costs_two_reads() -> None:
    world = ThriftyWorld()
    world.kubelet.program = lambda pod, ran: None
    await world.until(lambda: world.phase == "Running")
    world.cluster.remove(("Pod", "ml", "mnist-worker-0"))
    await world.until(lambda: world.status["attempt"] == 2)
    world.kubelet.program = succeed_after_two_steps

    await world.rest()

    assert (world.phase, world.status["attempt"]) == ("Succeeded", 2)
    assert {asked: times for asked, times in world.asked().items() if asked[0] in ("get", "list")} == {
        ("list", "Pod"): 2,  # whether it is lost, and whether all of its attempt have ended
    }


async def test_what_the_cache_does_not_show_yet_is_not_made_again() -> None:
    world = ThriftyWorld()
    world.view.deliver()
    await world.turn()
    made = len(world.cluster.calls)

    world.view.deliver("DistributedTrainingJob")
    await world.turn()

    assert world.cluster.calls[made:] == []
    assert world.again is not None
    assert world.again <= 3, "should the cache never show it"


async def test_what_went_before_the_cache_showed_it_is_made_again() -> None:
    world = ThriftyWorld()
    world.view.deliver()
    await world.turn()
    world.cluster.remove(("Pod", "ml", "mnist-worker-0"))
    world.view.deliver()

    await world.until(lambda: "mnist-worker-0" in world.pod_names())


async def test_a_clock_that_is_set_back_makes_no_wait_longer() -> None:
    world = ThriftyWorld()
    world.passed = 0.0
    world.view.deliver()
    await world.turn()
    world.cluster.remove(("Pod", "ml", "mnist-worker-0"))
    world.view.deliver()

    world.cluster.now -= timedelta(hours=1)
    world.passed = 3.0
    await world.turn()

    assert "mnist-worker-0" in world.pod_names(), "what went before the cache showed it is made again"


async def test_a_pod_is_told_to_end_once() -> None:
    world = ThriftyWorld()
    await world.until(lambda: world.phase == "Succeeded")
    await world.turn()
    await world.turn()

    assert world.asked()["delete", "Pod"] == 2


async def test_counts_wait_and_what_matters_does_not() -> None:
    world = ThriftyWorld()
    world.kubelet.hold = {"mnist-worker-1"}
    await world.step()
    written = world.asked()["patch", "DistributedTrainingJob"]
    for _ in range(3):
        await world.step()

    assert world.asked()["patch", "DistributedTrainingJob"] == written
    assert world.status["phase"] == "Pending"
    assert world.again is not None
    assert world.again <= ThriftyWorld.counts_after
    await world.until(lambda: world.phase == "Starting")
    assert world.status["replicaStatuses"]["worker"]["active"] == 2

    world.cluster.end_pod(world.cluster.pod("mnist-worker-0"))
    await world.until(lambda: world.phase == "Starting")
    assert world.asked()["patch", "DistributedTrainingJob"] == written + 1


async def test_a_pod_that_goes_after_the_last_one_was_made_is_missed_although_nothing_counted_it() -> None:
    world = ThriftyWorld()
    world.kubelet.hold = {"mnist-launcher-0"}
    await world.until(lambda: "mnist-launcher-0" in world.pod_names())
    assert world.status["replicaStatuses"]["worker"]["active"] == 0

    world.start_operator()
    world.cluster.remove(("Pod", "ml", "mnist-worker-1"))
    await world.until(lambda: world.status["attempt"] == 2)

    assert "mnist-worker-1" in world.status["failure"]["message"]


async def test_a_worker_that_an_edit_adds_after_the_launcher_was_made_is_not_missed() -> None:
    world = ThriftyWorld()
    world.kubelet.hold = {"mnist-launcher-0"}
    await world.until(lambda: "mnist-launcher-0" in world.pod_names())

    world.cluster.change(JOB, lambda job: job["spec"]["replicaSpecs"]["worker"].update(replicas=3))
    for _ in range(3):
        await world.step()
    world.kubelet.hold = set()
    await world.until(lambda: world.phase == "Running")

    assert world.status["attempt"] == 1


# --- what is refused for an hour --------------------------------------------------------------------

MOST_WRITES = 20


def _quota(manifest: Manifest, count: int) -> ApiError | None:
    name = manifest["metadata"]["name"]
    said = f'pods "{name}" is forbidden: exceeded quota: q, requested: pods=1'
    return ApiError(403, "Forbidden", said) if manifest["kind"] == "Pod" else None


def _other_words(manifest: Manifest, count: int) -> ApiError | None:
    said = f"admission webhook denied the request: request {count}"
    return ApiError(403, "Forbidden", said) if manifest["kind"] == "Pod" else None


def _lasting(manifest: Manifest, _: int) -> ApiError | None:
    return modern.policy()(manifest)


def _no_account(manifest: Manifest, _: int) -> ApiError | None:
    name = manifest["metadata"]["name"]
    said = f'pods "{name}" is forbidden: error looking up service account ml/typo: serviceaccount "typo" not found'
    return ApiError(403, "Forbidden", said) if manifest["kind"] == "Pod" else None


def _no_webhook(manifest: Manifest, _: int) -> ApiError | None:
    said = 'Internal error occurred: failed calling webhook "a.b.c": connection refused'
    return ApiError(500, "InternalError", said) if manifest["kind"] == "Pod" else None


async def _an_hour(world: World) -> None:
    since = world.cluster.now
    while world.cluster.now - since < timedelta(hours=1):
        await world.step()
        if world.again is None or world.again > 10:
            world.cluster.now += timedelta(seconds=8)


@pytest.mark.bound(
    "operator",
    "Who may create jobs, over a quota or against a policy",
    "Tries of what the API server refuses",
    "Pauses that grow from 10 s to 7 minutes: 20 writes in an hour",
)
@pytest.mark.parametrize("strategy", ["Horovod", "TorchDistributed", "ParameterServer"])
@pytest.mark.parametrize("refusal", [_quota, _other_words, _lasting, _no_account, _no_webhook])
async def test_an_hour_of_refusals_costs_few_writes(
    strategy: str, refusal: Callable[[Manifest, int], ApiError | None]
) -> None:
    roles = {"worker": {"replicas": 2}} | ({"ps": {}} if strategy == "ParameterServer" else {})
    world, count = ThriftyWorld(strategy=strategy, replicaSpecs=roles), itertools.count()
    world.cluster.refuse = lambda manifest: refusal(manifest, next(count))
    await _an_hour(world)
    asked = world.asked()
    assert world.condition("Running")["reason"] in ("QuotaExceeded", "Forbidden", "ApiServerError")
    assert asked["create", "Pod"] >= 10, "not tried"
    # What may end within seconds is tried up to four times before the pauses.
    assert len(world.cluster.writes) <= MOST_WRITES + (4 if refusal in (_no_account, _no_webhook) else 0), (
        asked
    )

    # An edit of the job is tried at once.
    before = len(world.cluster.calls)
    world.cluster.refuse = lambda manifest: None
    world.cluster.change(JOB, lambda job: job["metadata"].update(generation=2))
    for _ in range(3):
        await world.step()
    assert world.asked(before)["create", "Pod"] >= 2


async def test_an_hour_of_a_restart_that_is_refused_costs_few_writes() -> None:
    world = ThriftyWorld(strategy="TorchDistributed")
    world.kubelet.program = lambda pod, ran: None
    await world.until(lambda: world.phase == "Running")
    before = len(world.cluster.writes)
    world.cluster.refuse = modern.validation()
    world.cluster.remove(("Pod", "ml", "mnist-worker-1"))
    await _an_hour(world)
    assert world.phase == "Restarting"
    assert 10 <= len(world.cluster.writes) - before <= MOST_WRITES


async def test_an_hour_of_record_pods_that_are_taken_away_costs_few_writes() -> None:
    world = ThriftyWorld(artifacts={"uri": "s3://training/jobs"}, runPolicy={"backoffLimit": 0})
    world.records = 1
    world.start_operator()
    world.kubelet.program = fails(9)
    await world.until(lambda: world.phase == "Failed")
    before = len(world.cluster.writes)
    taken = {"phase": "Failed", "reason": "OutOfpods"}
    for _ in range(1000):
        for pod in world.cluster.of_kind("Pod"):
            if LABEL_RECORD in pod["metadata"]["labels"] and pod["status"]["phase"] != "Failed":
                world.cluster.change(name_of(pod), lambda there: there["status"].update(taken))
        await world.step()
    await _an_hour(world)
    asked = Counter((call.verb, call.kind) for call in world.cluster.writes[before:])
    # The pass that failed the job made the first one.
    assert asked["create", "Pod"] == MOST_LOST - 1
    assert sum(asked.values()) <= MOST_WRITES, asked


async def test_an_hour_of_a_tensorboard_that_is_refused_costs_few_writes() -> None:
    world = ThriftyWorld(artifacts={"uri": "s3://training/jobs"}, tensorboard={"enabled": True})
    world.kubelet.program = lambda pod, ran: None
    denied = ApiError(403, "Forbidden", "exceeded quota: q")
    world.cluster.refuse = lambda made: denied if made["kind"] == "Deployment" else None
    await world.until(lambda: world.phase == "Running")
    before = len(world.cluster.writes)
    await _an_hour(world)
    assert 10 <= len(world.cluster.writes) - before <= MOST_WRITES

    world.cluster.refuse = lambda made: None
    world.cluster.change(JOB, lambda job: job["metadata"].update(generation=2))
    await world.step()
    assert world.cluster.of_kind("Deployment"), "an edit is tried at once"


def test_pauses_grow_and_differ() -> None:
    pauses = [pause(tries, "a") for tries in range(1, 40)]
    assert 10 <= pauses[0] <= 14
    assert all(300 <= each <= 420 for each in pauses[3:])
    assert len({pause(1, str(uid)) for uid in range(100)}) == 100
    # The most tries that any job makes in an hour: some jobs have short pauses.
    tries = []
    for uid in range(1000):
        elapsed = list(itertools.accumulate(pause(failed, str(uid)) for failed in range(1, 40)))
        tries.append(1 + sum(each < 3600 for each in elapsed))
    assert max(tries) == 13


@pytest.mark.bound(
    "operator", "A program, by what it reports", "Events of a job", "25, and one more every 5 minutes"
)
async def test_states_that_change_without_end_make_few_events() -> None:
    world = World()
    recorder = EventRecorder(BootClock(lambda: world.cluster.now, world.elapsed))
    for seconds in range(3600):
        recorder.record(job(), Happening("Warning", "Bottleneck", f"state {seconds}"))
        await recorder.flush(world.cluster)
        world.cluster.now += timedelta(seconds=1)
    assert len(world.cluster.of_kind("Event")) == 25 + 3600 // 300 - 1
