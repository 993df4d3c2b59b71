"""Size limits of a job: a job that can never run is refused with the figure and the limit."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from dtj.api.job import Job
from dtj.api.validation import CONFIG_BYTES, VARIABLE_BYTES, faults, peer_list_bytes
from dtj.plan.job import plan_job
from tests.unit.support.jobs import job
from tests.unit.support.pods import kubelet_environment
from tests.unit.support.world import World


def servers(workers: int, ps: int, **spec: Any) -> dict[str, Any]:
    roles = {"worker": {"replicas": workers}, "ps": {"replicas": ps}, "evaluator": {}}
    return {"strategy": "ParameterServer", "replicaSpecs": roles} | spec


def longest_variable(given: Job) -> int:
    """Of TF_CONFIG, as a kubelet gives it."""
    plan = plan_job(given)
    ends = (
        plan.shape.replicas[0],
        plan.shape.replicas[-1],
        *[r for r in plan.shape.replicas if r.index == 10],
    )
    values = (
        kubelet_environment(plan.pod(r)["spec"]["containers"][0], plan.config)["TF_CONFIG"] for r in ends
    )
    return max(len(f"TF_CONFIG={value}") + 1 for value in values)


@pytest.mark.parametrize(("workers", "ps"), [(1, 1), (9, 10), (11, 100), (1234, 99)])
def test_the_length_of_tf_config_is_known_before_it_is_made(workers: int, ps: int) -> None:
    given = job(**servers(workers, ps))

    counted = peer_list_bytes(given)

    assert 0 <= counted - longest_variable(given) <= 16


@pytest.mark.parametrize("count", [1, 10, 11, 100, 2345])
def test_the_length_of_a_hostfile_is_known_before_it_is_made(count: int) -> None:
    given = job(replicaSpecs={"worker": {"replicas": count, "gpus": 8}})

    made = plan_job(given).config["data"]["hostfile"]

    assert peer_list_bytes(given) == len(made)


def test_a_tf_config_that_no_process_takes_is_refused_with_figure_and_limit() -> None:
    (fault,) = faults(job(**servers(3000, 3000)))

    assert fault.field == "spec.replicaSpecs.worker.replicas"
    assert f"{VARIABLE_BYTES:,} bytes" in fault.message
    assert "TF_CONFIG, which names every replica, would have 2" in fault.message


def test_the_largest_parameter_servers_fit_a_process_and_one_more_do_not() -> None:
    least, most = 1, 10_000
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (least, middle) if faults(job(**servers(middle, 1))) else (middle, most)

    assert longest_variable(job(**servers(least, 1))) <= VARIABLE_BYTES
    assert longest_variable(job(**servers(least, 1))) > VARIABLE_BYTES - 100
    assert least > 2_000


def test_ten_thousand_workers_of_horovod_are_taken() -> None:
    given = job(replicaSpecs={"worker": {"replicas": 10_000}})

    assert faults(given) == []
    assert sum(map(len, plan_job(given).config["data"].values())) < CONFIG_BYTES


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"env": [{"name": f"N{number}", "value": "x" * 32_000} for number in range(40)]}, "spec"),
        (
            {"replicaSpecs": {"worker": {"replicas": 9_999}}, "name": "n" * 40},
            "spec.replicaSpecs.worker.replicas",
        ),
    ],
    ids=["a long spec", "long names"],
)
def test_a_config_map_that_is_too_large_is_refused_with_figure_and_limit(spec: Any, field: str) -> None:
    given = job(**{key: value for key, value in spec.items() if key != "name"})
    if "name" in spec:
        given = replace(given, name=spec["name"], namespace="a" * 63)

    (fault,) = faults(given)

    assert fault.field == field
    assert f"and the maximum is {CONFIG_BYTES:,}" in fault.message


async def test_without_the_webhook_such_a_job_fails_in_the_same_words_and_makes_nothing() -> None:
    world = World(**servers(9_000, 9_000))

    await world.rest()

    assert world.phase == "Failed"
    assert world.status["failure"]["class"] == "ValidationFailed"
    assert "TF_CONFIG, which names every replica, would have" in world.status["failure"]["message"]
    assert world.pod_names() == []
    assert len(json.dumps(world.status)) < 4_096
