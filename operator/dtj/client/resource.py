"""A DistributedTrainingJob as programs work with it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationError

from dtj.api.base import ApiModel
from dtj.api.errors import DtjError, Unusable
from dtj.api.identity import API_VERSION, KIND
from dtj.api.job import Fault, InvalidJob, Job, Manifest, read_job, read_status
from dtj.api.job_file import read_job_file
from dtj.api.sentences import sentence
from dtj.api.spec import JobSpec
from dtj.api.status import JobStatus
from dtj.api.validation import faults
from dtj.plan.pods import artifacts_uri


class InvalidJobError(DtjError):
    """A job that the operator would refuse; `faults` has every reason."""

    def __init__(self, name: str, found: list[Fault]) -> None:
        super().__init__(f"{name or 'the job'} is not valid: {'; '.join(map(str, found))}")
        self.faults = found


class Metadata(ApiModel):
    """What a job is called, and what the API server knows of it."""

    name: str
    namespace: str | None = None
    """Not given: that of the client which submits the job."""
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    uid: str = ""
    """Given by the API server, as what follows."""
    generation: int = 0
    """One more with each change of the spec."""
    creation_timestamp: str | None = None
    """RFC 3339, UTC."""
    deletion_timestamp: str | None = None
    """When it was told to be deleted."""
    resource_version: str | None = None


class DistributedTrainingJob(ApiModel):
    """A job: what is to be trained, and what became of it. It can't be changed; `model_copy` makes another."""

    metadata: Metadata
    spec: JobSpec
    status: JobStatus = JobStatus()

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any]) -> Self:
        """Read a job file's content. Raises InvalidJobError where it does not have the resource's form."""
        try:
            job = read_job(manifest)
        except InvalidJob as error:
            metadata = manifest.get("metadata")
            name = metadata.get("name") if isinstance(metadata, dict) else None
            raise InvalidJobError(str(name or ""), error.faults) from None
        return cls(metadata=_metadata(manifest), spec=job.spec, status=job.status)

    @classmethod
    def from_cluster(cls, manifest: Mapping[str, Any]) -> Self:
        """Read what the API server has. What only a newer version knows is left out. Raises DtjError."""
        metadata = _metadata(manifest)
        try:
            spec = JobSpec.model_validate(manifest.get("spec"), extra="ignore")
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise DtjError(
                f"the job {metadata.name} can't be read: spec.{where}: {sentence(dict(first))}",
                "its operator may be newer than this dtj: upgrade dtj",
            ) from None
        return cls(metadata=metadata, spec=spec, status=read_status(manifest.get("status") or {}))

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Read a YAML file with one job; objects of other kinds, such as its Secret, are passed over.

        Raises Unusable for another content, InvalidJobError for a wrong job.
        """
        try:
            text = Path(path).read_text(encoding="utf-8-sig")
        except OSError as error:
            raise Unusable(f"{path} can't be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise Unusable(f"{path} can't be read: not text in UTF-8") from None
        found = read_job_file(text, str(path)).jobs
        if len(found) > 1:
            raise Unusable(f"{path} has {len(found)} jobs; one {KIND} is wanted")
        return cls.from_manifest(found[0].manifest)

    @property
    def name(self) -> str:
        """Its name."""
        return self.metadata.name

    @property
    def namespace(self) -> str:
        """Its namespace; `default` where none is given yet."""
        return self.metadata.namespace or "default"

    @property
    def uid(self) -> str:
        """What tells it from an earlier job of the same name; empty before it is submitted."""
        return self.metadata.uid

    @property
    def artifacts_uri(self) -> str | None:
        """Its own prefix in the bucket; None where it keeps nothing, or has no uid yet."""
        return artifacts_uri(self.job) if self.uid else None

    @property
    def job(self) -> Job:
        """The job as the plan and the operator take it."""
        return Job(
            self.name, self.namespace, self.uid, self.metadata.generation, spec=self.spec, status=self.status
        )

    def faults(self) -> list[Fault]:
        """Everything for which the operator would refuse it."""
        return faults(self.job)

    def to_manifest(self) -> Manifest:
        """The whole object as plain data, with what was set: without uid and status before it is submitted."""
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
    given = manifest.get("metadata") or {}
    try:
        return Metadata.model_validate({"name": ""} | given, extra="ignore")
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise Unusable(f"the job's metadata.{where}: {sentence(dict(first))}") from None
