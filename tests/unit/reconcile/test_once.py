"""What is worked out once of a job, counted in the calls of a pass; and copies, which must not keep it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dtj.api.status import Conditions, ConditionType, JobStatus
from dtj.api.strategies import RULES
from tests.unit.support.jobs import job
from tests.unit.support.world import KEY, World
from tests.walks import Walk, walked

PS: dict[str, Any] = {
    "strategy": "ParameterServer",
    "replicaSpecs": {"worker": {"replicas": 2}, "ps": {"replicas": 1}},
}


async def one_pass(world: World) -> Walk:
    world.view.deliver()
    with walked() as walk:
        await world.reconciler.reconcile(KEY)
    return walk


@pytest.mark.parametrize("spec", [{}, PS], ids=["Horovod", "ParameterServer"])
async def test_the_rules_of_a_job_are_resolved_in_the_first_pass_alone(spec: dict[str, Any]) -> None:
    world = World(**spec)

    walks = [await one_pass(world), await one_pass(world)]

    assert [walk.functions["dtj/api/strategies:rules_of"] for walk in walks] == [1, 0]
    assert world.pod_names() != []


def test_a_copy_with_another_spec_has_the_rules_of_that_spec() -> None:
    first = job()
    other = first.spec.model_copy(update={"strategy": "TorchDistributed"})

    assert replace(first, spec=other).rules is RULES["TorchDistributed"]
    assert replace(first, status=JobStatus(attempt=2)).resolved is first.resolved


def test_a_copy_of_a_status_has_the_conditions_that_it_was_given() -> None:
    running = {
        "type": "Running",
        "status": "True",
        "reason": "JobRunning",
        "lastTransitionTime": "2026-11-21T12:00:00Z",
    }
    status = JobStatus.model_validate({"conditions": [running]})
    assert status.holds(ConditionType.RUNNING)

    ended = status.model_copy(update={"conditions": Conditions()})

    assert not ended.holds(ConditionType.RUNNING)
    assert ended.condition(ConditionType.RUNNING) is None
