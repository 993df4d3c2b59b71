"""A new strategy, which only this test defines: registration suffices, and no other module names the strategy.

* validation, CRD, plan and `dtj new`
* ranks in the status, `logs --rank` and the report
* `dtj run`
* a life in which the operator dies at each of its calls, and the state machine
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from dtj.api.crd import custom_resource_definition
from dtj.api.job import Job
from dtj.api.pod_template import program_of
from dtj.api.shape import Replica, shape_of
from dtj.api.strategies import RULES
from dtj.api.strategy import Role, Starter, StrategyRules
from dtj.api.validation import faults
from dtj.cli.main import app
from dtj.client.logs import LogSelection
from dtj.client.objects import LogQuery
from dtj.plan.config_map import config_map
from dtj.plan.job import PLANS, plan_job, register
from dtj.plan.model import Plan
from dtj.plan.pods import headless_service, ranks_info
from dtj.plan.recipe import Recipe, address
from dtj.report.run import Run, read_metrics
from dtj.report.summary import summarise
from dtj.views.new_job_file import Answers, job_text
from dtj_trainer import contract
from tests.unit.support import job_machine
from tests.unit.support.jobs import job, manifest
from tests.unit.support.kubelet import Kubelet
from tests.unit.support.training_runs import content, line
from tests.unit.support.world import World

PORT = 29500
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
    worker, shape = job.spec.worker, shape_of(job)

    def recipe(replica: Replica) -> Recipe:
        return Recipe(
            spec=worker,
            info=ranks_info(job, "worker", replica.index, pods=worker.replicas),
            program=program_of(job.spec, worker),
            environment={
                contract.ENV_WORLD_SIZE: str(worker.replicas),
                "RANK": str(replica.index),
                "COORDINATOR": address(shape.reporter, PORT),
                "PROCESSES": str(worker.replicas),
            },
            ports={"coordinator": PORT},
        )

    return Plan(shape=shape, service=headless_service(job), config=config_map(job, {}), recipe=recipe)


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
    assert [replica.name for replica in plan_job(given).shape.replicas] == [
        f"mnist-worker-{n}" for n in range(3)
    ]
    assert "  strategy: Symmetric\n" in job_text(Answers(strategy="Symmetric", workers=3))
    assert SYMMETRIC.ranks_of(given.spec, "worker", 2) == range(2, 3)
    logs = LogSelection(given, LogQuery(rank=1))
    assert [index for index in range(3) if logs.has_pod("worker", index)] == [1]
    assert logs.files(["worker-0", "worker-1", "worker-2"]) == ["worker-1"]
    rows = read_metrics(content([line("train", 1, 1, worldSize=3)])).rows
    assert summarise(Run("run", rows, job={"spec": SPEC})).facts["workers"] == 3


PROGRAM = """
import contextlib, os, pathlib, socket, time
host, port = os.environ["COORDINATOR"].split(":")
own = int(os.environ["RANK"])
if own == 0:
    listener = socket.create_server((host, int(port)))
    greetings = set()
    while len(greetings) < int(os.environ["PROCESSES"]) - 1:  # A readiness probe says nothing.
        greetings |= {peer.recv(9).decode() for peer, _ in [listener.accept()]} - {""}
    print("heard of", *sorted(greetings))
    pathlib.Path(os.environ["DTJ_ROOT"], "model", "model.txt").write_text("trained")
else:
    while True:
        with contextlib.suppress(OSError), socket.create_connection((host, port)) as peer:
            peer.send(b"process %d" % own)
            break
        time.sleep(0.05)
"""


def test_it_runs_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("DTJ_HOME", str(tmp_path))
    file = tmp_path / "job.yaml"
    command = [sys.executable, "-c", PROGRAM]
    file.write_text(yaml.safe_dump(manifest(**SPEC, command=command)))
    result = CliRunner().invoke(app, ["run", str(file)])
    assert result.exit_code == 0, result.output
    assert "heard of process 1 process 2" in result.output
    assert "Succeeded" in result.output
    assert caplog.text == "", "a pass broke off"


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


class Jobs(job_machine.Jobs):
    """The strategy's jobs come and go under one name."""

    specs = job_machine.small_specs().map(lambda spec: {**spec, **SPEC})


# A busy machine takes longer than a test may.
TestJobs = pytest.mark.timeout(0 if job_machine.MORE_EXAMPLES else 600)(Jobs.TestCase)
TestJobs.settings = job_machine.settings_of(30)
