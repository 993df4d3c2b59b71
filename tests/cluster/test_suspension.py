"""Suspension in the middle of a training: no lost step. Resumption, also with more workers or an earlier step."""

from __future__ import annotations

import json
import os

import pytest

from dtj import Client
from tests.cluster import parameter_server
from tests.cluster.jobs import Job, Namespace, stub

pytestmark = pytest.mark.cluster
# At their own pace these take five minutes: nobody sees a busy machine suspend a training that has ended.
STEPS = 6000
# What these jobs go on from was made when they were told to stop: until then there is no checkpoint.
NO_OTHER_CHECKPOINT = "--checkpoint-seconds=3600"


def test_a_horovod_job_goes_on_with_more_workers_where_it_was_and_goes_back(namespace: Namespace) -> None:
    job = namespace.apply(stub("paused", f"--steps={STEPS}"))
    step = _suspended_after(job, 60)

    _patch(job, replicaSpecs={"worker": {"replicas": 3}}, runPolicy={"suspend": False})
    later = _suspended_after(job, step + 10)
    assert f"resuming from the checkpoint of step {step}," in _log(job, "rank-0")
    assert _log(job, "rank-2")
    assert {row["worldSize"] for row in job.artifacts().metrics() if row["attempt"] == 2} == {3}

    with Client(namespace=namespace.name) as client:
        client.resume(job.name, checkpoint=step, endpoint=os.environ["DTJ_TEST_S3_ENDPOINT"])
    status = job.hurry_to_the_end()
    assert status["attempt"] == 3
    assert status["restarts"] == {"application": 0, "infrastructure": 0}
    assert later > step == int(status["resumedFrom"]["uri"].rpartition("/")[2].partition("-")[0])
    assert f"resuming from the checkpoint of step {step}," in _log(job, "rank-0", attempt=3)
    assert job.artifacts().stub_steps_are_complete(STEPS)


@pytest.mark.chaos
def test_a_parameter_server_job_goes_on_where_it_was(namespace: Namespace) -> None:
    job = namespace.apply(parameter_server.example("paused-ps", "Asynchronous", NO_OTHER_CHECKPOINT))
    step = _suspended_after(job, 100)

    _patch(job, runPolicy={"suspend": False})
    status = job.wait(300)
    assert status["restarts"] == {"application": 0, "infrastructure": 0}
    assert set(status["replicaAttempts"].values()) == {2}
    assert f"resuming from the checkpoint of step {step}," in _log(job, "chief-0")


def _suspended_after(job: Job, step: int) -> int:
    """Suspend it when it has come that far; the step of its checkpoint then."""
    reached = job.wait_for_step(step)
    _patch(job, runPolicy={"suspend": True})
    status = job.wait(180, "Suspended")
    assert job.pods() == []
    assert job.condition("Suspended")["status"] == "True"
    assert "startTime" not in status
    saved = [key.split("/")[1] for key in job.artifacts().sizes() if key.endswith("/manifest.json")]
    assert len(saved) == status["attempt"] - 1
    step = max(int(each.partition("-")[0]) for each in saved)
    assert step >= reached
    return step


def _patch(job: Job, **spec: object) -> None:
    job.namespace.kubectl("patch", "dtj", job.name, "--type=merge", f"--patch={json.dumps({'spec': spec})}")


def _log(job: Job, name: str, attempt: int = 2) -> str:
    return job.artifacts().read(f"logs/attempt-{attempt}/{name}.log").decode()
