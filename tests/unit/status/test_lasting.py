"""A job that lacks a Python module fails without retries if every retry would lack the module too."""

from __future__ import annotations

from typing import Any

import pytest

from dtj.api.job import Manifest
from dtj.api.status import ArtifactsStatus, Failure, ProgressStatus
from dtj.status.failure_policy import is_lasting
from tests.unit.support.jobs import job
from tests.unit.support.pods import LAUNCHER, WORKER_0, WORKER_1, Life, condition, ended, healthy, running

PYTHON = {"command": ["python", "train.py"]}
SHELL = {"command": ["bash", "-c", "pip install torhc; python train.py"]}


def missing(module: str = "torhc") -> Manifest:
    return {
        "class": "ModuleNotFound",
        "message": f"the program did not find a module of Python: No module named '{module}'",
        "rank": 1,
        "exitCode": 1,
    }


def lost(life: Life, said: Manifest, attempt: int = 1, **observed: Any) -> Manifest:
    life.see(*healthy(attempt), **observed)
    pods = [running(WORKER_0, attempt=attempt), running(WORKER_1, attempt=attempt)]
    return life.see(*pods, ended(LAUNCHER, 1, said, attempt=attempt))


def with_template(**spec: Any) -> Manifest:
    return {**PYTHON, "replicaSpecs": {"worker": {"replicas": 2, "template": {"spec": spec}}}}


def test_a_job_whose_code_can_not_be_used_ends_at_once() -> None:
    life = Life(runPolicy={"backoffLimit": 3})
    status = lost(life, {**missing(), "class": "CodeUnusable", "message": "another digest"})

    assert status["phase"] == "Failed"
    assert status["failure"]["class"] == condition(status, "Failed")["reason"] == "CodeUnusable"
    assert status["restarts"] == {"application": 0, "infrastructure": 0}


@pytest.mark.parametrize(
    "spec",
    [
        PYTHON,
        {"command": ["/opt/venv/bin/python3.11", "-m", "train"]},
        with_template(volumes=[{"name": "c", "configMap": {"name": "c"}}, {"name": "e", "emptyDir": {}}]),
    ],
)
def test_where_modules_come_from_the_image_alone_the_job_ends_at_once(spec: Manifest) -> None:
    status = lost(Life(**spec), missing())

    assert status["phase"] == "Failed"
    assert status["restarts"] == {"application": 0, "infrastructure": 0}
    assert status["failure"]["class"] == condition(status, "Failed")["reason"] == "ModuleNotFound"
    assert condition(status, "Failed")["message"] == (
        "attempt 1: rank 1 in mnist-launcher-0: the program did not find a module of Python: No module named "
        "'torhc'; a retry would fail too: add the module to the image, or, for dtj run, to this Python environment"
    )


@pytest.mark.parametrize(
    "spec",
    [
        SHELL,
        {"command": ["/app/run"]},
        with_template(initContainers=[{"name": "pip", "image": "pip"}]),
        with_template(volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "modules"}}]),
    ],
)
def test_where_modules_may_come_from_elsewhere_the_next_attempt_decides(spec: Manifest) -> None:
    life = Life(**spec)
    assert lost(life, missing())["phase"] == "Restarting"
    assert lost(life, missing("another"), attempt=2)["phase"] == "Restarting"

    status = lost(life, missing("another"), attempt=3)

    assert (status["phase"], condition(status, "Failed")["reason"]) == ("Failed", "ModuleNotFound")


@pytest.mark.parametrize(("chiefs", "lasting"), [(0, True), (1, False)])
def test_a_chief_without_pods_brings_no_modules(chiefs: int, lasting: bool) -> None:
    volumes = {
        "template": {"spec": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "m"}}]}}
    }
    roles = {"chief": {"replicas": chiefs, **volumes}, "worker": {"replicas": 2}, "ps": {}}
    failure = Failure(failure_class="ModuleNotFound", message="No module named 'torhc'")
    servers = job(**PYTHON, strategy="ParameterServer", replicaSpecs=roles)
    assert is_lasting(servers, failure, None, None) == lasting


@pytest.mark.parametrize("command", [{"python": 1}, "python", [["python"]], [7]])
def test_a_job_that_was_edited_into_nonsense_is_no_fault_of_the_operator(command: Any) -> None:
    template = {"spec": {"containers": [{"name": "trainer", "command": command}], "volumes": command}}
    edited = job(**PYTHON, replicaSpecs={"worker": {"replicas": 2, "template": template}})
    failure = Failure(failure_class="ModuleNotFound", message="No module named 'torhc'")
    assert not is_lasting(edited, failure, None, None)


@pytest.mark.parametrize(
    "seen",
    [
        {"progress": ProgressStatus(step=5)},
        {"artifacts": ArtifactsStatus.model_validate({"checkpoint": {"step": 5}})},
    ],
)
def test_a_job_that_has_come_further_is_retried(seen: Any) -> None:
    life = Life(**PYTHON, artifacts={"uri": "s3://bucket/jobs"})
    assert lost(life, missing(), **seen)["phase"] == "Restarting"
    assert lost(life, missing(), attempt=2)["phase"] == "Restarting"


def test_other_failures_are_retried() -> None:
    said = {**missing(), "class": "ApplicationError"}
    assert lost(Life(**PYTHON), said)["phase"] == "Restarting"
