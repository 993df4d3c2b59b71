"""A job as an object: made in Python, read from files, written as a manifest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import dtj
from dtj.client import (
    ArtifactStore,
    DistributedTrainingJob,
    InvalidJobError,
    JobSpec,
    Metadata,
    ReplicaSpec,
    ReplicaSpecs,
    Strategy,
    Unusable,
)
from tests.unit.support.jobs import UID, manifest

EXAMPLES = sorted((Path(__file__).parents[2] / "manifests/examples").rglob("*.yaml"))


def test_a_job_made_in_python_is_the_one_of_the_file() -> None:
    made = DistributedTrainingJob(
        metadata=Metadata(name="mnist", namespace="ml", uid=UID, generation=1, resource_version="1"),
        spec=JobSpec(
            strategy=Strategy.HOROVOD,
            image="trainer:1",
            command=["python", "train.py"],
            replica_specs=ReplicaSpecs(worker=ReplicaSpec(replicas=2)),
        ),
    )
    assert made.to_manifest() == manifest()
    assert made == DistributedTrainingJob.from_manifest(manifest())
    assert made.faults() == []


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_is_written_as_it_was_read(file: Path) -> None:
    assert DistributedTrainingJob.from_file(file).to_manifest() == yaml.safe_load(file.read_text())


def test_a_status_is_written_too() -> None:
    status = {"phase": "Running", "attempt": 2, "progress": {"step": 5}}
    job = DistributedTrainingJob.from_cluster(manifest() | {"status": status})
    assert job.to_manifest()["status"] == status


def test_the_artifacts_are_known_once_the_job_has_a_uid() -> None:
    job = DistributedTrainingJob.from_manifest(manifest(artifacts={"uri": "s3://training/jobs/"}))
    assert job.artifacts_uri == f"s3://training/jobs/ml/mnist-{UID.split('-')[0]}"
    new = job.model_copy(update={"metadata": Metadata(name="mnist")})
    assert (new.artifacts_uri, new.namespace, new.uid) == (None, "default", "")
    assert DistributedTrainingJob.from_manifest(manifest()).artifacts_uri is None


def test_every_fault_of_a_manifest_is_told() -> None:
    with pytest.raises(InvalidJobError) as caught:
        DistributedTrainingJob.from_manifest(manifest(strategy="None", unknown=1) | {"kind": "Pod"})
    assert [fault.field for fault in caught.value.faults] == ["kind", "spec.strategy", "spec.unknown"]
    assert caught.value.message.startswith("mnist is not valid: kind: ")
    assert caught.value.exit_code == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: [", "can't be read"),
        ("", "has 0 objects"),
        ("a: 1\n---\nb: 2", "has 2 objects"),
        ("- a", "has 1 obj"),
    ],
)
def test_a_file_with_another_content_is_unusable(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "job.yaml").write_text(content)
    with pytest.raises(Unusable, match=message) as caught:
        DistributedTrainingJob.from_file(tmp_path / "job.yaml")
    assert "\n" not in caught.value.message
    with pytest.raises(Unusable, match="No such file"):
        DistributedTrainingJob.from_file(tmp_path / "none.yaml")


def test_values_are_checked_where_they_are_given() -> None:
    with pytest.raises(ValueError, match="should match pattern"):
        ArtifactStore(uri="training/jobs")


def test_the_package_offers_the_client_and_loads_it_when_asked_for() -> None:
    assert dtj.DistributedTrainingJob is DistributedTrainingJob
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = dtj.Nothing
    code = "import dtj, sys, dtj.api.job; assert not {'dtj.client', 'kubernetes', 'aiohttp'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)
