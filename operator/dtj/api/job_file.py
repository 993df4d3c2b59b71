"""A job file: the jobs in it, and every fault with its line. Text in, data out.

`read_job` and `faults` check a job, as in the operator. This module adds the faults that the API server refuses
before the operator sees the job: invalid YAML, keys that are given twice, a missing kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dtj.api.errors import DtjError, Unusable
from dtj.api.identity import API_VERSION, GROUP, KIND
from dtj.api.job import Fault, Job, Manifest
from dtj.api.manifest_check import check
from dtj.api.yaml_lines import Document, read_documents


@dataclass(frozen=True)
class FileFault:
    """A fault and the line on which it is, from 1."""

    line: int
    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.line}: {self.field}: {self.message}"


@dataclass(frozen=True)
class FileJob:
    """One job of a file: the manifest as written, the job that was read from the manifest, and the faults."""

    line: int
    manifest: Manifest
    job: Job | None
    """None for a document that does not fit the schema."""
    faults: tuple[FileFault, ...]


@dataclass(frozen=True)
class OtherObject:
    """An object of another kind in a job file. dtj does not check such an object."""

    line: int
    name: str
    """The kind and the name of the object, such as Secret s3-credentials."""


@dataclass(frozen=True)
class JobFile:
    """What is in a job file."""

    name: str
    jobs: tuple[FileJob, ...]
    others: tuple[OtherObject, ...]

    @property
    def faults(self) -> tuple[FileFault, ...]:
        """Every fault of the file, in the order of its lines."""
        return tuple(fault for job in self.jobs for fault in job.faults)

    def messages(self) -> list[str]:
        """Return every fault as FILE:LINE: field: message."""
        return [f"{self.name}:{fault}" for fault in self.faults]


class FaultyFile(DtjError):
    """The error for a job file with faults. The message lists one fault per line."""

    def __init__(self, file: JobFile) -> None:
        count = len(file.faults)
        faults = "1 fault" if count == 1 else f"{count} faults"
        super().__init__("\n".join([f"{file.name} has {faults}", *file.messages()]))
        self.file = file


def read_job_file(text: str, name: str) -> JobFile:
    """Read the jobs of a file of YAML or JSON documents, with every fault of each.

    name: of the file, for messages. Raises Unusable for a file that is not YAML, or that has no job.
    """
    jobs, others = [], []
    for document in read_documents(text, name):
        if _is_job(document.data):
            jobs.append(_checked(document))
        elif document.data is not None:
            others.append(OtherObject(document.line, _called(document.data)))
    if not jobs:
        names = ", ".join(other.name for other in others)
        raise Unusable(
            f"{name}: no {KIND} in it" + (f", only {names}" if names else ": the file is empty"),
            "`dtj new` writes a new job file, `dtj convert` writes a job file from a Kubeflow job",
        )
    return JobFile(name, tuple(jobs), tuple(others))


def read_one_job(text: str, name: str) -> tuple[Manifest, Job]:
    """Return the only job of a file, as the manifest that the file has and as a `Job`.

    Raises Unusable as `read_job_file`, and for a file with several jobs. Raises FaultyFile for a job with faults.
    """
    file = read_job_file(text, name)
    if len(file.jobs) > 1:
        lines = ", ".join(str(job.line) for job in file.jobs)
        raise Unusable(f"{name}: has {len(file.jobs)} jobs (lines {lines}); give a file with exactly one job")
    (only,) = file.jobs
    if only.faults or only.job is None:
        raise FaultyFile(file)
    return only.manifest, only.job


def _is_job(data: Any) -> bool:
    """Whether an object is meant to be a job. A misspelt kind or group is then reported as a fault of the job."""
    if not isinstance(data, dict):
        return False
    kind, group = data.get("kind"), str(data.get("apiVersion", "")).split("/", 1)[0]
    return kind == KIND or group == GROUP or (kind is None and "spec" in data)


def _called(data: Any) -> str:
    if not isinstance(data, dict):
        return f"a {type(data).__name__}"
    metadata = data.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return " ".join(str(word) for word in (data.get("kind", "an object without kind"), name) if word)


def _checked(document: Document) -> FileJob:
    manifest = document.data
    missing = [
        Fault(key, f"required: {value}")
        for key, value in (("apiVersion", API_VERSION), ("kind", KIND))
        if manifest.get(key) is None
    ]
    job, wrong = check(_as_the_author_gave_it(manifest))
    faults = [
        *(FileFault(line, fault.field, fault.message) for line, fault in document.repeated),
        *(FileFault(document.line_of(f.field, f.place), f.field, f.message) for f in (*missing, *wrong)),
    ]
    return FileJob(document.line, manifest, job, tuple(sorted(faults, key=lambda fault: fault.line)))


def _as_the_author_gave_it(manifest: Manifest) -> Manifest:
    """Remove the fields that only the API server sets: a file from `kubectl get -o yaml` has them."""
    metadata = manifest.get("metadata")
    if isinstance(metadata, dict):
        metadata = {key: value for key, value in metadata.items() if key not in ("uid", "generation")}
    given = {
        key: value
        for key, value in manifest.items()
        if key not in ("status", "metadata") and value is not None
    }
    return given | ({} if metadata is None else {"metadata": metadata})
