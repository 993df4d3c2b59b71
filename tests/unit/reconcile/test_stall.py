"""Whole lives of jobs whose training stalls, in the fake cluster."""

from __future__ import annotations

from typing import Any

from dtj.api.job import Manifest
from tests.unit.status.test_stall import STRATEGIES, policy, report
from tests.unit.support.kubelet import Ending
from tests.unit.support.world import KEY, World


def endless(pod: Manifest, ran: int) -> Ending | None:
    return None


async def until_it_stands(world: World) -> None:
    await world.until(lambda: world.phase == "Running")
    world.progress.reports[KEY] = report(7)
    await world.until(lambda: world.condition("Stalled").get("status") == "True", 250)


@STRATEGIES
async def test_stacks_are_asked_for_once_a_stall_of_every_pod_that_has_them(
    spec: dict[str, Any], asked: list[str]
) -> None:
    world = World(**spec, **policy())
    world.kubelet.program = endless
    await until_it_stands(world)
    for _ in range(300):
        await world.step()
    assert world.progress.asked_for_stacks == [asked]
    assert world.phase == "Running"
    assert world.events().count("NoProgress") == 1

    world.progress.reports[KEY] = report(8)
    await world.until(lambda: world.condition("Stalled")["status"] == "False")
    await world.until(lambda: world.condition("Stalled")["status"] == "True", 250)

    assert world.progress.asked_for_stacks == [asked, asked]
    assert [reason for reason in world.events() if "Progress" in reason] == [
        "NoProgress",
        "ProgressResumed",
        "NoProgress",
    ]


@STRATEGIES
async def test_all_that_trains_starts_again(spec: dict[str, Any], asked: list[str]) -> None:
    world = World(**spec, **policy(stallPolicy="Restart"))
    world.kubelet.program = endless
    await until_it_stands(world)
    before = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in world.cluster.of_kind("Pod")}

    await world.until(lambda: world.status["attempt"] == 2)
    world.progress.reports.clear()
    await world.until(lambda: world.phase == "Running")

    after = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in world.cluster.of_kind("Pod")}
    assert {name for name in before if before[name] == after[name]} == {"mnist-evaluator-0"} & before.keys()
    assert world.status["restarts"]["application"] == 1
    assert world.progress.asked_for_stacks == [asked]


async def test_an_operator_that_dies_after_it_told_the_stall_asks_when_it_is_back() -> None:
    world = World(**policy())
    world.kubelet.program = endless
    await until_it_stands(world)
    world.start_operator()

    await world.step()
    assert world.condition("Stalled")["status"] == "True"
    assert world.progress.asked_for_stacks == []
    world.progress.reports[KEY] = report(7)
    await world.step()

    assert world.progress.asked_for_stacks == [["mnist-worker-0", "mnist-worker-1"]]


async def test_no_hung_program_stays_when_the_job_has_failed_of_it() -> None:
    world = World(**policy(stallPolicy="Restart", backoffLimit=0, cleanPodPolicy="None"))
    world.kubelet.program = endless
    await until_it_stands(world)

    await world.until(lambda: world.phase == "Failed")
    await world.rest()

    assert world.pod_names() == []
