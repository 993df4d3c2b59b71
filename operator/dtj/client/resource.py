"""The DistributedTrainingJob of the Python SDK, and what ends the wait for one of its conditions. Pure."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationError

from dtj.api.base import ApiModel
from dtj.api.errors import DtjError, TimedOut, Unusable
from dtj.api.identity import API_VERSION, KIND
from dtj.api.job import Fault, InvalidJob, Job, Manifest, read_job, read_status
from dtj.api.job_file import read_job_file
from dtj.api.schema_errors import sentence
from dtj.api.spec import JobSpec
from dtj.api.status import ConditionType, JobStatus
from dtj.api.validation import faults

log = logging.getLogger(__name__)


class InvalidJobError(DtjError):
    """A job that the operator would refuse; `faults` has every reason."""

    def __init__(self, name: str, job_faults: list[Fault]) -> None:
        super().__init__(f"{name or 'the job'} is not valid: {'; '.join(map(str, job_faults))}")
        self.faults = job_faults


class Metadata(ApiModel):
    """The metadata of a job."""

    name: str
    namespace: str | None = None
    """Without a namespace, the job gets the namespace of the client that submits the job."""
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    uid: str = ""
    """The API server sets this field and the fields below."""
    generation: int = 0
    """The API server increments the generation at each change of the spec."""
    creation_timestamp: str | None = None
    """RFC 3339, UTC."""
    deletion_timestamp: str | None = None
    """The time of the request to delete the job; RFC 3339, UTC."""
    resource_version: str | None = None


class DistributedTrainingJob(ApiModel):
    """A job with its spec and status. The object is immutable; `model_copy` creates a changed copy."""

    metadata: Metadata
    spec: JobSpec
    status: JobStatus = JobStatus()

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any]) -> Self:
        """Parse the manifest of a job. Raises InvalidJobError if the manifest does not match the schema."""
        try:
            job = read_job(manifest)
        except InvalidJob as error:
            metadata = manifest.get("metadata")
            name = metadata.get("name") if isinstance(metadata, dict) else None
            raise InvalidJobError(str(name or ""), error.faults) from None
        return cls(metadata=_metadata(manifest), spec=job.spec, status=job.status)

    @classmethod
    def from_cluster(cls, manifest: Mapping[str, Any]) -> Self:
        """Parse a job from the API server. Ignore unknown fields, which a newer version may have added.

        Raises DtjError if the spec can't be read.
        """
        metadata = _metadata(manifest)
        try:
            spec = JobSpec.model_validate(manifest.get("spec"), extra="ignore")
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise DtjError(
                f"the job {metadata.name} can't be read: spec.{where}: {sentence(dict(first))}",
                "the operator may be newer than this dtj: upgrade dtj",
            ) from None
        return cls(metadata=metadata, spec=spec, status=read_status(manifest.get("status") or {}))

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Read a YAML file with one job. Ignore objects of other kinds, such as the job's Secret.

        Raises Unusable if the file can't be read or does not contain exactly one job, and InvalidJobError if the job
        does not match the schema.
        """
        try:
            text = Path(path).read_text(encoding="utf-8-sig")
        except OSError as error:
            raise Unusable(f"{path} can't be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise Unusable(f"{path} can't be read: not text in UTF-8") from None
        jobs = read_job_file(text, str(path)).jobs
        if len(jobs) > 1:
            raise Unusable(f"{path} has {len(jobs)} jobs; give a file with one {KIND}")
        return cls.from_manifest(jobs[0].manifest)

    @property
    def name(self) -> str:
        """The name of the job."""
        return self.metadata.name

    @property
    def namespace(self) -> str:
        """The namespace of the job; `default` if the metadata has no namespace."""
        return self.metadata.namespace or "default"

    @property
    def uid(self) -> str:
        """The uid, which distinguishes the job from an earlier job of the same name; empty before submission."""
        return self.metadata.uid

    @property
    def artifacts_uri(self) -> str | None:
        """The prefix of the job in the bucket; None if the job keeps no artifacts, or has no uid yet."""
        return self.job.artifacts_uri if self.uid else None

    @property
    def job(self) -> Job:
        """The job in the form that the plan and the operator use."""
        metadata = self.metadata
        return Job(
            self.name,
            self.namespace,
            self.uid,
            metadata.generation,
            spec=self.spec,
            status=self.status,
            labels=metadata.labels,
            annotations=metadata.annotations,
        )

    def faults(self) -> list[Fault]:
        """Return every fault for which the operator would reject the job."""
        return faults(self.job)

    def to_manifest(self) -> Manifest:
        """Return the object as plain data without unset fields, such as the uid before submission."""
        manifest = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": _plain(self.metadata),
            "spec": _plain(self.spec),
        }
        if status := _plain(self.status):
            manifest["status"] = status
        return manifest


def _plain(model: ApiModel) -> Manifest:
    return model.model_dump(by_alias=True, mode="json", exclude_unset=True)


def _metadata(manifest: Mapping[str, Any]) -> Metadata:
    metadata = manifest.get("metadata") or {}
    try:
        return Metadata.model_validate({"name": ""} | metadata, extra="ignore")
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise Unusable(f"the job's metadata.{where}: {sentence(dict(first))}") from None


def decided(job: DistributedTrainingJob, condition: ConditionType) -> bool:
    """Return whether a condition holds for the current spec of a job, or the job has finished."""
    is_current = (job.status.observed_generation or 0) >= job.metadata.generation
    return job.status.finished or (is_current and job.status.holds(condition))


def never(job: DistributedTrainingJob, condition: ConditionType) -> DtjError:
    """Return the error for a job that finished without a condition."""
    return DtjError(f"{job.name} is {job.status.phase} and will never be {condition}")


def too_late(job: DistributedTrainingJob, timeout: float | None, what: str) -> TimedOut:
    """Return the error of a wait that took too long. timeout: in seconds. what: the awaited event, e.g. `its end`."""
    state = f"is {job.status.phase}" if job.status.phase else "has no phase yet"
    return TimedOut(f"{job.name} {state} after {timeout:g} s: waited for {what}")


def readable(manifests: Iterable[Mapping[str, Any]]) -> list[DistributedTrainingJob]:
    """Return the jobs of a list that can be read. Log a warning for each job that can't be read."""
    jobs = []
    for manifest in manifests:
        try:
            jobs.append(DistributedTrainingJob.from_cluster(manifest))
        except DtjError as error:
            log.warning("%s; %s", error.message, error.remedy)
    return jobs
