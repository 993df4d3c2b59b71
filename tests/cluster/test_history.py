"""The history of jobs on a real cluster: what the bucket says of them after they are deleted."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dtj_trainer.contract.history import parsed_index_key
from tests.cluster.jobs import Artifacts, Job, Manifest, Namespace, example, s3_client, stub, until

pytestmark = pytest.mark.cluster


def recorded(job: Job) -> tuple[Manifest, dict[str, Any]]:
    """The status of a job whose end is recorded, and the record."""
    until(
        f"the end of {job.name} to be recorded",
        lambda: (
            job.condition("Recorded").get("status") == "True"
            or job.condition("Recorded").get("reason") in REFUSED
        ),
        180,
    )
    assert job.condition("Recorded")["reason"] == "EndRecorded", job.story()
    status = job.status
    return status, json.loads(Artifacts(status["artifacts"]["uri"]).read("end.json"))


REFUSED = ("RecordRefused", "RecordGivenUp")


def indexed(status: Manifest) -> set[str]:
    """The names of the jobs in the index beside the job's prefix."""
    bucket, _, prefix = status["artifacts"]["uri"].removeprefix("s3://").partition("/")
    root = prefix.rsplit("/", 2)[0]
    pages = s3_client().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{root}/_index/")
    found = (
        parsed_index_key(item["Key"].removeprefix(f"{root}/")) for page in pages for item in page["Contents"]
    )
    return {f"{entry.namespace}/{entry.name}" for entry in found if entry}


def test_the_bucket_says_how_jobs_ended_after_they_are_deleted(namespace: Namespace) -> None:
    imageless = namespace.apply(
        example(
            "imageless",
            image="registry.invalid/nobody/nothing:0",
            runPolicy={"startDeadlineSeconds": 60, "ttlSecondsAfterFinished": 0},
        )
    )
    policy = {"activeDeadlineSeconds": 45}
    late = namespace.apply(stub("late", "--steps=9000", "--step-seconds=0.2", runPolicy=policy))
    done = namespace.apply(stub("done"))

    uri = until("the artifacts to be named", lambda: imageless.status.get("artifacts", {}).get("uri"), 60)
    until(
        "the TTL", lambda: "imageless" not in {job["metadata"]["name"] for job in namespace.list("dtj")}, 240
    )
    artifacts = Artifacts(uri)
    assert artifacts.sizes().keys() == {"end.json", "job.yaml", "run.json"}
    end = json.loads(artifacts.read("end.json"))
    assert (end["by"], end["status"]["phase"]) == ("record", "Failed")
    assert end["status"]["failure"]["class"] == "ImagePull"
    assert {pod["name"] for pod in end["pods"]} >= {"imageless-worker-0", "imageless-worker-1"}
    assert json.loads(artifacts.read("run.json"))["attempts"] == []

    status, end = recorded(late)
    assert (end["by"], end["status"]["failure"]) == ("record", status["failure"])
    assert status["failure"]["class"] == "DeadlineExceeded"
    assert all(pod["node"] for pod in end["pods"])

    status, end = recorded(done)
    assert (end["by"], end["status"]["phase"]) == ("launcher-0", "Succeeded")
    assert done.condition("Recorded")["message"] == "done-launcher-0 wrote end.json"
    run = json.loads(Artifacts(status["artifacts"]["uri"]).read("run.json"))
    assert (run["uid"], run["world"], [each["attempt"] for each in run["attempts"]]) == (end["uid"], 2, [1])

    assert indexed(status) >= {f"{namespace.name}/{name}" for name in ("imageless", "late", "done")}
    until("the record pods to be gone", lambda: not namespace.list("pods", "dtj.dev/record"), 60)
