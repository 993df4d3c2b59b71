"""`dtj doctor` on the real cluster: correct findings about a job, and no object left behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.jobs import Manifest, Namespace, example, until
from tests.patience import PATIENCE

pytestmark = pytest.mark.cluster
DTJ = Path(sys.executable).with_name("dtj")
Checks = dict[str, tuple[str, str]]


def doctor(namespace: Namespace, job: Manifest, *words: str, code: int = 0) -> Checks:
    """Verdict and message by check."""
    done = subprocess.run(
        [DTJ, "doctor", "-", "--namespace", namespace.name, "--output", "json", *words],
        input=yaml.safe_dump(job),
        capture_output=True,
        text=True,
        check=False,
        timeout=190 * PATIENCE,
    )
    assert done.returncode == code, done.stdout + done.stderr
    found = {check["name"]: (check["verdict"], check["message"]) for check in json.loads(done.stdout)}
    until("the doctor's pod to be gone", lambda: not namespace.list("pods"), 30)
    return found


def with_artifacts(**artifacts: Any) -> Manifest:
    job = example("fashion-mnist")
    job["spec"]["artifacts"].update(artifacts)
    return job


def test_the_example_can_run(shared_namespace: Namespace) -> None:
    found = doctor(shared_namespace, example("fashion-mnist"))
    verdicts = {name: verdict for name, (verdict, _) in found.items()}
    # The server of `make cluster` is older than the one that knows the CRD's rules.
    assert verdicts.pop("API server") in ("ok", "warning")
    # The pods of other tests may take what these need.
    assert verdicts.pop("room") in ("ok", "warning")
    assert verdicts == dict.fromkeys(
        (
            *("CRD", "operator", "permissions", "quota", "Secret"),
            *("image", "record image", "DNS", "S3 artifacts", "S3 conditions", "S3 data"),
        ),
        "ok",
    ), found


def test_a_secret_that_is_not_there(shared_namespace: Namespace) -> None:
    found = doctor(shared_namespace, with_artifacts(secretName="other"), code=1)
    assert found["Secret"] == ("failed", f"there is no Secret other in namespace {shared_namespace.name}")
    assert found["pod"][0] == "warning"


def test_a_bucket_that_is_not_there(shared_namespace: Namespace) -> None:
    found = doctor(shared_namespace, with_artifacts(uri="s3://no-such-bucket/jobs"), code=1)
    assert "S3 artifacts" in found, found
    verdict, message = found["S3 artifacts"]
    assert verdict == "failed"
    assert "the bucket no-such-bucket does not exist" in message
    assert found["S3 data"][0] == "ok"


def test_gpus_where_there_are_none(shared_namespace: Namespace) -> None:
    job = example("fashion-mnist")
    job["spec"]["replicaSpecs"]["worker"]["gpus"] = 1
    found = doctor(shared_namespace, job, "--no-pod", code=1)
    verdict, message = found["accelerators"]
    assert verdict == "failed"
    assert message.startswith("no node offers nvidia.com/gpu, the job asks for 2")


def test_a_quota_that_is_too_small(namespace: Namespace) -> None:
    namespace.kubectl("create", "quota", "team", "--hard=pods=2")
    until(
        "the quota's use to be counted",
        lambda: namespace.list("resourcequotas")[0].get("status", {}).get("used"),
        30,
    )
    found = doctor(namespace, example("fashion-mnist"), "--no-pod", code=1)
    assert found["quota"] == ("failed", "ResourceQuota team leaves pods 2 of pods 2, the job asks for pods 3")
