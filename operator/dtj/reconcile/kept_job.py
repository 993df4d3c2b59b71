"""What the operator keeps of a job: texts instead of data, because data takes ten to thirty times as much memory."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dtj.api.checking import beyond_limits
from dtj.api.git_annotations import git_annotations, git_state_of
from dtj.api.job import Fault
from dtj.api.mpijob import LONGEST_QUEUE, QUEUE_ANNOTATIONS, QUEUE_LABELS
from dtj.api.spec import MOST_REPLICAS
from dtj.api.status import Phase
from dtj.api.unreadable import NOT_KEPT, digest_of
from dtj.reconcile.patch import merged

_METADATA = (
    "name",
    "namespace",
    "uid",
    "generation",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
)
_MOST_ROLES = 8
_ENDED = (Phase.SUCCEEDED.value, Phase.FAILED.value)


@dataclass(frozen=True, slots=True, eq=False)
class KeptJob(Mapping[str, Any]):
    """A manifest with the fields that a pass reads. Each access to spec or status decodes its text."""

    metadata: Mapping[str, Any]
    spec: bytes
    status: bytes
    ended: bool
    replicas: int
    """Replicas of all roles, as spec or status has them, whichever are more."""
    not_kept: Fault | None = None
    """Why `spec` has only the parts that an unreadable job needs."""

    def __getitem__(self, part: str) -> Any:
        match part:
            case "metadata":
                return self.metadata
            case "spec":
                return json.loads(self.spec)
            case "status":
                return json.loads(self.status)
            case _ if part == NOT_KEPT and self.not_kept is not None:
                return self.not_kept
        raise KeyError(part)

    def __iter__(self) -> Iterator[str]:
        yield from ("metadata", "spec", "status")
        if self.not_kept is not None:
            yield NOT_KEPT

    def __len__(self) -> int:
        return 4 if self.not_kept else 3


def keep(manifest: Mapping[str, Any]) -> KeptJob:
    """Return what the operator keeps of a job. The spec of a job beyond the limits of a check is not kept."""
    # Drop managedFields, about half of a job, and the labels and annotations that the operator does not read.
    of_job = manifest["metadata"]
    metadata: dict[str, Any] = {field: of_job.get(field) for field in _METADATA}
    for kind, names in (("labels", QUEUE_LABELS), ("annotations", QUEUE_ANNOTATIONS)):
        given = of_job.get(kind) or {}
        metadata[kind] = {name: given[name][: LONGEST_QUEUE + 1] for name in names if name in given}
    metadata["annotations"] |= git_annotations(git_state_of(of_job.get("annotations") or {}))
    spec, status = (manifest.get(part) or {} for part in ("spec", "status"))
    replicas = max(_number(spec, "replicaSpecs", "replicas"), _number(status, "replicaStatuses", "desired"))
    excess = beyond_limits({"metadata": metadata, "spec": spec})
    if excess is not None:
        spec = digest_of(spec)
    ended = isinstance(status, dict) and status.get("phase") in _ENDED
    return KeptJob(metadata, _text(spec), _text(status), ended, replicas, excess)


def with_status(job: Mapping[str, Any], answer: Mapping[str, Any], patch: Mapping[str, Any]) -> KeptJob:
    """Return what is kept of a job after a change of its status.

    job: the job before the change. answer: what the API server returned: the job, or its metadata alone.
    """
    status = answer["status"] if "status" in answer else merged(job.get("status"), patch)
    changed = {"metadata": answer["metadata"], "status": status}
    if not isinstance(job, KeptJob):
        return keep({**job, **changed})
    # The change named the version of the job: the spec is as it was.
    kept = keep(changed)
    replicas = max(job.replicas, kept.replicas)
    return KeptJob(kept.metadata, job.spec, kept.status, kept.ended, replicas, job.not_kept)


def without_spec(job: KeptJob, why: Fault) -> KeptJob:
    """Return the job without its spec."""
    return replace(job, spec=_text(digest_of(job["spec"])), not_kept=why)


def weight(job: KeptJob) -> int:
    """Return the bytes that the operator holds for a job: its texts and, until it ends, the data of its spec.

    The same job has the same weight in each process.
    """
    texts = len(job.spec) + len(job.status)
    return texts if job.ended else texts + _held(job["spec"])


def _number(part: Any, roles: str, field: str) -> int:
    """Return the sum of a field of all roles. A job that no check takes may have anything there."""
    given = part.get(roles) if isinstance(part, dict) else None
    entries = list(given.values())[:_MOST_ROLES] if isinstance(given, dict) else []
    numbers = (entry.get(field, 1) for entry in entries if isinstance(entry, dict))
    return sum(max(0, min(number, MOST_REPLICAS)) for number in numbers if isinstance(number, int))


def _held(data: Any) -> int:
    """Return the bytes of decoded JSON in memory. The decoder makes one text of equal keys."""
    held, keys, waiting = 0, set[str](), [data]
    while waiting:
        value = waiting.pop()
        held += sys.getsizeof(value)
        if isinstance(value, dict):
            keys.update(value)
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return held + sum(map(sys.getsizeof, keys))


def _text(data: Any) -> bytes:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogatepass")
