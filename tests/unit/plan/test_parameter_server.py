"""The plan of a ParameterServer job.

* pods of each role, and their TF_CONFIG
* connections, GPUs and readiness
* which replica restarts with which
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from dtj.api.job import Job, Manifest
from dtj.api.shape import stored_shape
from dtj.api.validation import faults
from dtj.plan.job import plan_job
from dtj.plan.model import Plan
from dtj_trainer.contract import PodInfo
from tests.unit.support.jobs import job as any_job
from tests.unit.support.pods import kubelet_environment

ROLES: dict[str, Any] = {"worker": {"replicas": 2}, "ps": {"replicas": 2}, "evaluator": {}}


def job(**spec: Any) -> Job:
    made = any_job(**{"strategy": "ParameterServer", "replicaSpecs": ROLES} | spec)
    assert faults(made) == []
    return made


def planned(**spec: Any) -> Plan:
    return plan_job(job(**spec))


def container(pod: Manifest) -> Manifest:
    (found,) = pod["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def environment(plan: Plan, name: str) -> dict[str, str]:
    (pod,) = [pod for pod in plan.pods if pod["metadata"]["name"] == f"mnist-{name}"]
    return kubelet_environment(container(pod), plan.config)


def test_one_pod_a_replica_and_a_chief_without_an_entry() -> None:
    plan = planned()

    assert [pod["metadata"]["name"] for pod in plan.pods] == [
        "mnist-worker-0",
        "mnist-worker-1",
        "mnist-ps-0",
        "mnist-ps-1",
        "mnist-chief-0",
        "mnist-evaluator-0",
    ]
    assert [len(stage) for stage in plan.shape.stages] == [4, 2], "the chief comes when the servers answer"
    assert container(plan.pods[4])["resources"] == {"requests": {"cpu": "500m", "memory": "1Gi"}}
    assert plan.shape.decisive == ("mnist-chief-0",)
    assert (plan.shape.reporter, plan.shape.evaluator) == ("mnist-chief-0", "mnist-evaluator-0")
    assert plan.ssh_secret is None


def test_tf_config_is_that_of_a_tfjob() -> None:
    cluster = {
        "chief": ["mnist-chief-0.mnist.ml.svc:2222"],
        "worker": ["mnist-worker-0.mnist.ml.svc:2222", "mnist-worker-1.mnist.ml.svc:2222"],
        "ps": ["mnist-ps-0.mnist.ml.svc:2222", "mnist-ps-1.mnist.ml.svc:2222"],
    }
    plan = planned()

    for role, index in (("chief", 0), ("worker", 1), ("ps", 1), ("evaluator", 0)):
        assert json.loads(environment(plan, f"{role}-{index}")["TF_CONFIG"]) == {
            "cluster": cluster,
            "task": {"type": role, "index": index},
            "environment": "cloud",
        }


@pytest.mark.parametrize(
    "pod",
    [
        PodInfo(role="chief", index=0, part="primary", restores=True, reads_data=True),
        PodInfo(role="ps", index=1, restores=True),
        PodInfo(role="worker", index=1, reads_data=True),
        PodInfo(role="evaluator", index=0, part="evaluator", restores=True, reads_data=True),
    ],
    ids=lambda pod: pod.name,
)
def test_a_pod_is_told_what_it_is(pod: PodInfo) -> None:
    assert PodInfo.from_json(environment(planned(), pod.name)["DTJ_POD"]) == pod


@pytest.mark.parametrize(
    ("block", "updates"), [({}, "Asynchronous"), ({"updates": "Synchronous"}, "Synchronous")]
)
def test_the_program_is_told_how_to_update(block: dict[str, str], updates: str) -> None:
    plan = planned(parameterServer=block)

    assert environment(plan, "chief-0")["DTJ_UPDATES"] == updates
    assert environment(plan, "worker-1")["DTJ_UPDATES"] == updates


def test_connections_to_a_silent_replica_are_given_up_unless_the_job_says_otherwise() -> None:
    own = {"name": "TF_GRPC_DEFAULT_OPTIONS", "value": "grpc.keepalive_timeout_ms=60000"}
    for role in ("chief-0", "worker-1", "ps-1"):
        given = environment(planned(), role)["TF_GRPC_DEFAULT_OPTIONS"]
        assert "grpc.keepalive_timeout_ms=30000" in given.split(",")
        assert environment(planned(env=[own]), role)["TF_GRPC_DEFAULT_OPTIONS"] == own["value"]


def test_an_evaluator_of_0_replicas_is_none() -> None:
    plan = planned(replicaSpecs=ROLES | {"evaluator": {"replicas": 0}})

    assert len(plan.pods) == 5
    assert plan.shape.evaluator is None


def test_only_those_that_ask_see_gpus() -> None:
    asked = {"resources": {"limits": {"nvidia.com/gpu": 1}}}
    plan = planned(replicaSpecs=ROLES | {"worker": {"replicas": 1, "gpus": 2}, "chief": asked})

    for name, hidden in (("worker-0", False), ("chief-0", False), ("ps-0", True), ("evaluator-0", True)):
        assert (environment(plan, name).get("NVIDIA_VISIBLE_DEVICES") == "void") is hidden, name
    worker, ps, *_ = plan.pods
    assert container(worker)["resources"]["limits"] == {"nvidia.com/gpu": 2}
    assert "nvidia.com/gpu" not in {toleration["key"] for toleration in ps["spec"]["tolerations"]}


def test_every_replica_starts_through_the_start_script() -> None:
    own = {"template": {"spec": {"containers": [{"name": "trainer", "command": ["python", "eval.py"]}]}}}
    more = {"template": {"spec": {"containers": [{"name": "trainer", "args": ["--small"]}]}}}
    plan = planned(args=["--epochs=2"], replicaSpecs=ROLES | {"evaluator": own, "ps": more})
    commands = {pod["metadata"]["name"]: container(pod)["command"] for pod in plan.pods}

    start = ["/bin/sh", "/etc/dtj/start.sh"]
    assert commands["mnist-chief-0"] == [*start, "python", "train.py", "--epochs=2"]
    assert commands["mnist-evaluator-0"] == [*start, "python", "eval.py"]
    assert commands["mnist-ps-0"] == [*start, "python", "train.py", "--small"]
    assert not any("args" in container(pod) for pod in plan.pods)
    assert set(plan.config["data"]) == {"start.sh", "job.yaml", "tf_cluster.json"}


def test_servers_are_ready_when_they_answer() -> None:
    probed = {pod["metadata"]["name"]: "readinessProbe" in container(pod) for pod in planned().pods}

    assert probed == {
        "mnist-chief-0": False,
        "mnist-worker-0": True,
        "mnist-worker-1": True,
        "mnist-ps-0": True,
        "mnist-ps-1": True,
        "mnist-evaluator-0": False,
    }


def test_replicas_are_made_for_the_attempt_that_the_status_says() -> None:
    status = {"attempt": 3, "replicaAttempts": {"worker-1": 2, "ps-0": 3, "ps-1": 3, "chief-0": 3}}
    plan = plan_job(job(status=status))

    assert plan.shape.attempts == {
        "mnist-chief-0": 3,
        "mnist-worker-0": 1,
        "mnist-worker-1": 2,
        "mnist-ps-0": 3,
        "mnist-ps-1": 3,
        "mnist-evaluator-0": 1,
    }
    assert environment(plan, "worker-1")["DTJ_ATTEMPT"] == "2"


def test_what_starts_again_with_what() -> None:
    groups = planned().shape.restarts_with
    assert groups is not None

    state = {"mnist-ps-0", "mnist-ps-1", "mnist-chief-0"}
    assert groups["mnist-ps-1"] == groups["mnist-chief-0"] == state
    for name in ("mnist-worker-1", "mnist-evaluator-0"):
        assert groups[name] == {name}


# --- the forms of a TFJob without a chief ---------------------------------------------------------

FORMS: dict[str, dict[str, Any]] = {
    "no chief": {"chief": {"replicas": 0}, "worker": {"replicas": 2}, "ps": {}},
    "workers alone": {"chief": {"replicas": 0}, "worker": {"replicas": 2}},
    "master": {"master": {}, "worker": {"replicas": 2}, "ps": {}},
    "chief and workers": {"chief": {}, "worker": {"replicas": 2}},
}


def form(name: str, **roles: Any) -> Plan:
    return planned(replicaSpecs=FORMS[name] | roles)


@pytest.mark.parametrize(
    ("name", "cluster", "leader", "stages"),
    [
        ("no chief", {"worker": 2, "ps": 1}, "worker-0", [3]),
        ("workers alone", {"worker": 2}, "worker-0", [2]),
        ("master", {"master": 1, "worker": 2, "ps": 1}, "master-0", [3, 1]),
        ("chief and workers", {"chief": 1, "worker": 2}, "chief-0", [3]),
    ],
)
def test_the_leader_and_tf_config_of_each_form_are_a_tfjobs(
    name: str, cluster: dict[str, int], leader: str, stages: list[int]
) -> None:
    plan = form(name)

    assert plan.shape.decisive == (f"mnist-{leader}",)
    assert plan.shape.reporter == f"mnist-{leader}"
    assert [len(stage) for stage in plan.shape.stages] == stages
    role, _, index = leader.partition("-")
    config = json.loads(environment(plan, leader)["TF_CONFIG"])
    assert config["task"] == {"type": role, "index": int(index)}
    assert {role: len(hosts) for role, hosts in config["cluster"].items()} == cluster
    assert config["cluster"][role][0] == f"mnist-{leader}.mnist.ml.svc:2222"
    primary = [
        pod["metadata"]["name"]
        for pod in plan.pods
        if PodInfo.from_json(kubelet_environment(container(pod), plan.config)["DTJ_POD"]).part == "primary"
    ]
    assert primary == [f"mnist-{leader}"]


@pytest.mark.parametrize(
    ("name", "together"),
    [
        ("no chief", {"mnist-worker-0", "mnist-ps-0"}),
        ("workers alone", {"mnist-worker-0", "mnist-worker-1"}),
        ("master", {"mnist-master-0", "mnist-ps-0"}),
        ("chief and workers", {"mnist-chief-0", "mnist-worker-0", "mnist-worker-1"}),
    ],
)
def test_in_each_form_those_that_restart_together_restore_the_checkpoint(
    name: str, together: set[str]
) -> None:
    plan = form(name, evaluator={})

    assert plan.shape.restarts_with == {
        replica.name: together if replica.name in together else {replica.name}
        for replica in plan.shape.replicas
    }
    restoring = {
        pod["metadata"]["name"]
        for pod in plan.pods
        if PodInfo.from_json(kubelet_environment(container(pod), plan.config)["DTJ_POD"]).restores
    }
    assert restoring == together | {"mnist-evaluator-0"}


@pytest.mark.parametrize("name", ["no chief", "workers alone", "chief and workers"])
def test_where_no_pod_waits_for_the_servers_a_pod_is_ready_when_it_runs(name: str) -> None:
    assert not any("readinessProbe" in container(pod) for pod in form(name).pods)


def test_an_evaluator_comes_after_the_training_also_without_a_chief() -> None:
    plan = form("workers alone", evaluator={})

    assert [len(stage) for stage in plan.shape.stages] == [2, 1]
    assert plan.shape.evaluator == "mnist-evaluator-0"
    assert json.loads(environment(plan, "evaluator-0")["TF_CONFIG"])["cluster"].keys() == {"worker"}


def test_one_pod_alone_has_no_tf_config_as_in_a_tfjob() -> None:
    plan = planned(replicaSpecs={"chief": {"replicas": 0}, "worker": {}})

    assert not environment(plan, "worker-0").keys() & {"TF_CONFIG", "DTJ_TF_CLUSTER"}


def test_a_chief_of_0_replicas_needs_no_command() -> None:
    own = {"template": {"spec": {"containers": [{"name": "trainer", "command": ["python", "a.py"]}]}}}

    assert planned(command=[], replicaSpecs={"chief": {"replicas": 0}, "worker": own}).pods


@pytest.mark.parametrize(
    ("roles", "said"),
    [
        (
            {"worker": {}},
            "spec.replicaSpecs.ps: required by strategy ParameterServer, unless chief or master",
        ),
        ({"chief": {"replicas": 0}}, "spec.replicaSpecs.worker: required by strategy ParameterServer"),
        ({"chief": {}, "master": {}, "worker": {}}, "spec.replicaSpecs.master: takes the place of chief"),
    ],
)
def test_a_form_that_is_no_tfjobs_is_refused(roles: dict[str, Any], said: str) -> None:
    (fault,) = faults(any_job(strategy="ParameterServer", replicaSpecs=roles))

    assert str(fault).startswith(said)


@pytest.mark.parametrize("roles", [*FORMS.values(), {"chief": {"replicas": 0}, "master": {}, "worker": {}}])
def test_the_status_of_a_job_that_can_not_be_planned_any_more_follows_the_same_rules(
    roles: dict[str, Any],
) -> None:
    roles = roles | {"evaluator": {}}
    made = job(replicaSpecs=roles)
    plan = plan_job(made)
    counts = {role: {"desired": len(names)} for role, names in plan.shape.roles.items()}
    stored = stored_shape(job(replicaSpecs=roles, status={"attempt": 1, "replicaStatuses": counts}))

    assert stored is not None
    for field in ("decisive", "reporter", "restarts_with", "holds_state", "evaluator", "needed"):
        assert getattr(stored, field) == getattr(plan.shape, field), field
