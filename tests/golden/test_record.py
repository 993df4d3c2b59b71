"""The record pod equals the committed pod, and Kubernetes takes it in a namespace with the `restricted` standard.

After a change that is meant: `pytest tests/golden --update-golden`, then read the difference.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from dtj.api.job import Manifest, read_job
from dtj.api.status import JobStatus
from dtj.api.yaml_text import dump
from dtj.plan.record import record_pod
from dtj_trainer.contract.history import RecordedPod
from tests.unit.support.jobs import stored
from tests.unit.support.pod_security import restricted_faults

ARTIFACTS = {"uri": "s3://training/jobs", "endpoint": "http://store:8333", "secretName": "s3-credentials"}
TIME = "2026-11-21T12:30:00Z"
EXPECTED = Path(__file__).with_name("record.yaml")


@pytest.fixture
def pod() -> Manifest:
    failed = {"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "lastTransitionTime": TIME}
    status = JobStatus.model_validate(
        {"phase": "Failed", "attempt": 1, "completionTime": TIME, "conditions": [failed]}
    )
    pods = [RecordedPod(name="mnist-worker-0", node="a")]
    return record_pod(read_job(stored(artifacts=ARTIFACTS)), status, pods, TIME, "tensorboard:1")


def test_the_pod_is_the_committed_one(pod: Manifest, request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-golden"):
        EXPECTED.write_text(dump(pod))
    assert pod == yaml.safe_load(EXPECTED.read_text())


def test_kubernetes_takes_it_in_the_strictest_namespace(pod: Manifest) -> None:
    import kubernetes_validate  # takes seconds: not for who runs another test

    for version in ("1.25", kubernetes_validate.latest_version()):
        kubernetes_validate.validate(pod, version, strict=True)
    assert list(restricted_faults(pod)) == []
