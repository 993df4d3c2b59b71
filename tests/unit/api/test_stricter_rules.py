"""Jobs that run while a newer operator calls their spec wrong: what is there goes on, ends and is cleaned up."""

from __future__ import annotations

from typing import Any

import pytest

from dtj.api.identity import KIND
from tests.unit.support.programs import endless, fails
from tests.unit.support.world import KEY, World

JOB = (KIND, *KEY)
SERVERS = {
    "strategy": "ParameterServer",
    "replicaSpecs": {"worker": {"replicas": 2}, "ps": {"replicas": 1}},
}


async def running(**spec: Any) -> World:
    """A job that runs, before an operator that calls its image wrong."""
    world = World(**spec)
    world.kubelet.program = endless
    await world.until(lambda: world.phase == "Running")
    world.cluster.change(JOB, lambda job: job["spec"].update(image="No Image"))
    world.start_operator()
    await world.step()
    assert world.condition("Created")["reason"] == "SpecInvalid"
    assert world.phase == "Running"
    return world


@pytest.mark.parametrize("spec", [{}, SERVERS], ids=["Horovod", "ParameterServer"])
async def test_the_end_is_seen_and_cleaned_up_after(spec: Any) -> None:
    world = await running(**spec)
    deciding = "launcher" if not spec else "chief"
    world.kubelet.program = lambda pod, ran: (
        (0, "") if pod["metadata"]["labels"]["dtj.dev/role"] == deciding else None
    )

    await world.rest()

    assert world.phase == "Succeeded"
    assert world.pod_names() == [f"mnist-{deciding}-0"]


async def test_its_deadline_holds() -> None:
    world = await running(runPolicy={"activeDeadlineSeconds": 60})

    await world.rest()

    assert (world.phase, world.status["failure"]["class"]) == ("Failed", "DeadlineExceeded")


async def test_it_can_be_suspended() -> None:
    world = await running()
    world.cluster.change(JOB, lambda job: job["spec"].setdefault("runPolicy", {}).update(suspend=True))

    await world.until(lambda: world.phase == "Suspended" and not world.pod_names())


async def test_a_failure_is_told_and_no_pod_is_made_before_the_spec_is_mended() -> None:
    world = await running(runPolicy={"backoffLimit": 1})
    world.kubelet.program = fails(1)
    await world.until(lambda: world.status["attempt"] == 2)
    await world.rest()

    assert world.status["failure"]["message"] == "it broke"
    assert world.pod_names() == []

    world.cluster.change(JOB, lambda job: job["spec"].update(image="mended:1"))
    await world.rest()

    assert world.phase == "Succeeded"
