"""Every wrong job file of tests/bad_jobs on the real cluster: what a person is told, and that no pod stays."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cluster.jobs import ROOT, KubectlError, Manifest, Namespace, until

pytestmark = pytest.mark.cluster
FILES = sorted((ROOT / "tests/bad_jobs").glob("*.yaml"))


@pytest.fixture(scope="module", autouse=True)
def no_pod_stays(shared_namespace: Namespace) -> Iterator[None]:
    """Once the jobs are deleted, their pods go."""
    yield
    until("the wrong jobs' pods to be gone", lambda: not shared_namespace.list("pods"), 120)


def header(file: Path) -> tuple[str, list[list[str]]]:
    """Who refuses the file, and its messages, each with its alternatives."""
    text = file.read_text()
    by = re.search(r"^# by: (\w+)$", text, re.MULTILINE)
    messages = re.findall(r"^# message: (.+)$", text, re.MULTILINE)
    assert by is not None, file
    return by[1], [message.split(" || ") for message in messages]


def says(text: str, messages: list[list[str]]) -> bool:
    """Whether a text has each message, in one of its forms."""
    return all(any(form in text for form in forms) for forms in messages)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_wrong_job_is_told_what_is_wrong(file: Path, shared_namespace: Namespace) -> None:
    by, messages = header(file)
    manifest = yaml.safe_load(file.read_text())
    if by == "kubectl":
        with pytest.raises(KubectlError) as refused:
            shared_namespace.kubectl("apply", "--filename", str(file))
        assert says(str(refused.value), messages), refused.value
        return
    _endpoint(manifest)
    job = shared_namespace.apply(manifest)
    try:
        if by == "pending":
            until(
                f"{messages} in the status",
                lambda: says(job.condition("Running").get("message", ""), messages),
                60,
            )
            assert job.status["phase"] in ("Pending", "Starting")
        else:
            status = job.wait(120, "Failed")
            failed = job.condition("Failed")
            assert says(f"{failed['message']}\n{status['failure']['message']}", messages), job.story()
            if by == "status":
                assert failed["reason"] == "ValidationFailed"
                assert not [pod for pod in job.pods() if not pod["metadata"].get("deletionTimestamp")]
    finally:
        shared_namespace.kubectl("delete", "dtj", job.name, "--wait")


def _endpoint(manifest: Manifest) -> None:
    """The local object store, where the file is not wrong about that."""
    artifacts = (manifest.get("spec") or {}).get("artifacts")
    if artifacts and "endpoint" not in artifacts:
        artifacts["endpoint"] = os.environ["DTJ_TEST_S3_ENDPOINT"]
