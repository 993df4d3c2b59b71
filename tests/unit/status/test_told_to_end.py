"""Pods that the cluster ends (drain, preemption, spot notice): whatever their exit, no program has failed.

* drains and preemptions of each role
* exit codes after SIGTERM
* failures beside a silent node
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dtj.api.job import Manifest
from dtj.status.failure import attempt_loss
from dtj.status.force_deletion import pods_to_force_delete
from dtj.status.pods import PodSet
from dtj.status.times import written_time
from tests.unit.support.pods import LAUNCHER, WORKER_0, WORKER_1, Life, at, condition, ended, running, views

TOLD, GRACE = 100, 120
CRASHED = {"class": "ApplicationError", "message": "rank 1: ValueError: no", "rank": 1, "exitCode": 1}
STOPPED = {"class": "Signal", "message": "told to stop (SIGTERM)", "exitCode": 143, "signal": 15}
CUT_OFF = {"class": "ConnectionLost", "message": "connection lost to mnist-worker-0", "exitCode": 1}
CHIEF, PS, EVALUATOR = "mnist-chief-0", "mnist-ps-0", "mnist-evaluator-0"
HOROVOD: dict[str, Any] = {}
PARAMETER_SERVER: dict[str, Any] = {
    "strategy": "ParameterServer",
    "replicaSpecs": {"worker": {"replicas": 2}, "ps": {}, "evaluator": {}},
}
TORCH: dict[str, Any] = {"strategy": "TorchDistributed"}
PODS = {
    "Horovod": (WORKER_0, WORKER_1, LAUNCHER),
    "ParameterServer": (CHIEF, PS, WORKER_0, WORKER_1, EVALUATOR),
    "TorchDistributed": (WORKER_0, WORKER_1),
}
ROLES = pytest.mark.parametrize(
    ("spec", "name"),
    [
        (HOROVOD, WORKER_0),
        (HOROVOD, LAUNCHER),
        (PARAMETER_SERVER, WORKER_0),
        (PARAMETER_SERVER, PS),
        (PARAMETER_SERVER, CHIEF),
        (TORCH, WORKER_0),
        (TORCH, WORKER_1),
    ],
    ids=["Horovod-worker", "Horovod-launcher", "PS-worker", "PS-ps", "PS-chief", "Torch-0", "Torch-1"],
)


def told(pod: Manifest) -> Manifest:
    by = written_time(at(TOLD + GRACE))
    pod["metadata"] |= {"deletionTimestamp": by, "deletionGracePeriodSeconds": GRACE}
    return pod


def target(pod: Manifest, reason: str = "EvictionByEvictionAPI") -> Manifest:
    pod["status"]["conditions"].append({"type": "DisruptionTarget", "status": "True", "reason": reason})
    return pod


def by_kubelet(pod: Manifest, reason: str) -> Manifest:
    pod["status"] |= {"phase": "Failed", "reason": reason, "message": "node is shutting down"}
    return pod


FORMS: dict[str, Callable[[str], Manifest]] = {
    "runs": lambda name: told(running(name)),
    "not ready": lambda name: told(running(name, ready=False)),
    "code 0": lambda name: told(ended(name, 0, seconds=TOLD + 3)),
    "code 143": lambda name: told(ended(name, 143, STOPPED, seconds=TOLD + 3)),
    "code 143, unsaid": lambda name: told(ended(name, 143, seconds=TOLD + 3)),
    "code 137": lambda name: told(ended(name, 137, seconds=TOLD + GRACE)),
    "code 1": lambda name: told(ended(name, 1, "killed", seconds=TOLD + 3)),
    "code 1, said": lambda name: told(ended(name, 1, CRASHED, seconds=TOLD + 3)),
    "out of memory while it saves": lambda name: told(ended(name, 137, reason="OOMKilled", seconds=TOLD + 9)),
    "a clock behind": lambda name: told(ended(name, 1, CRASHED, seconds=TOLD - 3)),
    "eviction": lambda name: told(target(running(name))),
    "eviction, code 1": lambda name: told(target(ended(name, 1, CRASHED, seconds=TOLD + 3))),
    "preemption": lambda name: told(target(ended(name, 143, seconds=TOLD + 3), "PreemptionByScheduler")),
    "taint": lambda name: told(target(running(name), "DeletionByTaintManager")),
    "collected": lambda name: target(ended(name, 137), "DeletionByPodGC"),
    "shutdown": lambda name: by_kubelet(ended(name, 143, STOPPED), "Shutdown"),
    "shutdown, code 0": lambda name: by_kubelet(ended(name, 0), "Terminated"),
    "shutdown, code 1": lambda name: by_kubelet(ended(name, 1, CRASHED), "NodeShutdown"),
    "preempted by the kubelet": lambda name: by_kubelet(ended(name, 1), "Preempting"),
    "evicted": lambda name: by_kubelet(ended(name, 1), "Evicted"),
}


def ran(spec: dict[str, Any]) -> Life:
    life = Life(runPolicy={"backoffLimit": 0}, **spec)
    assert life.see(*others(life))["phase"] == "Running"
    return life


def others(life: Life, *without: str) -> list[Manifest]:
    names = PODS[life.job.spec.strategy]
    return [running(name) for name in names if name not in without]


@ROLES
@pytest.mark.parametrize("form", FORMS)
def test_a_pod_told_to_end_is_the_infrastructures_loss_once(
    form: str, spec: dict[str, Any], name: str
) -> None:
    life = ran(spec)

    status = life.see(FORMS[form](name), *others(life, name), seconds=TOLD + GRACE)
    assert status["phase"] == "Restarting"
    assert status["restarts"] == {"application": 0, "infrastructure": 1}
    assert status["failure"]["pod"] == name
    for later in (FORMS["code 1, said"](name), FORMS["code 0"](name)):
        life.see(later, *others(life, name), seconds=TOLD + GRACE)
    status = life.see(*others(life, name), seconds=TOLD + GRACE + 1)

    assert status["restarts"] == {"application": 0, "infrastructure": 1}
    assert status["attempt"] == 2


@pytest.mark.parametrize("form", FORMS)
def test_an_evaluator_told_to_end_costs_the_training_nothing(form: str) -> None:
    life = ran(PARAMETER_SERVER)

    status = life.see(FORMS[form](EVALUATOR), *others(life, EVALUATOR), seconds=TOLD + GRACE)

    assert status["phase"] == "Running"
    assert status["restarts"] in (
        {"application": 0, "infrastructure": 0},  # one that came to its end is not needed again
        {"application": 0, "infrastructure": 0, "evaluator": 1},
    )


@ROLES
def test_a_program_that_failed_before_it_was_told_to_end_has_failed(spec: dict[str, Any], name: str) -> None:
    life = ran(spec)

    status = life.see(told(ended(name, 1, CRASHED, seconds=TOLD - 30)), *others(life, name), seconds=TOLD)

    assert status["phase"] == "Failed"
    assert status["failure"]["class"] == "ApplicationError"
    assert condition(status, "Failed")["reason"] == "BackoffLimitExceeded"


def test_a_launcher_that_fails_for_a_worker_told_to_end_has_not_failed() -> None:
    for said in (CUT_OFF, CRASHED, STOPPED):
        life = ran(HOROVOD)
        status = life.see(
            told(running(WORKER_0)), running(WORKER_1), ended(LAUNCHER, 1, said, seconds=TOLD + 1)
        )
        assert status["restarts"] == {"application": 0, "infrastructure": 1}
        assert status["failure"]["pod"] == WORKER_0


@pytest.mark.parametrize(("spec", "name"), [(HOROVOD, LAUNCHER), (PARAMETER_SERVER, CHIEF)])
@pytest.mark.parametrize("form", ["code 0", "shutdown, code 0"])
def test_code_0_of_a_program_told_to_stop_is_no_success_of_the_job(
    form: str, spec: dict[str, Any], name: str
) -> None:
    life = ran(spec)

    status = life.see(FORMS[form](name), *others(life, name), seconds=TOLD + 5)

    assert status["phase"] == "Restarting"


@pytest.mark.parametrize(
    "end",
    [
        told(ended(LAUNCHER, 0, {"exitCode": 0}, seconds=TOLD + 1)),
        told(ended(LAUNCHER, 0, seconds=TOLD - 30)),
        by_kubelet(ended(LAUNCHER, 0, {"exitCode": 0}), "Terminated"),
    ],
    ids=["dtj-launch knows", "before it was told", "shutdown, dtj-launch knows"],
)
def test_a_training_that_came_to_its_end_has_succeeded_though_its_pod_was_told_to_end(end: Manifest) -> None:
    life = ran(HOROVOD)

    assert life.see(end, running(WORKER_0), running(WORKER_1), seconds=TOLD + 5)["phase"] == "Succeeded"


# --- nodes that are known to be silent ----------------------------------------------------------------


def silent(name: str) -> Manifest:
    pod = running(name, ready=False)
    pod["status"]["conditions"].append({"type": "ContainersReady", "status": "True"})
    return pod


@pytest.mark.parametrize(
    ("said", "infrastructure"),
    [
        (CUT_OFF, True),
        ({"class": "PeersUnreachable", "message": "no answer"}, True),
        (CRASHED, True),
        ({"class": "Signal", "message": "SIGABRT", "signal": 6}, True),
        ({"class": "OOMKilled", "message": "out of memory"}, False),
        ({"class": "CommandNotFound", "message": "no such file"}, False),
    ],
    ids=lambda value: value["class"] if isinstance(value, dict) else "",
)
def test_what_fails_beside_a_silent_node_may_have_failed_for_it(said: Manifest, infrastructure: bool) -> None:
    found = attempt_loss(1, views(ended(LAUNCHER, 1, said), silent(WORKER_0), running(WORKER_1)), ())

    assert found is not None
    assert found.infrastructure is infrastructure
    assert found.settle == 0


def test_a_probe_that_fails_alone_excuses_no_error_of_the_program() -> None:
    found = attempt_loss(1, views(ended(LAUNCHER, 1, CRASHED), running(WORKER_0, ready=False)), ())

    assert found is not None
    assert not found.infrastructure


@pytest.mark.parametrize(
    ("by", "seconds"), [("3170859-12-01T00:00:00Z", 10**14), ("2026-11-21T12:00:00Z", 10**14)]
)
def test_a_grace_period_beyond_all_times_breaks_no_pass(by: str, seconds: int) -> None:
    pod = ended(WORKER_0, 143, STOPPED, seconds=TOLD + 3)
    pod["metadata"] |= {"deletionTimestamp": by, "deletionGracePeriodSeconds": seconds}
    (view,) = views(pod)
    assert view.deleting
    assert view.told_to_end is None
    assert pods_to_force_delete([view], at(TOLD)) == []
    assert attempt_loss(1, PodSet([view]), ()) is not None
