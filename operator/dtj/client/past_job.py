"""A job of the past as its bucket shows it: run.json and end.json. All functions are pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from dtj.api.git_annotations import (
    ANNOTATION_BRANCH,
    ANNOTATION_COMMIT,
    ANNOTATION_MODIFIED,
    ANNOTATION_REMOTE,
    git_annotations,
    git_state_of,
)
from dtj.api.identity import API_VERSION, KIND
from dtj.api.job import Manifest, read_status
from dtj.api.spec import ROLES
from dtj.api.status import JobStatus, Phase
from dtj.api.strategies import RULES
from dtj.api.strategy import StrategyRules
from dtj_trainer.contract.history import END_FILE, RUN_FILE, GitState, IndexEntry

if TYPE_CHECKING:
    from dtj.client.resource import DistributedTrainingJob

VERSION = 1
"""The version of run.json and end.json that this release reads."""
MOST_RECORD_BYTES = 1 << 20
"""The largest number of bytes that are read of a record. A record has a few kilobytes."""
_WORKER = "worker"


class Unreadable(ValueError):
    """A record can't be read. The message says why."""


@dataclass(frozen=True)
class PodPlace:
    """A pod of a past job."""

    name: str
    node: str | None


@dataclass(frozen=True)
class EndRecord:
    """end.json: how a job ended."""

    time: datetime
    """The time of the record."""
    by: str
    """The pod that wrote the record."""
    pods: tuple[PodPlace, ...]
    """The pods of the last attempt, if known."""
    status: JobStatus
    """The status that the job's object had."""
    strategy: str | None
    workers: int | None


@dataclass(frozen=True)
class RunRecord:
    """run.json: the spec's digest, the strategy, the attempts and the code of a job."""

    created: datetime
    spec_digest: str
    """SHA-256 of the job's spec as canonical JSON."""
    strategy: str
    world: int
    """The number of ranks."""
    attempts: tuple[tuple[int, datetime], ...]
    """Number and begin of each attempt."""
    code: str | None = None
    """The digest of the job's code; None: the program was in the image."""
    git: GitState | None = None
    """The commit of the code, if it was known."""


@dataclass(frozen=True)
class PastJob:
    """A job in the history of a bucket."""

    entry: IndexEntry
    uri: str
    """The job's own prefix in the bucket."""
    end: EndRecord | None = None
    """The record of the job's end; None if there is no record, or it can't be read."""
    fault: str | None = None
    """Why the record of the end can't be read."""
    last_sign: datetime | None = None
    """The time of the newest checkpoint or line of metrics; only of a job without a recorded end."""
    present: DistributedTrainingJob | None = None
    """The job's object, if the cluster still has the object. The object takes precedence over the records."""

    @property
    def name(self) -> str:
        """The name of the job."""
        return self.entry.name

    @property
    def namespace(self) -> str:
        """The namespace of the job."""
        return self.entry.namespace

    @property
    def uid(self) -> str:
        """The uid, which distinguishes the job from other jobs of the same name."""
        return self.entry.uid

    @property
    def created(self) -> datetime:
        """When the job's object was created."""
        return self.entry.created

    @property
    def status(self) -> JobStatus:
        """The status of the object, else the recorded status; empty if no end is recorded."""
        if self.present is not None:
            return self.present.status
        return self.end.status if self.end else JobStatus()

    @property
    def phase(self) -> Phase | None:
        """The phase; None if no end is recorded."""
        return self.status.phase

    @property
    def strategy(self) -> str | None:
        """The strategy; None if the record does not show it."""
        if self.present is not None:
            return self.present.spec.strategy
        return self.end.strategy if self.end else None

    @property
    def workers(self) -> int | None:
        """The number of workers; None if the record does not show it."""
        if self.present is not None:
            worker = self.present.spec.replica_specs.worker
            return worker.replicas if worker else None
        return self.end.workers if self.end else None

    @property
    def ended(self) -> datetime | None:
        """When the job ended; None if no end is recorded, as of a suspended job."""
        if completed := self.status.completion_time:
            return datetime.fromisoformat(completed)
        recorded = self.end is not None and self.present is None and self.status.finished
        return self.end.time if self.end is not None and recorded else None

    @property
    def seconds(self) -> float | None:
        """The seconds from the start of the job to its end."""
        if self.ended is None or self.status.start_time is None:
            return None
        return (self.ended - datetime.fromisoformat(self.status.start_time)).total_seconds()

    @property
    def state(self) -> str:
        """A sentence about a job without a recorded end; empty for other jobs."""
        if self.present is not None or self.end is not None:
            return ""
        if self.fault:
            return self.fault
        if self.last_sign is None:
            return "no end recorded, and no sign of the training"
        return f"no end recorded; last sign {written(self.last_sign)}"

    def with_present(self, present: DistributedTrainingJob | None) -> PastJob:
        """Return the job with its object on the cluster."""
        return replace(self, present=present)


def read_end(content: bytes, uid: str) -> EndRecord:
    """Read end.json. Unknown fields are ignored. Raises Unreadable.

    uid: the uid that the record must have.
    """
    data = _object(content, END_FILE, uid)
    status = data.get("status")
    if not isinstance(status, dict):
        raise Unreadable(f"{END_FILE} can't be read: status must be an object")
    time = _time(data, "time", END_FILE)
    pods = tuple(_pods(data.get("pods")))
    by = data.get("by")
    by = by if isinstance(by, str) else ""
    read, workers = read_status(status), data.get("workers")
    _check_times(read)
    if not isinstance(workers, int):
        of_workers = read.replica_statuses.get(_WORKER)
        workers = of_workers.desired if of_workers else None
    return EndRecord(time, by, pods, read, _strategy(data, read, by, pods), workers)


def read_run(content: bytes, uid: str) -> RunRecord:
    """Read run.json. Unknown fields are ignored. Raises Unreadable. uid: as for `read_end`."""
    data = _object(content, RUN_FILE, uid)
    attempts = tuple(
        (item["attempt"], _time(item, "time", RUN_FILE))
        for item in _objects(data.get("attempts"))
        if isinstance(item.get("attempt"), int)
    )
    world, code = data.get("world"), data.get("code")
    code = code if isinstance(code, dict) else {}
    digest, git = code.get("digest"), code.get("git")
    return RunRecord(
        _time(data, "created", RUN_FILE),
        str(data.get("specDigest") or ""),
        str(data.get("strategy") or ""),
        world if isinstance(world, int) else 0,
        attempts,
        digest if isinstance(digest, str) else None,
        _git_state(git) if isinstance(git, dict) else None,
    )


def recorded_uid(content: bytes | None) -> str:
    """Return the uid in run.json or end.json; empty for a content without one."""
    try:
        data = json.loads(content or b"{}")
    except (ValueError, RecursionError):
        return ""
    uid = data.get("uid") if isinstance(data, dict) else None
    return uid if isinstance(uid, str) else ""


def manifest_of(past: PastJob, job_file: Mapping[str, Any] | None, run: RunRecord | None = None) -> Manifest:
    """Return the manifest of a past job, with the recorded status.

    job_file: the content of job.yaml. Without it, the spec has what the record shows, and an empty image.
    """
    own = (job_file or {}).get("metadata")
    metadata = {
        "name": past.name,
        "namespace": past.namespace,
        **(own if isinstance(own, dict) else {}),
        "uid": past.uid,
        "creationTimestamp": written(past.created),
    }
    if run and run.git:
        metadata["annotations"] = git_annotations(run.git)
    spec = (job_file or {}).get("spec") or {
        "strategy": past.strategy if past.strategy in RULES else next(iter(RULES)),
        "image": "unknown",
        "replicaSpecs": {_WORKER: {"replicas": past.workers or 1}},
    }
    status = past.end.status.model_dump(by_alias=True, mode="json", exclude_unset=True) if past.end else {}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec, "status": status}


def written(time: datetime) -> str:
    """Return a time as the API writes times."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _object(content: bytes, name: str, uid: str) -> dict[str, Any]:
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"{name} can't be read: {error}") from None
    version = data.get("version") if isinstance(data, dict) else None
    if not isinstance(data, dict) or not isinstance(version, int):
        raise Unreadable(f"{name} can't be read: it is not a JSON object with a version")
    if version > VERSION:
        raise Unreadable(f"{name} was written by a later release of dtj: upgrade dtj")
    if data.get("uid") != uid:
        raise Unreadable(f"{name} belongs to another job, with uid {data.get('uid')}")
    return data


def _time(data: Mapping[str, Any], field: str, name: str) -> datetime:
    try:
        time = datetime.fromisoformat(data[field])
    except (KeyError, TypeError, ValueError):
        raise Unreadable(f"{name} can't be read: {field} is not an RFC 3339 time") from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _git_state(data: Mapping[str, Any]) -> GitState | None:
    """Read the commit of the code from a record. Like annotations, the values are checked: anybody may write them."""
    named = (ANNOTATION_COMMIT, ANNOTATION_BRANCH, ANNOTATION_REMOTE)
    given = {name: data.get(name.rpartition("-")[2]) for name in named}
    return git_state_of({**given, ANNOTATION_MODIFIED: "false" if data.get("modified") is False else "true"})


def _check_times(status: JobStatus) -> None:
    """Raise Unreadable if a time in a status is not a time. No API server has checked the times of a record."""
    times = {"startTime": status.start_time, "completionTime": status.completion_time}
    times |= {f"conditions.{each.type}": each.last_transition_time for each in status.conditions}
    for field, text in times.items():
        try:
            usable = text is None or datetime.fromisoformat(text).tzinfo is not None
        except ValueError:
            usable = False
        if not usable:
            raise Unreadable(f"{END_FILE} can't be read: status.{field} is not an RFC 3339 time")


def _objects(data: Any) -> list[dict[str, Any]]:
    return [item for item in data if isinstance(item, dict)] if isinstance(data, list) else []


def _pods(data: Any) -> Iterable[PodPlace]:
    for item in _objects(data):
        if isinstance(name := item.get("name"), str):
            node = item.get("node")
            yield PodPlace(name, node if isinstance(node, str) else None)


def _strategy(data: Mapping[str, Any], status: JobStatus, by: str, pods: Iterable[PodPlace]) -> str | None:
    """Return the strategy that a record names, or else the only strategy that has the roles of the record's pods.

    The list of pods may be incomplete, so a missing role excludes no strategy.
    """
    if isinstance(named := data.get("strategy"), str):
        return named
    roles = {role for role in map(_role, (by, *(pod.name for pod in pods))) if role in ROLES}
    roles |= status.replica_statuses.keys()
    decided = _role(by) if status.phase is Phase.SUCCEEDED else ""
    fitting = [
        name
        for name, rules in RULES.items()
        if roles <= rules.roles.keys()
        and all(role in status.replica_statuses for role in _always(rules) if status.replica_statuses)
        and (decided not in ROLES or rules.roles[decided].decides)
    ]
    return fitting[0] if len(fitting) == 1 else None


def _always(rules: StrategyRules) -> set[str]:
    """Return the roles that every job of a strategy has."""
    replaceable = {role.instead_of for role in rules.roles.values()}
    return {name for name, role in rules.roles.items() if role.required or role.implied} - replaceable


def _role(pod: str) -> str:
    """Return the role of a pod, by its name or by `<role>-<index>`."""
    return pod.rpartition("-")[0].rpartition("-")[2]
