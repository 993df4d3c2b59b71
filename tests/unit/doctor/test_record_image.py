"""The check of the image of the record pods."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dtj.api.job import Manifest
from dtj.doctor.findings import ClusterFindings, Unread
from dtj.doctor.probe import record_check, record_image, record_probe
from dtj.plan.tensorboard import DEFAULT_IMAGE
from tests.unit.support import jobs
from tests.unit.support.doctor import deployment
from tests.unit.support.pod_security import restricted_faults

FOUND = ClusterFindings(
    server="", version={}, namespace="ml", served=True, crd=None, operators=[deployment()], allowed={}
)


@pytest.mark.parametrize(
    ("args", "image"),
    [
        (None, DEFAULT_IMAGE),
        (["--leader-elect", "--tensorboard-image=registry:5000/tb:1"], "registry:5000/tb:1"),
        (["--record-image", "own@sha256:1", "--tensorboard-image", "tb"], "own@sha256:1"),
        (["--tensorboard-image=tb", "--record-image=none"], None),
        (["--record-image"], None),
    ],
)
def test_the_operator_s_flags_name_the_image(args: list[str] | None, image: str | None) -> None:
    assert record_image(replace(FOUND, operators=[deployment(args=args)])) == image


@pytest.mark.parametrize(
    "operators", [Unread("no"), [], [deployment(), deployment()], [deployment(args=["--namespace=other"])]]
)
def test_an_operator_that_is_not_known_names_no_image(operators: Any) -> None:
    assert record_image(replace(FOUND, operators=operators)) is None


def probe() -> Manifest:
    template = {"spec": {"imagePullSecrets": [{"name": "registry"}], "tolerations": [{"key": "gpu"}]}}
    worker = {"replicas": 2, "template": template}
    job = jobs.job(
        artifacts={"uri": "s3://training/jobs", "secretName": "s3"}, replicaSpecs={"worker": worker}
    )
    return record_probe(job, "tb:1")


def test_the_pod_is_as_a_record_pod_and_passes_restricted() -> None:
    pod = probe()
    assert [*restricted_faults(pod)] == []
    assert pod["metadata"]["name"].startswith("dtj-doctor-record-")
    assert pod["metadata"]["labels"] == {"app.kubernetes.io/managed-by": "dtj-doctor"}
    assert pod["spec"]["imagePullSecrets"] == [{"name": "registry"}]
    assert {"key": "gpu"} in pod["spec"]["tolerations"]
    (container,) = pod["spec"]["containers"]
    assert container["image"] == "tb:1"
    assert container["command"][-1] == "import boto3, dtj_trainer.record_pod"
    assert "DTJ_END" not in {variable["name"] for variable in container["env"]}


@pytest.mark.parametrize(
    ("state", "verdict", "part"),
    [
        (
            {"waiting": {"reason": "ImagePullBackOff", "message": "no such tag"}},
            "warning",
            "tb:1 can't be pulled, so the ends of jobs are not recorded in the bucket: no such tag",
        ),
        ({"terminated": {"exitCode": 0}}, "ok", "tb:1 runs in record pods"),
        (
            {
                "terminated": {
                    "exitCode": 1,
                    "message": "Traceback\nModuleNotFoundError: No module named 'boto3'\n",
                }
            },
            "warning",
            "bucket: ModuleNotFoundError: No module named 'boto3'",
        ),
        ({"waiting": {"reason": "CreateContainerError", "message": "no python"}}, "warning", "no python"),
        ({"waiting": {"reason": "ContainerCreating"}}, "warning", "has not run within 120 s"),
        ({}, "warning", "has not run within 120 s"),
    ],
)
def test_the_pod_s_state_is_told(state: Manifest, verdict: str, part: str) -> None:
    check = record_check(probe() | {"status": {"containerStatuses": [{"state": state}]}})
    assert (check.name, check.verdict) == ("record image", verdict)
    assert part in check.message
    assert (check.remedy is None) == (verdict == "ok")
