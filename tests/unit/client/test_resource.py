"""DistributedTrainingJob as an object: built in Python, read from files, written as a manifest.

* jobs built in Python and jobs of files
* faults, values of another type and wrong files
* what the package exports and when modules are imported
"""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import ValidationError

import dtj
import dtj.client
from dtj.client import (
    ArtifactStore,
    DistributedTrainingJob,
    DtjError,
    InvalidJobError,
    JobSpec,
    Metadata,
    ReplicaSpec,
    ReplicaSpecs,
    Strategy,
    Unusable,
)
from tests.unit.support.jobs import UID, manifest

EXAMPLES = sorted((Path(__file__).parents[3] / "manifests/examples").rglob("*.yaml"))


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
        ("a: [", "invalid YAML"),
        ("", "the file is empty"),
        ("kind: Secret\n---\nkind: Service", "only Secret, Service"),
        ("- a", "only a list"),
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
    with pytest.raises(Unusable) as caught:
        JobSpec(strategy="horovod", image="i", replica_specs={"worker": {"replicas": "two"}}, colour=1)  # type: ignore[call-arg, arg-type]
    assert caught.value.message == (
        "JobSpec: strategy: must be Horovod, ParameterServer or TorchDistributed, got 'horovod'; "
        "replica_specs.worker.replicas: must be a whole number, without quotes, got 'two'; "
        "colour: unknown field"
    )
    with pytest.raises(
        Unusable, match="ArtifactStore: uri: must be an address s3://bucket/prefix, got 'a/b'"
    ):
        ArtifactStore(uri="a/b")


def test_models_that_are_read_are_made_without_a_call_of_init() -> None:
    """Else a fault inside of one model would hide those of the others, and each call would take time."""
    assert not JobSpec.__pydantic_custom_init__
    with pytest.raises(ValidationError) as caught:
        JobSpec.model_validate({"strategy": "None", "artifacts": {"uri": 1}, "data": {"uri": 2}})
    assert {error["loc"][0] for error in caught.value.errors()} >= {"strategy", "artifacts", "data"}


def test_metadata_of_another_form_is_told_as_every_error() -> None:
    wrong = manifest() | {"metadata": {"name": "mnist", "labels": {"a": 1}}}
    with pytest.raises(DtjError, match=r"the job's metadata.labels.a: must be a string, got 1"):
        DistributedTrainingJob.from_cluster(wrong)


def test_every_type_of_a_job_can_be_imported_from_the_client() -> None:
    def types(annotation: Any) -> Iterator[type]:
        if isinstance(annotation, type) and annotation.__module__.startswith("dtj."):
            yield annotation
            for field in getattr(annotation, "model_fields", {}).values():
                yield from types(field.annotation)
        for part in get_args(annotation):
            yield from types(part)

    needed = {each.__name__ for each in [*types(Metadata), *types(JobSpec)]} | {"ProgressStatus"}
    assert len(needed) > 20
    assert needed - set(dtj.client.__all__) == set()
    assert [name for name in dtj.client.__all__ if not hasattr(dtj.client, name)] == []


def test_help_shows_fields_as_python_writes_them() -> None:
    names = inspect.signature(JobSpec).parameters
    assert {"replica_specs", "run_policy"} < set(names)
    assert names["image"].default is inspect.Parameter.empty
    assert inspect.signature(ReplicaSpec).parameters["replicas"].default == 1


def test_a_file_may_have_objects_of_other_kinds_beside_the_job(tmp_path: Path) -> None:
    job, secret = yaml.safe_dump(manifest()), "apiVersion: v1\nkind: Secret\nmetadata: {name: s3}\n"
    (tmp_path / "job.yaml").write_text(f"{secret}---\n{job}")
    assert DistributedTrainingJob.from_file(tmp_path / "job.yaml").name == "mnist"
    (tmp_path / "two.yaml").write_text(f"{job}---\n{secret}---\n{job}")
    with pytest.raises(Unusable, match="has 2 jobs; give a file with one DistributedTrainingJob"):
        DistributedTrainingJob.from_file(tmp_path / "two.yaml")


def test_the_package_offers_the_client_and_loads_it_when_asked_for() -> None:
    assert dtj.DistributedTrainingJob is DistributedTrainingJob
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = dtj.Nothing
    code = "import dtj, sys, dtj.api.job; assert not {'dtj.client', 'kubernetes', 'aiohttp'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)
