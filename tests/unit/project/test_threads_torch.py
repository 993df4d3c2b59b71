"""Entries of docs/threads-torch.md that have no other place: what the plan gives to the pods of TorchDistributed.

* ranks in the order of workers, without a rendezvous
* the address and the port of each attempt
* pods that are made together
"""

from __future__ import annotations

from typing import Any

import pytest

from dtj.api.job import Manifest
from dtj.plan.job import plan_job
from dtj.plan.model import Plan
from dtj.plan.pods import trainer_container
from tests.unit.support.jobs import job

COMMANDS = {"dtj": ["python", "train.py"], "torchrun": ["torchrun", "train.py"]}
"""Programs whose ranks dtj starts, and that start ranks themselves."""
by_both = pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)


def plan(workers: int = 2, attempt: int = 1, **spec: Any) -> Plan:
    given: Manifest = {"strategy": "TorchDistributed", "replicaSpecs": {"worker": {"replicas": workers}}}
    return plan_job(job(status={"attempt": attempt}, **{**given, **spec}))


def environments(planned: Plan) -> list[dict[str, str]]:
    """The variables of each worker's program, by index."""
    return [
        {variable["name"]: variable.get("value", "") for variable in trainer_container(pod)["env"]}
        for pod in planned.pods
    ]


def test_ranks_are_static_and_in_the_order_of_workers() -> None:
    spec = {"torch": {"procsPerWorker": 2}}
    by_dtj = environments(plan(12, **spec))
    by_torchrun = environments(plan(12, command=COMMANDS["torchrun"], **spec))

    assert [env["RANK"] for env in by_dtj] == [str(first) for first in range(0, 24, 2)]
    assert [env["PET_NODE_RANK"] for env in by_torchrun] == [str(index) for index in range(12)]
    assert {env["PET_RDZV_BACKEND"] for env in by_torchrun} == {"static"}
    for env in (*by_dtj, *by_torchrun):
        assert env["WORLD_SIZE"] == "24"
        assert "TORCHELASTIC_USE_AGENT_STORE" not in env, "rank 0 would serve no store"


@by_both
def test_each_attempt_has_the_same_address_and_another_port(command: list[str]) -> None:
    attempts = [environments(plan(attempt=number, command=command)) for number in (1, 2, 3, 101)]
    addresses = [{(env["MASTER_ADDR"], env["MASTER_PORT"]) for env in each} for each in attempts]

    master = "mnist-worker-0.mnist.ml.svc"
    assert addresses == [{(master, port)} for port in ("29501", "29502", "29503", "29501")]


@by_both
def test_the_master_is_a_name_that_the_jobs_service_gives(command: list[str]) -> None:
    planned = plan(command=command)
    first, service = planned.pods[0], planned.service["metadata"]["name"]

    assert first["spec"]["subdomain"] == service
    (address,) = {env["MASTER_ADDR"] for env in environments(planned)}
    assert address.split(".")[:3] == [first["spec"]["hostname"], service, "ml"]


def test_all_pods_are_made_together() -> None:
    planned = plan(3)

    assert [[replica.name for replica in stage] for stage in planned.shape.stages] == [
        ["mnist-worker-0", "mnist-worker-1", "mnist-worker-2"]
    ]
