"""Jobs whose manifest does not match the schema: the fields that are read, and the reaction of the operator.

- read: run policy field by field, strategy, status, faults; any JSON as spec
- never taken up: Failed, under the strategy that can be read
- taken up: cleanPodPolicy and TTL hold; pods stay where not even the strategy can be read
"""

from __future__ import annotations

from typing import Any

import pytest

from dtj.api.identity import KIND
from dtj.api.job import Job
from dtj.api.parameter_server import PARAMETER_SERVER
from dtj.api.spec import CleanPodPolicy, RunPolicy
from dtj.api.stored_job import UnreadableJob, read_stored_job
from tests.unit.support.jobs import manifest
from tests.unit.support.measured import MeasuredWorld
from tests.unit.support.programs import endless
from tests.unit.support.world import KEY, World

JOB = (KIND, *KEY)
SERVERS: dict[str, Any] = {
    "strategy": "ParameterServer",
    "replicaSpecs": {"worker": {"replicas": 2}, "ps": {"replicas": 1}},
}


def stored(**spec: Any) -> UnreadableJob:
    """An unreadable job as the API server has stored it."""
    job, faults = read_stored_job(manifest(**spec))
    assert isinstance(job, UnreadableJob)
    assert job.faults == faults
    return job


def test_a_job_that_can_be_read_is_a_job() -> None:
    job, faults = read_stored_job(manifest())

    assert isinstance(job, Job)
    assert faults == []


def test_the_run_policy_is_read_field_by_field() -> None:
    policy = {"cleanPodPolicy": "None", "ttlSecondsAfterFinished": 60, "backoffLimit": "many", "newField": 1}

    job = stored(**SERVERS, runPolicy=policy)

    assert job.run_policy == RunPolicy(clean_pod_policy=CleanPodPolicy.NONE, ttl_seconds_after_finished=60)
    assert job.rules is PARAMETER_SERVER
    assert [fault.field for fault in job.faults] == ["spec.runPolicy.backoffLimit", "spec.runPolicy.newField"]


@pytest.mark.parametrize("strategy", ["Unheard", 1, None, ["Horovod"], {}])
def test_a_strategy_that_is_not_registered_has_no_rules(strategy: Any) -> None:
    assert stored(strategy=strategy).rules is None


@pytest.mark.parametrize("spec", [None, [], "text", 5, {}, {"runPolicy": []}, {"runPolicy": "x"}])
def test_any_spec_can_be_stored(spec: Any) -> None:
    job, _ = read_stored_job(manifest() | {"spec": spec, "status": {"attempt": 3}})

    assert isinstance(job, UnreadableJob)
    assert (job.run_policy, job.rules, job.status.attempt) == (RunPolicy(), None, 3)


@pytest.mark.parametrize(
    ("spec", "label"),
    [({**SERVERS, "newField": 1}, "ParameterServer"), ({"strategy": "Unheard"}, "unknown")],
)
async def test_a_job_without_pods_fails_under_the_strategy_that_can_be_read(spec: Any, label: str) -> None:
    world = MeasuredWorld(**spec)

    await world.rest()

    assert (world.phase, world.pod_names()) == ("Failed", [])
    assert world.condition("Failed")["reason"] == "ValidationFailed"
    ended = {"result": "failed", "reason": "ValidationFailed", "strategy": label}
    assert world.value("dtj_jobs_finished_total", **ended) == 1.0


async def unreadable(change: dict[str, Any], **spec: Any) -> World:
    """A job that runs and then becomes unreadable."""
    world = World(**spec)
    world.kubelet.program = endless
    await world.until(lambda: world.phase == "Running")
    world.cluster.change(JOB, lambda job: job["spec"].update(change))
    await world.step()
    assert world.condition("Created")["reason"] == "SpecInvalid"
    return world


async def test_its_pods_and_the_job_are_cleaned_up_as_its_run_policy_says() -> None:
    policy = {"cleanPodPolicy": "None", "ttlSecondsAfterFinished": 60}
    world = await unreadable({"newField": 1}, **SERVERS, runPolicy=policy)
    names = world.pod_names()
    world.kubelet.program = lambda pod, _: (
        (0, "") if pod["metadata"]["labels"]["dtj.dev/role"] == "chief" else None
    )

    await world.until(lambda: world.phase == "Succeeded")
    for _ in range(5):
        await world.step()
    assert world.pod_names() == names

    await world.rest()
    assert world.cluster.of_kind(KIND) == []


async def test_the_pods_stay_where_the_strategy_can_not_be_read() -> None:
    world = await unreadable({"strategy": "Unheard"})
    names = world.pod_names()

    await world.rest()

    assert (world.phase, world.pod_names()) == ("Running", names)
