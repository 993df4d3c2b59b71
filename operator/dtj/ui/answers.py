"""What the API of the page answers. The SDK's types stand in it where there are some."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from dtj.api.status import Failure, ProgressStatus


class Answer(BaseModel):
    """JSON with names as Kubernetes writes them."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True)


class About(Answer):
    """Where the page's jobs are."""

    version: str
    """Of dtj."""
    place: str
    """`cluster`, `bucket` (the history of a bucket alone) or `machine` (the jobs of `dtj run`)."""
    namespace: str | None
    """The namespace of the jobs, in which new ones are made unless they name one; null: all namespaces."""
    context: str | None
    """Of the kubeconfig; null: the current one, or none."""
    history: str | None
    """The `artifacts.uri` that the user named for the jobs of the past."""
    changes: bool
    """Whether the page can create and change jobs."""
    strategies: list[str]


class JobRow(Answer):
    """A job in the list."""

    namespace: str
    name: str
    uid: str
    phase: str
    """As in the status; `Deleting` after the request to delete the job; `New` before the operator has seen it;
    `Unknown` if the job is gone and its end was not recorded."""
    state: str
    """As in the status: the phase, or in its place the lasting condition that a person must know; or `Deleting`,
    `New` or `Unknown` as in `phase`."""
    reason: str | None
    """Why the job is in this state, in one line; null where the state says all."""
    gpus: int | None
    """Accelerators that the job asks for, over all replicas; null for none, or if the record does not say."""
    sentence: str
    """The state in the words of a person."""
    strategy: str | None
    workers: int | None
    attempt: int
    restarts: int
    created: str | None
    """RFC 3339, UTC."""
    ended: str | None
    """RFC 3339, UTC; null while the job has not ended."""
    suspended: bool
    """Whether the spec asks for the suspension."""
    arguments: dict[str, str]
    """Options of the program's command line by name."""
    progress: ProgressStatus | None
    past: bool
    """Whether the cluster no longer has the job: all is as the bucket recorded it."""


class PodRow(Answer):
    """A pod of a job."""

    name: str
    role: str
    index: int
    ranks: str
    node: str | None
    state: str
    attempt: int


class EventRow(Answer):
    """An event of a job or of one of its pods."""

    time: str | None
    type: str
    reason: str
    message: str
    count: int
    object: str


class Line(Answer):
    """A line of a command's equivalent of a button."""

    action: str
    """Name of the action, as in the path of its request."""
    command: str
    """What does the same in a shell."""


class JobView(Answer):
    """All about one job but its curves, logs and artifacts."""

    row: JobRow
    note: str | None
    """Where all of it was read, if not on the cluster."""
    failure: Failure | None
    conditions: list[dict[str, Any]]
    pods: list[PodRow]
    more_pods: int
    """Pods that the list leaves out."""
    events: list[EventRow]
    artifacts: dict[str, Any] | None
    """`status.artifacts`."""
    tensorboard: dict[str, Any] | None
    """`status.tensorboard`."""
    code: str | None
    """The digest of `spec.code`, and its commit; null if the program is in the image."""
    spec: dict[str, Any]
    """Secrets masked."""
    yaml: str
    """The job as one would write it: without status and what the API server sets, secrets masked."""
    commands: list[Line]


class LogAnswer(Answer):
    """Lines of a job's output."""

    sources: list[str]
    lines: list[tuple[str, str, str | None]]
    """Source, text and time of each line."""
    cut: bool
    """Whether lines are left out."""


class Artifact(Answer):
    """A file in the job's bucket."""

    key: str
    size: int


class FaultRow(Answer):
    """A fault of a job file."""

    line: int
    field: str
    message: str


class Checked(Answer):
    """What `dtj validate` says of a job file."""

    faults: list[FaultRow]
    sentence: str


class Done(Answer):
    """What an action did."""

    message: str


class Written(Answer):
    """A job file."""

    text: str
