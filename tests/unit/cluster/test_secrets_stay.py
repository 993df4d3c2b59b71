"""Secrecy of a job's key pair: the pair is in the Secret of the job, and nowhere else."""

from __future__ import annotations

import json
import logging

import pytest

from dtj.api.job import read_job
from dtj.plan.job import plan_job
from tests.unit.support.jobs import manifest
from tests.unit.support.world import METRICS, World


async def test_the_jobs_private_key_is_in_its_secret_and_nowhere_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    world = World()
    await world.rest()

    (secret,) = world.cluster.of_kind("Secret")
    key = secret["stringData"]["ssh_key"]
    middle = key.splitlines()[2]
    others = [made for _, made in world.cluster.log if made and made["kind"] != "Secret"]
    kinds = {made["kind"] for made in others}
    assert {"DistributedTrainingJob", "Event", "Pod", "ConfigMap", "Service"} <= kinds
    assert len(middle) > 20
    assert middle in json.dumps(secret)
    assert [made["kind"] for made in others if middle in json.dumps(made)] == []
    assert middle not in caplog.text
    assert middle not in repr(vars(METRICS))


def test_a_secret_is_given_to_pods_by_its_name_and_no_object_has_its_content() -> None:
    """What is written into spec.env as a value is no secret: it is in the job, its pods and the bucket's job.yaml."""
    job = read_job(
        manifest(
            artifacts={"uri": "s3://training/jobs", "secretName": "s3-credentials"},
            env=[
                {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}},
                {"name": "OPEN", "value": "seen-by-all"},
            ],
        )
    )
    plan = plan_job(job)

    assert "seen-by-all" in plan.config["data"]["job.yaml"]
    for pod in plan.pods:
        (container,) = pod["spec"]["containers"]
        assert container["envFrom"] == [{"secretRef": {"name": "s3-credentials"}}]
        (token,) = [entry for entry in container["env"] if entry["name"] == "TOKEN"]
        assert token == {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}
