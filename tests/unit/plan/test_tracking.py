"""`spec.tracking`: only the pod that uploads for rank 0 or the chief knows the server and its credentials."""

from __future__ import annotations

import pytest

from dtj.api.job import Manifest
from dtj.api.validation import faults
from dtj.plan.job import plan_job
from dtj.plan.pods import trainer_container
from tests.unit.support.jobs import job

MLFLOW = {"uri": "https://mlflow.example.com/team", "experiment": "digits", "secretName": "mlflow-token"}
VARIABLES = {"DTJ_TRACKING_URI": MLFLOW["uri"], "DTJ_TRACKING_EXPERIMENT": "digits"}
STORE = {"uri": "s3://training/jobs", "secretName": "s3-credentials"}


@pytest.mark.parametrize(
    ("spec", "writer"),
    [
        ({}, "worker-0"),
        ({"strategy": "TorchDistributed"}, "worker-0"),
        (
            {
                "strategy": "ParameterServer",
                "replicaSpecs": {"worker": {"replicas": 2}, "ps": {"replicas": 1}, "evaluator": {}},
            },
            "chief-0",
        ),
    ],
    ids=["Horovod", "TorchDistributed", "ParameterServer"],
)
def test_one_pod_writes_to_the_server(spec: Manifest, writer: str) -> None:
    made = job(tracking={"mlflow": MLFLOW}, artifacts=STORE, **spec)
    assert faults(made) == []

    for pod in plan_job(made).pods:
        container = trainer_container(pod)
        name = pod["metadata"]["name"].removeprefix("mnist-")
        given = {v["name"]: v["value"] for v in container["env"] if v["name"].startswith("DTJ_TRACKING")}
        secrets = [source["secretRef"]["name"] for source in container["envFrom"]]
        assert given == (VARIABLES if name == writer else {}), name
        assert secrets == ["s3-credentials", *(["mlflow-token"] if name == writer else [])], name


def test_the_workers_of_an_mpijob_share_the_credentials() -> None:
    made = job(tracking={"mlflow": MLFLOW}, horovod={"launcher": "MPIJob"})
    mpijob = plan_job(made).mpijob
    assert mpijob
    templates = {name: spec["template"] for name, spec in mpijob["spec"]["mpiReplicaSpecs"].items()}

    assert trainer_container(templates["Worker"])["envFrom"] == [{"secretRef": {"name": "mlflow-token"}}]
    assert "envFrom" not in trainer_container(templates["Launcher"])


def test_a_server_alone_is_enough() -> None:
    made = job(tracking={"mlflow": {"uri": "http://mlflow.ml.svc:5000"}}, strategy="TorchDistributed")
    first, second = map(trainer_container, plan_job(made).pods)

    assert {"name": "DTJ_TRACKING_URI", "value": "http://mlflow.ml.svc:5000"} in first["env"]
    assert not {"envFrom"} & (first.keys() | second.keys())
    assert "DTJ_TRACKING_EXPERIMENT" not in {variable["name"] for variable in first["env"]}


@pytest.mark.parametrize("name", ["MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"])
def test_an_experiment_given_twice(name: str) -> None:
    made = job(tracking={"mlflow": MLFLOW}, env=[{"name": name, "value": "7"}])

    assert [str(fault) for fault in faults(made)] == [
        f"spec.tracking.mlflow.experiment: given by {name} in spec.env already; give one of the two"
    ]


def test_the_jobs_own_variables_are_enough() -> None:
    own = [
        {"name": "MLFLOW_TRACKING_URI", "value": "http://mlflow"},
        {"name": "MLFLOW_EXPERIMENT_NAME", "value": "a"},
    ]

    assert faults(job(env=own)) == []
    assert faults(job(env=own[1:], tracking={"mlflow": {"uri": "http://mlflow"}})) == []
