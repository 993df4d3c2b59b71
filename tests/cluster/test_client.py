"""The SDK on a real cluster: a job from submit to delete."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from pathlib import Path
from uuid import uuid4

import pytest

from dtj import Client, DistributedTrainingJob
from dtj.client import AsyncClient, ConditionType, LogQuery, NotFound
from dtj.client.changing import change
from dtj.cluster.user_api import connect
from tests.cluster.jobs import Namespace, example, stub, until
from tests.patience import PATIENCE

pytestmark = pytest.mark.cluster


def test_a_job_from_submit_to_delete(namespace: Namespace, tmp_path: Path) -> None:
    endpoint = os.environ["DTJ_TEST_S3_ENDPOINT"]
    with Client(namespace=namespace.name) as client:
        submitted = client.submit(DistributedTrainingJob.from_manifest(stub("sdk", "--steps=400")))
        assert submitted.namespace == namespace.name
        assert [job.name for job in client.list()] == ["sdk"]

        phases = []
        for job in client.watch("sdk"):
            phases.append(job.status.phase)
            if job.status.holds(ConditionType.RUNNING):
                break
        assert phases[-1] == "Running"
        pods = [(pod.role, pod.index, pod.running) for pod in client.pods("sdk")]
        assert pods == [("launcher", 0, True), ("worker", 0, True), ("worker", 1, True)]

        followed = list(client.logs("sdk", LogQuery(follow=True)))
        assert {line.source for line in followed} >= {"rank 0", "rank 1", "launcher-0"}
        assert all(line.time is not None for line in followed)
        ended = client.wait("sdk", timeout=240 * PATIENCE)
        assert ended.status.phase == "Succeeded"

        # The launcher's pod is still there.
        of_rank = [line.text for line in client.logs("sdk", LogQuery(rank=1))]
        assert of_rank == [line.text for line in followed if line.source == "rank 1"]
        until("the event", lambda: "JobSucceeded" in [event.reason for event in client.events("sdk")], 30)

        artifacts = client.artifacts("sdk", endpoint=endpoint)
        assert ended.status.artifacts is not None
        assert ended.status.artifacts.checkpoint is not None
        assert artifacts.checkpoints()[-1].step == ended.status.artifacts.checkpoint.step
        assert artifacts.job()["metadata"]["name"] == "sdk"
        assert [path.name for path in artifacts.get("model", tmp_path)].count("chain") == 1
        namespace.kubectl("delete", "pods", "--all", "--wait=true", timeout=150)
        # The rank's own file has what its program printed, without what `dtj-launch` told of it.
        kept = [line.text for line in client.logs("sdk", LogQuery(rank=1))]
        assert kept
        assert set(kept) <= set(of_rank)

        client.delete("sdk", wait=True, timeout=60 * PATIENCE)
        with pytest.raises(NotFound):
            client.get("sdk")
        assert "model/chain" in [stored.key for stored in artifacts.ls()]


async def test_the_job_of_another_uid_is_left_alone(namespace: Namespace) -> None:
    """What the API server says to the uid of a job whose name another job has taken."""
    suspended = DistributedTrainingJob.from_manifest(stub("one", runPolicy={"suspend": True}))
    async with AsyncClient(namespace=namespace.name) as client, AsyncExitStack() as stack:
        stack.push_async_callback((api := await connect()).close)
        made = await client.submit(suspended)
        uid = str(uuid4())
        earlier = made.model_copy(update={"metadata": made.metadata.model_copy(update={"uid": uid})})
        with pytest.raises(NotFound, match="another job has its name"):
            await change(api, earlier, {"runPolicy": {"suspend": False}})
        with pytest.raises(NotFound, match="another job has its name"):
            await client.delete("one", uid=uid)
        assert (await client.get("one", uid=made.uid)).spec == made.spec
        await client.delete("one", uid=made.uid, wait=True, timeout=60 * PATIENCE)


# As the operator does it, it is in test_suspension.py.
@pytest.mark.chaos
def test_a_running_job_gets_another_size_and_goes_on(namespace: Namespace) -> None:
    manifest = example("scaled", args=["--model=cnn", "--epochs=3", "--batch-size=64"])
    manifest["spec"]["replicaSpecs"]["worker"]["replicas"] = 1
    with Client(namespace=namespace.name) as client:
        client.submit(DistributedTrainingJob.from_manifest(manifest))
        client.wait_for("scaled", ConditionType.RUNNING, timeout=120 * PATIENCE)
        client.scale("scaled", {"worker": 2}, timeout=150 * PATIENCE)
        ended = client.wait("scaled", timeout=240 * PATIENCE)
        assert ended.status.phase == "Succeeded"
        assert ended.status.attempt == 2
        rows = client.artifacts(ended, endpoint=os.environ["DTJ_TEST_S3_ENDPOINT"]).metrics()
        assert rows[-1]["worldSize"] == 2
