"""The record that a job leaves in its bucket: `run.json`, `end.json`, and the job's entry in the index. Pure.

A pod that claims the job's prefix writes `run.json`. The pod whose success is the job's success, or else the
operator's record pod, writes `end.json`. `docs/history.md` describes the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple, NotRequired, TypedDict, cast

RUN_FILE = "run.json"
END_FILE = "end.json"
INDEX = "_index"
"""The folder of the index, below the job's `artifacts.uri`."""
VERSION = 1
"""The version of both files. Readers ignore unknown fields, and refuse later versions."""

ENV_HISTORY = "DTJ_HISTORY"
"""A History as JSON, in the pods that write it; unset: nothing is written."""
ENV_END = "DTJ_END"
"""The content of END_FILE that the record pod writes."""
RECORD_POD = "record"
"""The value of `by` in an END_FILE that a record pod wrote."""

NOTHING_KEPT = "the program left neither a checkpoint nor a model below /dtj"
"""The message of the condition Succeeded of a job whose bucket has neither a checkpoint nor a model."""

_LATEST = 9_999_999_999
# Underscores separate the parts of a key: no Kubernetes name contains an underscore.
_KEY = re.compile(
    rf"{INDEX}/(?P<inverted>[0-9]{{10}})_(?P<namespace>[^_/]+)_(?P<name>[^_/]+)_(?P<uid>[^_/]+)"
)
_ENDED = ("Succeeded", "Failed")


class IndexEntry(NamedTuple):
    """A job in the index."""

    created: datetime
    namespace: str
    name: str
    uid: str

    @property
    def prefix(self) -> str:
        """The job's own prefix below `artifacts.uri`."""
        return _prefix(self.namespace, self.name, self.uid)


def _prefix(namespace: str, name: str, uid: str) -> str:
    return f"{namespace}/{name}-{uid.split('-', 1)[0]}"


def index_key(created: datetime, namespace: str, name: str, uid: str) -> str:
    """Return the key of a job in the index, below `artifacts.uri`. A listing begins with the newest job.

    created: when the job was created, with a time zone.
    """
    inverted = min(max(_LATEST - int(created.timestamp()), 0), _LATEST)
    return f"{INDEX}/{inverted:010d}_{namespace}_{name}_{uid}"


def parsed_index_key(key: str) -> IndexEntry | None:
    """Return the job of a key of the index, or None for another key. `key` begins with INDEX."""
    found = _KEY.fullmatch(key)
    if found is None:
        return None
    created = datetime.fromtimestamp(_LATEST - int(found["inverted"]), UTC)
    return IndexEntry(created, found["namespace"], found["name"], found["uid"])


class AttemptBegun(TypedDict):
    """An attempt that a pod has begun. `time`: RFC 3339."""

    attempt: int
    time: str


class GitState(TypedDict):
    """The commit of the folder that became the code of a job."""

    commit: str
    """In hex digits."""
    branch: NotRequired[str]
    """Absent for a detached HEAD."""
    remote: NotRequired[str]
    """The URL without credentials."""
    modified: bool
    """Whether the files of the archive differ from the commit."""


class CodeRecord(TypedDict):
    """The archive of `spec.code`."""

    digest: str
    git: NotRequired[GitState]


class RunRecord(TypedDict):
    """The content of RUN_FILE. Times are RFC 3339 in UTC."""

    version: int
    namespace: str
    name: str
    uid: str
    created: str
    specDigest: str
    """SHA-256 in hex of the job's spec as canonical JSON."""
    strategy: str
    world: int
    """The number of ranks, or of the replicas that train where a strategy has no ranks."""
    attempts: list[AttemptBegun]
    code: NotRequired[CodeRecord]
    """Absent for a job whose program is in the image."""


class RecordedPod(TypedDict):
    """A pod of the job, and the node that it ran on."""

    name: str
    node: NotRequired[str]


class EndRecord(TypedDict):
    """The content of END_FILE."""

    version: int
    uid: str
    time: str
    by: str
    """The pod that wrote the file: `<role>-<index>`, or RECORD_POD."""
    strategy: str
    world: int
    """The same number as in RUN_FILE, so that a list of jobs needs one request for each job."""
    workers: NotRequired[int]
    """The number of workers; absent for a job that has none."""
    pods: list[RecordedPod]
    podsLeftOut: NotRequired[int]
    """The number of pods that the list has no room for."""
    status: dict[str, Any]
    """The job's `.status` as in the API."""


@dataclass(frozen=True, kw_only=True)
class History:
    """What the operator knows of a job, and its pods do not. Times are RFC 3339."""

    namespace: str
    name: str
    uid: str
    created: str
    spec_digest: str
    strategy: str
    world: int
    restarts: Mapping[str, int] = field(default_factory=dict)
    """`status.restarts` when the attempt began."""
    workers: int | None = None
    """The number of workers; None for a job without workers."""
    gpus: int | None = None
    """`status.gpus`: the accelerators that the job asks for; None for none."""
    deciders: str | None = None
    """The pods whose success is the job's success, in words; None: the pod that records it."""
    start: str | None = None
    """`status.startTime` when the attempt began; None for the first attempt."""
    code: CodeRecord | None = None
    """The archive of `spec.code`; None for a job whose program is in the image."""

    @property
    def prefix(self) -> str:
        """The job's own prefix below `artifacts.uri`."""
        return _prefix(self.namespace, self.name, self.uid)

    @property
    def index_key(self) -> str:
        """The job's key in the index."""
        return index_key(datetime.fromisoformat(self.created), self.namespace, self.name, self.uid)

    def to_json(self) -> str:
        """Return these fields as JSON, the value of the variable ENV_HISTORY."""
        given = {_FIELDS[name]: value for name, value in vars(self).items() if value is not None}
        return json.dumps(given, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> History:
        """Read the value of ENV_HISTORY; raises ValueError, which names the invalid field.

        Fields of a later release are ignored.
        """
        content = json.loads(text)
        if not isinstance(content, dict):
            raise ValueError("not a JSON object")
        texts = dict[str, str]()
        for name in _FIELDS.keys() - {"world", "restarts", "workers", "gpus", "code"}:
            value = content.get(_FIELDS[name])
            if value is None and name in _OPTIONAL:
                continue
            if not isinstance(value, str) or not value:
                raise ValueError(f"{_FIELDS[name]} must be a string, not {json.dumps(value)}")
            texts[name] = value
        world, restarts = _whole(content, "world"), content.get("restarts") or {}
        workers, gpus = (
            None if content.get(name) is None else _whole(content, name) for name in ("workers", "gpus")
        )
        if not isinstance(restarts, dict) or not all(type(count) is int for count in restarts.values()):
            raise ValueError(f"restarts must be an object of whole numbers, not {json.dumps(restarts)}")
        code = content.get("code")
        if code is not None and not (isinstance(code, dict) and isinstance(code.get("digest"), str)):
            raise ValueError(f"code must be an object with a digest, not {json.dumps(code)}")
        try:
            zone = datetime.fromisoformat(content["created"]).tzinfo
        except ValueError:
            zone = None
        if zone is None:
            raise ValueError(f"created must be a time with a zone, not {json.dumps(content['created'])}")
        return cls(
            world=world,
            workers=workers,
            gpus=gpus,
            restarts=restarts,
            code=cast("CodeRecord | None", code),
            **texts,
        )


_FIELDS = {
    "namespace": "namespace",
    "name": "name",
    "uid": "uid",
    "created": "created",
    "spec_digest": "specDigest",
    "strategy": "strategy",
    "world": "world",
    "restarts": "restarts",
    "workers": "workers",
    "gpus": "gpus",
    "deciders": "deciders",
    "start": "start",
    "code": "code",
}
_OPTIONAL = ("deciders", "start")


def _whole(content: Mapping[str, Any], name: str) -> int:
    value = content.get(name)
    if type(value) is not int or value < 0:
        raise ValueError(f"{name} must be a whole number of at least 0, not {json.dumps(value)}")
    return value


def stored_object(content: bytes | None) -> dict[str, Any]:
    """Return the object in a stored file; empty for a file that is absent or is no JSON object."""
    try:
        found = json.loads(content or b"{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def run_record(history: History, stored: Mapping[str, Any], attempt: int | None, time: str) -> RunRecord:
    """Return the content of RUN_FILE.

    stored: the file as it is. attempt: an attempt that has just begun; None: no attempt. time: RFC 3339.
    """
    given = stored.get("attempts")
    known = [each for each in given if _is_attempt(each)] if isinstance(given, list) else []
    if attempt is not None and all(each["attempt"] != attempt for each in known):
        known.append({"attempt": attempt, "time": time})
    record: RunRecord = {
        "version": VERSION,
        "namespace": history.namespace,
        "name": history.name,
        "uid": history.uid,
        "created": history.created,
        "specDigest": history.spec_digest,
        "strategy": history.strategy,
        "world": history.world,
        "attempts": known,
    }
    return record if history.code is None else {**record, "code": history.code}


def _is_attempt(entry: object) -> bool:
    return (
        isinstance(entry, dict) and type(entry.get("attempt")) is int and isinstance(entry.get("time"), str)
    )


def begun_at(run: Mapping[str, Any]) -> str | None:
    """Return when the first attempt in a RUN_FILE began; None where the file names no attempt."""
    attempts = run.get("attempts")
    found = [each["time"] for each in attempts if _is_attempt(each)] if isinstance(attempts, list) else []
    return found[0] if found else None


def success_record(
    history: History, by: str, attempt: int, begun: str | None, time: str, report: Mapping[str, Any]
) -> EndRecord:
    """Return the END_FILE of a job that has just succeeded, as the pod whose success is the job's success writes it.

    by: `<role>-<index>` of the pod. begun: when the first attempt began; the start in `history` takes precedence.
    time: RFC 3339. report: the pod's last progress, artifacts and restarts in place.
    """
    ended, pod = _in_seconds(time), f"{history.name}-{by}"
    message = f"{history.deciders or pod} ended with exit code 0"
    artifacts = report.get("artifacts")
    if artifacts is not None and not artifacts.get("checkpoint") and not artifacts.get("model"):
        message += f"; {NOTHING_KEPT}"

    def condition(kind: str, reason: str, message: str) -> dict[str, str]:
        return {
            "type": kind,
            "status": "True",
            "reason": reason,
            "message": message,
            "lastTransitionTime": ended,
        }

    status: dict[str, Any] = {
        "phase": "Succeeded",
        "conditions": [
            condition("Succeeded", "JobSucceeded", message),
            condition("Recorded", "EndRecorded", f"{pod} wrote {END_FILE}"),
        ],
        "attempt": attempt,
        "restarts": _with_in_place(history.restarts, report.get("restarts")),
        "completionTime": ended,
    }
    if history.gpus is not None:
        status["gpus"] = history.gpus
    if (start := history.start or begun) is not None:
        status["startTime"] = _in_seconds(start)
    status |= {name: report[name] for name in ("progress", "artifacts") if report.get(name)}
    return end_record(history, by, time, [], status)


def _with_in_place(before: Mapping[str, int], in_place: Any) -> dict[str, int]:
    """Return `status.restarts` plus the present attempt's restarts in place, which the operator may not have counted.

    before: `status.restarts` at the begin of the attempt. in_place: the RoundRestarts of a report; None: none.
    """
    count = in_place.get("count") if isinstance(in_place, Mapping) else None
    if type(count) is not int or count <= 0:
        return dict(before)
    return {**before, **{name: before.get(name, 0) + count for name in ("application", "inPlace")}}


def _in_seconds(time: str) -> str:
    """Return a time in whole seconds, as the Kubernetes API writes it. A text that is no time is returned as it
    is.
    """
    try:
        return datetime.fromisoformat(time).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        return time


def end_record(
    history: History, by: str, time: str, pods: Sequence[RecordedPod], status: Mapping[str, Any]
) -> EndRecord:
    """Return the content of END_FILE. time: RFC 3339."""
    record: EndRecord = {
        "version": VERSION,
        "uid": history.uid,
        "time": time,
        "by": by,
        "strategy": history.strategy,
        "world": history.world,
        "pods": list(pods),
        "status": dict(status),
    }
    return record if history.workers is None else {**record, "workers": history.workers}


def is_passing(stored: Mapping[str, Any]) -> bool:
    """Return whether a stored END_FILE has a state that the next attempt ends, such as a suspension."""
    status = stored.get("status")
    return isinstance(status, dict) and status.get("phase") not in _ENDED


def replaces(stored: Mapping[str, Any], record: EndRecord) -> bool:
    """Return whether a record may replace the stored END_FILE, which is empty where there is none.

    An end of a later attempt stays. The end that the operator gives to an attempt replaces that of a pod: a pod of a
    lost node may succeed after the operator has given the job up. The suspension of a job replaces no end of the
    attempt that follows.
    """
    if stored.get("uid") != record["uid"]:
        return True
    there = stored.get("status")
    before: Mapping[str, Any] = there if isinstance(there, dict) else {}
    old, new = _attempt(before), _attempt(record["status"])
    if old != new or before.get("phase") not in _ENDED:
        return old <= new
    return record["by"] == RECORD_POD and record["status"].get("phase") in _ENDED


def _attempt(status: Mapping[str, Any]) -> int:
    attempt = status.get("attempt")
    return attempt if type(attempt) is int else 0
