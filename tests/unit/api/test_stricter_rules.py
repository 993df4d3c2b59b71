"""Running jobs whose spec a new version of the operator refuses or can't read: pods continue, end and are deleted.

Two cases are tested: a rule that the image breaks, and a field that this version does not have.
"""

from __future__ import annotations

from typing import Any

import pytest

from dtj.api.identity import KIND
from tests.unit.support.programs import endless, fails
from tests.unit.support.world import KEY, World

JOB = (KIND, *KEY)
CHIEFLESS = {
    "strategy": "ParameterServer",
    "replicaSpecs": {"chief": {"replicas": 0}, "worker": {"replicas": 2}, "ps": {"replicas": 1}},
}
MASTERED = {
    "strategy": "ParameterServer",
    "replicaSpecs": {"master": {"replicas": 1}, "worker": {"replicas": 2}, "ps": {"replicas": 1}},
}
ALONE = {
    "strategy": "ParameterServer",
    "replicaSpecs": {"chief": {"replicas": 0}, "worker": {"replicas": 2}},
}
SERVERS = {
    "strategy": "ParameterServer",
    "replicaSpecs": {"worker": {"replicas": 2}, "ps": {"replicas": 1}},
}


WRONG = pytest.mark.parametrize(
    "wrong", [{"image": "No Image"}, {"newField": 1}], ids=["a wrong image", "an unknown field"]
)


async def running(wrong: dict[str, Any], **spec: Any) -> World:
    """A job that runs, before an operator that calls its spec wrong."""
    world = World(**spec)
    world.kubelet.program = endless
    await world.until(lambda: world.phase == "Running")
    world.cluster.change(JOB, lambda job: job["spec"].update(wrong))
    world.start_operator()
    await world.step()
    assert world.condition("Created")["reason"] == "SpecInvalid"
    assert world.phase == "Running"
    return world


@WRONG
@pytest.mark.parametrize(
    ("spec", "deciding"),
    [
        ({}, "launcher-0"),
        (SERVERS, "chief-0"),
        (CHIEFLESS, "worker-0"),
        (MASTERED, "master-0"),
        (ALONE, "worker-0"),
    ],
    ids=["Horovod", "ParameterServer", "no chief", "master", "workers alone"],
)
async def test_the_end_is_seen_and_cleaned_up_after(spec: Any, deciding: str, wrong: dict[str, Any]) -> None:
    world = await running(wrong, **spec)
    world.kubelet.program = lambda pod, ran: (
        (0, "") if pod["metadata"]["name"] == f"mnist-{deciding}" else None
    )

    await world.rest()

    assert world.phase == "Succeeded"
    assert world.pod_names() == [f"mnist-{deciding}"]


@WRONG
async def test_its_deadline_holds(wrong: dict[str, Any]) -> None:
    world = await running(wrong, runPolicy={"activeDeadlineSeconds": 60})

    await world.rest()

    assert (world.phase, world.status["failure"]["class"]) == ("Failed", "DeadlineExceeded")


@WRONG
async def test_it_can_be_suspended(wrong: dict[str, Any]) -> None:
    world = await running(wrong)
    world.cluster.change(JOB, lambda job: job["spec"].setdefault("runPolicy", {}).update(suspend=True))

    await world.until(lambda: world.phase == "Suspended" and not world.pod_names())


@WRONG
async def test_a_failure_is_told_and_no_pod_is_made_before_the_spec_is_mended(wrong: dict[str, Any]) -> None:
    world = await running(wrong, runPolicy={"backoffLimit": 1})
    world.kubelet.program = fails(1)
    await world.until(lambda: world.status["attempt"] == 2)
    await world.rest()

    assert world.status["failure"]["message"] == "it broke"
    assert world.pod_names() == []

    def mend(job: dict[str, Any]) -> None:
        job["spec"].pop("newField", None)
        job["spec"]["image"] = "mended:1"

    world.cluster.change(JOB, mend)
    await world.rest()

    assert world.phase == "Succeeded"
