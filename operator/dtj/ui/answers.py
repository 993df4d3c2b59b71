"""The answers of the page's API, as JSON. Types of the SDK and of the job's status are used unchanged.

The routes in `jobs`, `artifacts`, `ranks` and `reports` return them; operator/page/src/api.ts reads them.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from dtj.api.status import Failure, ProgressStatus


class ApiAnswer(BaseModel):
    """JSON with names as Kubernetes writes them."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True)


class About(ApiAnswer):
    """The source of the page's jobs."""

    version: str
    """The version of dtj."""
    place: str
    """`cluster`, `bucket` (the history of a bucket alone) or `machine` (the jobs of `dtj run`)."""
    namespace: str | None
    """The namespace of the listed jobs, and of a new job that names none; null: all namespaces."""
    context: str | None
    """The context of the kubeconfig; null: the current one, or none."""
    history: str | None
    """The `artifacts.uri` that the user named for the jobs of the past."""
    changes: bool
    """Whether the page can create and change jobs."""
    strategies: list[str]


class JobRow(ApiAnswer):
    """A job in the list."""

    namespace: str
    name: str
    uid: str
    phase: str
    """The phase in the status; `Deleting` after the request to delete the job; `New` before the operator has seen the
    job; `Unknown` if the job is deleted and its end was not recorded."""
    state: str
    """The state in the status: the phase, or instead a word for a lasting problem; or `Deleting`, `New` or `Unknown`
    as in `phase`."""
    reason: str | None
    """The reason of the state, in one line; null where the state needs none."""
    gpus: int | None
    """The number of accelerators that all replicas request; null for none, or if the record has no number."""
    sentence: str
    """The state of the job in one sentence."""
    strategy: str | None
    workers: int | None
    attempt: int
    restarts: int
    created: str | None
    """RFC 3339, UTC."""
    ended: str | None
    """RFC 3339, UTC; null while the job has not ended."""
    suspended: bool
    """Whether spec.runPolicy.suspend is true."""
    arguments: dict[str, str]
    """Options of the program's command line by name."""
    progress: ProgressStatus | None
    past: bool
    """Whether the cluster no longer has the job. The bucket then has the record that the row shows."""


class PodRow(ApiAnswer):
    """A pod of a job."""

    name: str
    role: str
    index: int
    ranks: str
    node: str | None
    state: str
    attempt: int


class EventRow(ApiAnswer):
    """An event of a job or of one of its pods."""

    time: str | None
    type: str
    reason: str
    message: str
    count: int
    object: str


class ShellCommand(ApiAnswer):
    """The command of a shell that does what a button of the page does."""

    action: str
    """Name of the action, as in the path of its request."""
    command: str
    """The command line."""


class JobView(ApiAnswer):
    """One job, without its curves, logs and artifacts."""

    row: JobRow
    note: str | None
    """A sentence about the source, if that is not the cluster."""
    failure: Failure | None
    conditions: list[dict[str, Any]]
    pods: list[PodRow]
    more_pods: int
    """The number of pods that the list leaves out."""
    events: list[EventRow]
    artifacts: dict[str, Any] | None
    """`status.artifacts`."""
    tensorboard: dict[str, Any] | None
    """`status.tensorboard`."""
    code: str | None
    """The digest of `spec.code`, and its commit; null if the program is in the image."""
    spec: dict[str, Any]
    """The spec of the job, with secrets masked."""
    yaml: str
    """The job file: without the status and the fields that the API server sets, and with secrets masked."""
    commands: list[ShellCommand]


class LogAnswer(ApiAnswer):
    """Lines of a job's output."""

    sources: list[str]
    lines: list[tuple[str, str, str | None]]
    """Source, text and time of each line."""
    cut: bool
    """Whether lines are left out."""


class Artifact(ApiAnswer):
    """A file in the job's bucket."""

    key: str
    size: int


class FaultRow(ApiAnswer):
    """A fault of a job file."""

    line: int
    field: str
    message: str


class ValidationAnswer(ApiAnswer):
    """The result of `dtj validate` for a job file."""

    faults: list[FaultRow]
    sentence: str


class Done(ApiAnswer):
    """The result of an action, in one sentence."""

    message: str


class JobFileAnswer(ApiAnswer):
    """A job file."""

    text: str
