"""Jobs of thousands of pods: work grows with the size, and other jobs get their turn.

* the size of pods, and the work of a pass
* batches of creations, refusals and rate limits
* other jobs beside a large one
* lists in place of single requests
"""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import replace
from typing import Any

import pytest

from dtj.api import shape as shapes
from dtj.api.job import Job, Manifest
from dtj.api.shape import Shape
from dtj.cluster.interface import ApiError
from dtj.plan import pods
from dtj.plan.job import plan_job
from dtj.plan.model import Plan
from dtj.reconcile.decision import Decided, decide
from dtj.reconcile.executor import slow_start
from dtj.status import pods as pod_views
from dtj.status.evaluate import evaluate
from dtj.status.observed import Observed
from tests.unit.support.jobs import job
from tests.unit.support.pods import at, ended, running, views
from tests.unit.support.world import KEY, World

PARAMETER_SERVERS = {"strategy": "ParameterServer"}


def workers(count: int) -> dict[str, Any]:
    return {"replicaSpecs": {"worker": {"replicas": count}}}


def servers(count: int) -> dict[str, Any]:
    return PARAMETER_SERVERS | {"replicaSpecs": {"worker": {"replicas": count}, "ps": {"replicas": count}}}


def failed(name: str) -> Manifest:
    """A worker that lost its connections to another one."""
    return ended(name, 1, {"class": "ConnectionLost", "message": "Connection closed by peer", "exitCode": 1})


def out_of_memory(name: str) -> Manifest:
    return ended(name, 137, reason="OOMKilled")


def torch_workers(count: int) -> dict[str, Any]:
    return {"strategy": "TorchDistributed"} | workers(count)


@pytest.mark.parametrize("spec", [workers, servers, torch_workers])
def test_a_pod_is_as_large_in_a_large_job_as_in_a_small_one(spec: Any) -> None:
    small, large = (plan_job(job(**spec(count))) for count in (10, 900))

    sizes = [len(json.dumps(plan.pod(plan.shape.replicas[5]))) for plan in (small, large)]
    assert sizes[1] <= sizes[0] + 6, "by a digit of each number of ranks or pods"


@pytest.mark.parametrize("spec", [workers, servers, torch_workers])
async def test_a_manifest_is_made_when_its_pod_is_and_a_row_of_the_plan_once_an_attempt(
    monkeypatch: pytest.MonkeyPatch, spec: Any
) -> None:
    made: list[str] = []
    rows: list[int] = []
    viewed: list[str] = []

    def replica_pod(given: Job, replica: Any, recipe: Any) -> Manifest:
        made.append(replica.name)
        return original(given, replica, recipe)

    def shape_of(given: Job, **options: bool) -> Shape:
        made_shape = shapes.shape_of(given, **options)
        rows.append(len(made_shape.replicas))
        return made_shape

    original = pods.replica_pod
    monkeypatch.setattr(pods, "replica_pod", replica_pod)
    for module in ("horovod", "parameter_server", "torch_distributed"):
        monkeypatch.setattr(f"dtj.plan.{module}.shape_of", shape_of)
    view_pod = pod_views.view_pod
    monkeypatch.setattr(
        "tests.unit.support.fake_view.view_pod",
        lambda pod: (viewed.append(pod["metadata"]["name"]), view_pod(pod))[1],
    )
    world = World(**spec(60))
    size = len(plan_job(job(**spec(60))).shape.replicas)
    made.clear()
    rows.clear()
    decisions: list[Decided] = []
    monkeypatch.setattr(
        "dtj.reconcile.reconciler.decide", lambda seen: (decisions.append(decide(seen)), decisions[-1])[1]
    )
    passes = 0
    while world.phase != "Running":
        await world.step()
        passes += 1

    assert len(made) == size
    assert sum(rows) <= 2 * size, "with and without the name of its Secret"
    assert len(viewed) <= 6 * size, "once for each change of a pod"
    assert len(decisions) == passes <= size / 4


class Counted(str):
    """A name that counts with how many other names it is compared."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other)


@pytest.mark.parametrize(
    ("ends", "phase"),
    [
        ([running] * 3, "Running"),
        ([ended, running, running], "Running"),
        ([ended] * 3, "Succeeded"),
        ([failed, failed, running], "Running"),
        ([ended, failed, running], "Restarting"),
        ([failed, failed, out_of_memory], "Restarting"),
    ],
)
def test_who_decides_is_not_searched_for_each_pod_and_no_message_names_all(ends: Any, phase: str) -> None:
    given, size = job(**torch_workers(600)), 600
    plan = plan_job(given)
    names = [Counted(name) for name in plan.shape.decisive]
    counted = tuple(replace(each, name=name) for each, name in zip(plan.shape.replicas, names, strict=True))
    shape = replace(plan.shape, decisive=tuple(names), stages=(counted,))
    started = evaluate(given, shape, [], Observed(pods=views(*map(running, names))), at(0)).status
    pods = views(*(end(name) for each, end in enumerate(ends) for name in names[each::3]))
    Counted.compared = 0

    status = evaluate(replace(given, status=started), shape, [], Observed(pods=pods), at(10)).status

    assert status.phase == phase
    assert Counted.compared <= 20 * size
    assert all(len(condition.message) < 200 for condition in status.conditions)


async def test_a_pass_over_a_large_job_leaves_the_event_loop_to_others() -> None:
    threads: list[str] = []

    class Watched(World):
        @staticmethod
        def plan(given: Job) -> Plan:
            threads.append(threading.current_thread().name)
            return plan_job(given)

    await Watched(**workers(2)).step()
    assert set(threads) == {threading.current_thread().name}
    threads.clear()
    await Watched(**workers(400)).step()
    assert threading.current_thread().name not in threads


async def test_a_pass_makes_500_pods_at_most_and_goes_on_at_once() -> None:
    world = World(**workers(520))

    world.view.deliver()
    await world.turn()
    first = len(world.pod_names())
    assert world.again == 0
    world.view.deliver()
    await world.turn()

    # The others are the Service and the ConfigMap.
    assert first == 498
    assert len(world.pod_names()) == 520


async def test_a_large_job_is_told_of_each_answer() -> None:
    world = World(**workers(30))
    moved: list[tuple[str, str]] = []
    world.reconciler._executor._moves = moved.append

    world.view.deliver()
    await world.turn()

    assert set(moved) == {KEY}
    assert len(moved) >= 30


async def test_after_a_refusal_no_more_pods_are_tried_than_were_on_their_way() -> None:
    world = World(**workers(300))
    world.cluster.refuse = lambda made: (
        ApiError(403, "Forbidden", "exceeded quota: pods=5")
        if made["kind"] == "Pod" and full(world)
        else None
    )

    world.view.deliver()
    await world.turn()

    tried = [call for call in world.cluster.calls if (call.verb, call.kind) == ("create", "Pod")]
    assert len(world.pod_names()) == 5
    assert len(tried) == 1 + 2 + 4


def full(world: World) -> bool:
    return len(world.cluster.of_kind("Pod")) >= 5


async def test_requests_start_slowly_and_are_16_at_a_time_at_most() -> None:
    running, most, batches = 0, 0, []

    async def do(_: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        batches.append(running)
        running -= 1

    await slow_start(do, range(100))

    assert most == 16
    assert [max(batches[:1]), max(batches[1:3]), max(batches[3:7])] == [1, 2, 4]


@pytest.mark.bound(
    "operator",
    "Who may create jobs",
    "Requests at once for one job",
    "16; 4 while other jobs wait",
)
async def test_a_large_job_leaves_other_jobs_most_of_the_api_server() -> None:
    world, running, most = World(**workers(40)), 0, 0
    create = world.cluster.create

    async def counted(manifest: Manifest) -> Manifest:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return await create(manifest)

    world.cluster.create = counted  # type: ignore[method-assign]
    world.reconciler._executor._crowded = lambda: True

    world.view.deliver()
    await world.turn()

    assert most == 4
    assert len(world.pod_names()) == 40


async def test_the_first_failure_of_a_batch_is_raised_and_no_other_batch_begins() -> None:
    done: list[int] = []

    async def do(number: int) -> None:
        done.append(number)
        if number >= 3:
            raise ValueError(number)

    with pytest.raises(ValueError, match="3"):
        await slow_start(do, range(100))
    assert done == [*range(7)]


async def test_a_restart_of_many_pods_asks_the_api_server_for_lists_not_for_each_pod() -> None:
    world = World(**workers(40))
    world.kubelet.program = lambda pod, ran: None
    await world.until(lambda: world.phase == "Running")
    for name in world.pod_names():
        world.cluster.remove(("Pod", "ml", name))
    world.cluster.calls.clear()

    await world.until(lambda: world.status["attempt"] == 2 and len(world.pod_names()) >= 40)

    reads = [call.verb for call in world.cluster.calls if call.verb in ("get", "list")]
    assert "get" not in reads
    assert len(reads) <= 2
