"""The run policy on a real cluster: TTL, start deadline, and jobs of another controller."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.cluster.jobs import Artifacts, Namespace, example, stub, until

pytestmark = pytest.mark.cluster
TTL_SECONDS = 15


def test_a_finished_job_goes_after_its_ttl_and_its_artifacts_stay(namespace: Namespace) -> None:
    job = namespace.apply(stub("fleeting", runPolicy={"ttlSecondsAfterFinished": TTL_SECONDS}))
    status = job.wait(240)
    artifacts = Artifacts(status["artifacts"]["uri"])

    def left() -> list[str]:
        names = namespace.kubectl("get", "dtj,pods,services,configmaps,secrets", "--output=name").split()
        return [name for name in names if "fleeting" in name]

    until("the job to be gone", lambda: not namespace.list("dtj"), TTL_SECONDS + 60)
    lasted = datetime.now(UTC) - datetime.fromisoformat(status["completionTime"])
    assert lasted.total_seconds() >= TTL_SECONDS
    until("all that was the job's to be gone", lambda: not left(), 150)
    assert {"model/chain", "metrics.jsonl"} <= artifacts.sizes().keys()


def test_a_job_whose_image_can_not_be_pulled_fails_at_its_start_deadline(namespace: Namespace) -> None:
    job = namespace.apply(
        example(
            "imageless",
            image="registry.invalid/nobody/nothing:0",
            runPolicy={"startDeadlineSeconds": 120, "cleanPodPolicy": "None"},
        )
    )
    until("the obstacle to be told", lambda: job.condition("Running").get("reason") == "ImagePull", 60)
    status = job.wait(120, "Failed")
    failed = job.condition("Failed")
    assert failed["reason"] == "StartDeadlineExceeded", job.story()
    assert "the image can't be pulled: imageless-worker-" in failed["message"]
    assert status["failure"]["class"] == "ImagePull"
    assert status["failure"]["pod"].startswith("imageless-worker-")
    assert status["restarts"] == {"application": 0, "infrastructure": 0}
    # The kubelet takes a minute to let go of a container that never was.
    until("its pods to be going", lambda: all("deletionTimestamp" in p["metadata"] for p in job.pods()), 30)


def test_a_job_of_another_controller_is_left_alone(namespace: Namespace) -> None:
    theirs = namespace.apply(example("theirs", runPolicy={"managedBy": "kueue.x-k8s.io/multikueue"}))
    ours = namespace.apply(example("ours", runPolicy={"managedBy": "dtj.dev/operator", "suspend": True}))
    # It came later: the operator has seen both.
    ours.wait(60, "Suspended")
    assert theirs.status == {}
    assert theirs.pods() == []
    assert theirs.events() == []
    names = namespace.kubectl("get", "services,configmaps,secrets", "--output=name").split()
    assert not [name for name in names if "theirs" in name]
