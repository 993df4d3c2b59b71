"""Nodes that are cut off and killed: jobs continue elsewhere, and lose only steps since the newest checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from itertools import pairwise
from typing import Any

import pytest

from dtj_trainer.artifacts import manifest as snapshots
from tests.cluster import nodes, parameter_server
from tests.cluster.jobs import Job, Manifest, Namespace, stub, until
from tests.cluster.placement import away_from, leaving_quickly, pods_on, spread

pytestmark = [pytest.mark.cluster, pytest.mark.alone]
STEPS = 6000


# That of a ps is a row of tests/cluster/chaos.
@pytest.mark.parametrize("strategy", ["Horovod", pytest.param("ParameterServer", marks=pytest.mark.chaos)])
def test_a_job_goes_on_when_a_node_falls_silent_and_what_comes_back_does_no_harm(
    namespace: Namespace, victim: nodes.Machine, strategy: str
) -> None:
    job = namespace.apply(job_on_both_nodes("cut-off", strategy, victim.name))
    saved = checkpoint(job)
    ((lost, uid),) = pods_on(job, victim.name).items()

    victim.cut_off()
    trains_again(job, lost, uid)
    assert victim.runs(uid), "the node is silent, and its pod is not dead"
    victim.reconnect()
    until("the lost pod's processes to end", lambda: not victim.runs(uid), 120)
    status = come_to_an_end(job)

    told_as_lost_once(status, lost)
    went_on_from(job, status, saved)
    if strategy == "Horovod":
        assert job.artifacts().stub_steps_are_complete(STEPS)
    print(f"{strategy}, worker cut off: no step for {longest_pause(job):.0f} s")


def test_containers_whose_end_nobody_saw_are_lost_with_their_node(
    namespace: Namespace, victim: nodes.Machine
) -> None:
    """As after a reboot: the kubelet tells of exit code 255, reason Unknown."""
    outlives(
        namespace.apply(job_on_both_nodes("rebooted", "Horovod", victim.name)), victim, victim.kill_containers
    )


# The others are rows of tests/cluster/chaos.
@pytest.mark.chaos
def test_a_parameter_server_job_goes_on_when_the_node_of_a_worker_is_killed(
    namespace: Namespace, victim: nodes.Machine
) -> None:
    job = namespace.apply(job_on_both_nodes("unplugged", "ParameterServer", victim.name))
    outlives(job, victim, victim.kill)
    print(f"worker killed: no step for {longest_pause(job):.0f} s")


def outlives(job: Job, victim: nodes.Machine, harm: Callable[[], None]) -> None:
    """Do harm to the victim, and see that the job goes on, counts one loss and keeps its checkpoint."""
    saved = checkpoint(job)
    ((lost, uid),) = pods_on(job, victim.name).items()

    harm()
    trains_again(job, lost, uid)
    status = come_to_an_end(job)

    told_as_lost_once(status, lost)
    went_on_from(job, status, saved)


def job_on_both_nodes(name: str, strategy: str, victim: str) -> Manifest:
    """One worker on the victim and all else off it; its pods leave a lost node after some seconds."""
    if strategy == "Horovod":
        job = stub(name, f"--steps={STEPS}", "--checkpoint-steps=20")
        roles: tuple[str, ...] = ("launcher", "worker")
    else:
        job = parameter_server.example(name, "Asynchronous", "--epochs=1000", "--checkpoint-seconds=5")
        roles = ("chief", "worker", "ps", "evaluator")
    replicas = job["spec"]["replicaSpecs"]
    for role in roles:
        placement = spread(name) if role == "worker" else away_from(victim)
        replicas.setdefault(role, {})["template"] = {"spec": leaving_quickly() | placement}
    return job


def checkpoint(job: Job) -> int:
    """Step of its newest checkpoint, once there is one; it trains then."""
    return parameter_server.wait_for_checkpoint(job)


def trains_again(job: Job, lost: str, uid: str) -> None:
    """Wait until the lost pod was replaced and the job has come further than before."""

    def replaced() -> bool:
        pod: dict[str, Any] = next((p for p in job.pods() if p["metadata"]["name"] == lost), {})
        return bool(pod) and pod["metadata"]["uid"] != uid and pod["status"]["phase"] == "Running"

    until(f"{lost} to be replaced", replaced, 180)
    job.wait_for_step(job.status["progress"]["step"] + 1)


def come_to_an_end(job: Job) -> Manifest:
    """Its status when it has succeeded, or was suspended where the training has no end of its own: with parameter
    servers it goes on while a worker is away, quickly or slowly as the machine is.
    """
    if job.get()["spec"]["strategy"] == "Horovod":
        return job.hurry_to_the_end()
    suspend = '{"spec": {"runPolicy": {"suspend": true}}}'
    job.namespace.kubectl("patch", "dtj", job.name, "--type=merge", f"--patch={suspend}")
    return job.wait(180, "Suspended")


def longest_pause(job: Job) -> float:
    """Seconds between two steps told of, the longest ones: an attempt that begins later is part of it."""
    rows = [row for row in job.artifacts().metrics() if row["kind"] == "train"]
    times = [datetime.fromisoformat(row["time"]) for row in rows]
    return max((later - earlier).total_seconds() for earlier, later in pairwise(times))


def told_as_lost_once(status: Manifest, lost: str) -> None:
    assert status["restarts"] == {"application": 0, "infrastructure": 1}, str(status["failure"])
    assert status["failure"]["pod"] == lost


def went_on_from(job: Job, status: Manifest, saved: int) -> None:
    """The newest attempt began at a checkpoint not older than that, and what the bucket has of it is whole."""
    artifacts = job.artifacts()
    keys = artifacts.sizes()
    rows = [row for row in artifacts.metrics() if row["kind"] == "train"]
    attempts = {row["attempt"] for row in rows}
    steps = [row["step"] for row in rows if row["attempt"] == max(attempts)]
    if len(attempts) > 1:
        assert min(steps) > saved
    newest = status["artifacts"]["checkpoint"]["uri"].removeprefix(f"{artifacts.uri}/")
    manifest = snapshots.Manifest.from_json(artifacts.read(f"{newest}/manifest.json"))
    # One that is suspended on a busy machine may have no time left for its last checkpoint.
    assert (manifest.step or 0) >= (max(steps) if status["phase"] == "Succeeded" else saved)
    files = {f"checkpoints/{file.key}": file.size for file in manifest.files}
    assert files.items() <= keys.items()
    assert any(key.startswith("model/") for key in keys) or status["phase"] == "Suspended"
