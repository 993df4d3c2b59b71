"""Every invalid job file of tests/bad_jobs on the real cluster: the message to the user, and no pod left."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator

import pytest

from tests.cluster.jobs import KubectlError, Manifest, Namespace, until
from tests.unit.support.bad_jobs import BadJob, bad_jobs

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module", autouse=True)
def no_pod_stays(shared_namespace: Namespace) -> Iterator[None]:
    """Once the jobs are deleted, their pods go."""
    yield
    until("the wrong jobs' pods to be gone", lambda: not shared_namespace.list("pods"), 120)


@pytest.mark.parametrize("bad", bad_jobs("kubectl"), ids=lambda bad: bad.file.stem)
def test_kubectl_refuses(bad: BadJob, shared_namespace: Namespace) -> None:
    with pytest.raises(KubectlError) as refused:
        shared_namespace.kubectl("apply", "--filename", str(bad.file))
    assert not bad.unsaid(str(refused.value)), refused.value


@pytest.mark.parametrize("bad", bad_jobs("status", "server", "run"), ids=lambda bad: bad.file.stem)
def test_the_status_tells_why_it_failed(bad: BadJob, shared_namespace: Namespace) -> None:
    job = shared_namespace.apply(on_the_local_store(bad.manifest))
    try:
        failure = job.wait(120, "Failed")["failure"]
        failed = job.condition("Failed")
        said = [failed["message"], failure["message"], *failure.get("lastLogLines", [])]
        assert not bad.unsaid("\n".join(said)), job.story()
        if bad.by != "run":
            assert failed["reason"] == "ValidationFailed"
            assert not [pod for pod in job.pods() if not pod["metadata"].get("deletionTimestamp")]
    finally:
        shared_namespace.kubectl("delete", "dtj", job.name, "--wait")


@pytest.mark.parametrize("bad", bad_jobs("pending"), ids=lambda bad: bad.file.stem)
def test_the_status_tells_what_it_waits_for(bad: BadJob, shared_namespace: Namespace) -> None:
    job = shared_namespace.apply(on_the_local_store(bad.manifest))
    try:
        until(str(bad.messages), lambda: not bad.unsaid(job.condition("Running").get("message", "")), 60)
        assert job.status["phase"] in ("Pending", "Starting")
    finally:
        shared_namespace.kubectl("delete", "dtj", job.name, "--wait")


def on_the_local_store(manifest: Manifest) -> Manifest:
    """The job with the cluster's object store, where the file is not wrong about that."""
    job = copy.deepcopy(manifest)
    artifacts = (job.get("spec") or {}).get("artifacts")
    if artifacts and "endpoint" not in artifacts:
        artifacts["endpoint"] = os.environ["DTJ_TEST_S3_ENDPOINT"]
    return job
