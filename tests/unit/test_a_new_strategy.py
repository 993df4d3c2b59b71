"""A strategy that exists in this test alone works everywhere once it is registered: no other module knows of it.

Cases: validation, CRD, plan, `dtj new`, ranks in the status, `logs --rank`, report, and a life in which the operator
dies at each of its calls. Not yet: `dtj run`, because dtj-launch still has a list of strategies of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dtj.api.crd import custom_resource_definition
from dtj.api.job import Job, Manifest
from dtj.api.names import host_name
from dtj.api.strategies import RULES
from dtj.api.strategy import Role, Starter, StrategyRules
from dtj.api.validation import faults
from dtj.cli.job_text import Answers, job_text
from dtj.client.log_source import Selection
from dtj.client.views import LogQuery
from dtj.plan.job import plan_job
from dtj.plan.model import Plan, Replica
from dtj.plan.pods import headless_service, replica_pod, replicas
from dtj.plan.start import config_map
from dtj.plan.strategies import PLANS, register
from dtj.report.facts import facts_of
from dtj.report.run import Run, read_metrics
from dtj_trainer.contract import PodInfo
from tests.unit.support.fake_cluster import Kubelet
from tests.unit.support.jobs import job
from tests.unit.support.training_runs import content, line
from tests.unit.support.world import World

SPEC: dict[str, Any] = {"strategy": "Symmetric", "replicaSpecs": {"worker": {"replicas": 3}}}
RANKS = Role(
    required=True,
    decides=True,
    reports=True,
    option="workers",
    ranks=lambda _, index: range(index, index + 1),
)
SYMMETRIC = StrategyRules(
    name="Symmetric",
    description="equal processes, each told of the coordinator",
    roles={"worker": RANKS},
    starter=Starter(image="dtj-trainer-symmetric", module="symmetric"),
)


def symmetric_plan(job: Job) -> Plan:
    worker = job.spec.replica_specs.given()["worker"]
    pods = replicas(job, "worker", worker.replicas, max(job.status.attempt, 1))

    def pod(replica: Replica) -> Manifest:
        env = {
            "COORDINATOR": host_name(job.name, job.namespace, "worker", 0),
            "PROCESSES": str(worker.replicas),
            "PROCESS": str(replica.index),
        }
        info = PodInfo(
            role="worker", index=replica.index, slots=1, part="primary", restores=True, reads_data=True
        )
        return replica_pod(job, replica, worker, info, command=[*job.spec.command], env=env, extra={})

    return Plan(
        service=headless_service(job),
        config=config_map(job, {}),
        ssh_secret=None,
        stages=(pods,),
        pod=pod,
        decisive=(pods[0].name,),
        reporter=pods[0].name,
    )


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    register(SYMMETRIC, symmetric_plan)
    yield
    del RULES["Symmetric"], PLANS["Symmetric"]


def test_it_is_validated_and_named_in_the_crd() -> None:
    assert faults(job(**SPEC)) == []
    wrong = job(strategy="Symmetric", replicaSpecs={"worker": {}, "ps": {}})
    assert [str(fault) for fault in faults(wrong)] == [
        "spec.replicaSpecs.ps: strategy Symmetric has no ps: its only role is worker"
    ]
    schema = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    field = schema["properties"]["spec"]["properties"]["strategy"]
    assert "Symmetric" in field["enum"]
    assert "Symmetric: equal processes, each told of the coordinator." in field["description"]


def test_it_is_planned_written_shown_and_reported() -> None:
    given = job(**SPEC)
    assert [replica.name for replica in plan_job(given).replicas] == [f"mnist-worker-{n}" for n in range(3)]
    assert "  strategy: Symmetric\n" in job_text(Answers(strategy="Symmetric", workers=3))
    assert SYMMETRIC.ranks_of(given.spec, "worker", 2) == range(2, 3)
    logs = Selection(given, LogQuery(rank=1))
    assert [index for index in range(3) if logs.has_pod("worker", index)] == [1]
    assert logs.files(["worker-0", "worker-1", "worker-2"]) == ["worker-1"]
    rows = read_metrics(content([line("train", 1, 1, worldSize=3)])).rows
    assert facts_of(Run("run", rows, job={"spec": SPEC}))["workers"] == 3


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", range(1, 12))
async def test_all_pods_run_wherever_the_operator_dies(call: int, when: Any) -> None:
    world = World(**SPEC)
    world.kubelet = Kubelet(world.cluster, program=lambda pod, ran: None)
    world.cluster.die_at, world.cluster.die_when = call, when
    await world.until(lambda: world.phase == "Running")
    assert world.condition("Running")["message"] == "all 3 pods run"
    world.kubelet.program = lambda pod, ran: (0, "")
    await world.until(lambda: world.phase == "Succeeded")
    assert world.status["attempt"] == 1
