"""A cached job: its parts as JSON texts, because decoded data takes ten to thirty times as much memory."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dtj.api.git_annotations import git_annotations, git_state_of
from dtj.api.identity import other_manager_of
from dtj.api.job import Fault
from dtj.api.json_text import ObjectText, has_more_entries, members
from dtj.api.manifest_check import MOST_ENTRIES, TOO_MANY_ENTRIES, beyond_limits
from dtj.api.mpijob import LONGEST_QUEUE, QUEUE_ANNOTATIONS, QUEUE_LABELS
from dtj.api.nesting import read_json
from dtj.api.spec import MOST_REPLICAS
from dtj.api.status import Phase
from dtj.api.stored_job import NOT_KEPT, digest_of
from dtj.reconcile.patch import patched

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
# The largest size of a value that is read from the spec of a job whose spec is not kept. `digest_of` then leaves out
# more values.
_SHORT = 16_384
_ENDED = (Phase.SUCCEEDED.value, Phase.FAILED.value)


@dataclass(frozen=True, slots=True, eq=False)
class KeptJob(Mapping[str, Any]):
    """A manifest with the fields that a pass reads. Each access to spec or status decodes its text."""

    metadata: Mapping[str, Any]
    spec: bytes
    status: bytes
    ended: bool
    replicas: int
    """The number of replicas of all roles, in the spec or in a status since its last change, whichever is largest."""
    held: int
    """The bytes that the decoded spec takes in memory."""
    other_manager: str | None
    """The controller that the job names in place of this operator."""
    not_kept: Fault | None = None
    """The fault of a job whose spec is not kept; None if the spec is kept. `spec` then has only a few fields."""

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


def managed_elsewhere(job: Mapping[str, Any]) -> bool:
    """Return whether the job names another controller than this operator."""
    return (job.other_manager if isinstance(job, KeptJob) else other_manager_of(job)) is not None


def keep(manifest: Mapping[str, Any], earlier: Callable[[str], KeptJob | None] = lambda _: None) -> KeptJob:
    """Return what the operator keeps of a job. The spec of a job beyond the limits of a check is not kept.

    earlier: returns what is kept of an earlier version of the job with a uid, or None. The spec is read only if the
    generation differs.
    """
    if isinstance(manifest, KeptJob):
        return manifest
    metadata, status = _metadata(manifest["metadata"]), manifest.get("status") or {}
    before = earlier(metadata["uid"])
    if before is not None and _has_spec_of(before, metadata):
        return _with_status(before, metadata, status)
    excess: Fault | None = TOO_MANY_ENTRIES
    if isinstance(manifest, ObjectText) and has_more_entries(manifest.text("spec"), MOST_ENTRIES):
        spec = _short_values(manifest.text("spec"))
    else:
        spec = manifest.get("spec") or {}
        excess = beyond_limits({"metadata": metadata, "spec": spec})
    replicas = max(_number(spec, "replicaSpecs", "replicas"), _desired(status))
    manager = other_manager_of({"spec": spec})
    text = _text(spec if excess is None else digest_of(spec))
    held = _held(json.loads(text))
    return KeptJob(metadata, text, _text(status), _is_ended(status), replicas, held, manager, excess)


def with_status(job: Mapping[str, Any], answer: Mapping[str, Any], patch: Mapping[str, Any]) -> KeptJob:
    """Return what is kept of a job after a change of its status.

    job: the job before the change. answer: what the API server returned: the job, or its metadata alone.
    """
    status = answer["status"] if "status" in answer else patched(job.get("status"), patch)
    if not isinstance(job, KeptJob):
        return keep({**job, "metadata": answer["metadata"], "status": status})
    # The answer to a write of the status, which was made for this version of the job: the spec has not changed.
    return _with_status(job, _metadata(answer["metadata"]), status)


def _metadata(given: Mapping[str, Any]) -> dict[str, Any]:
    # Drop managedFields, about half of a job, and the labels and annotations that the operator does not read.
    metadata: dict[str, Any] = {field: given.get(field) for field in _METADATA}
    for kind, names in (("labels", QUEUE_LABELS), ("annotations", QUEUE_ANNOTATIONS)):
        values = given.get(kind) or {}
        metadata[kind] = {name: values[name][: LONGEST_QUEUE + 1] for name in names if name in values}
    metadata["annotations"] |= git_annotations(git_state_of(given.get("annotations") or {}))
    return metadata


def _has_spec_of(job: KeptJob, metadata: Mapping[str, Any]) -> bool:
    """Return whether the kept spec is the whole spec of the version with this metadata."""
    dropped = job.not_kept is not None and job.not_kept.passes
    return not dropped and job.metadata["generation"] == metadata["generation"]


def _with_status(job: KeptJob, metadata: dict[str, Any], status: Any) -> KeptJob:
    replicas = max(job.replicas, _desired(status))
    return replace(job, metadata=metadata, status=_text(status), ended=_is_ended(status), replicas=replicas)


def _is_ended(status: Any) -> bool:
    return isinstance(status, dict) and status.get("phase") in _ENDED


def _desired(status: Any) -> int:
    return _number(status, "replicaStatuses", "desired")


def without_spec(job: KeptJob, why: Fault) -> KeptJob:
    """Return the job without its spec."""
    spec = digest_of(job["spec"])
    return replace(job, spec=_text(spec), held=_held(spec), not_kept=why)


def weight(job: KeptJob) -> int:
    """Return the bytes that the operator holds for a job: its texts and, until it ends, the data of its spec.

    The same job has the same weight in each process.
    """
    texts = len(job.spec) + len(job.status)
    return texts if job.ended else texts + job.held


def _short_values(text: bytes, levels: int = 3) -> Any:
    """Return the short values of a spec as data, from objects down to `levels` levels, without lists."""
    parts = members(text) if text.startswith(b"{") else {}
    return {
        name: _short_values(value, levels - 1) if value.startswith(b"{") else read_json(value)
        for name, value in parts.items()
        if (levels > 1 if value.startswith(b"{") else len(value) <= _SHORT and not value.startswith(b"["))
    }


def _number(part: Any, roles: str, field: str) -> int:
    """Return the sum of a field over all roles. The job is not validated, so the field may have any type."""
    given = part.get(roles) if isinstance(part, dict) else None
    entries = list(given.values())[:_MOST_ROLES] if isinstance(given, dict) else []
    numbers = (entry.get(field, 1) for entry in entries if isinstance(entry, dict))
    return sum(max(0, min(number, MOST_REPLICAS)) for number in numbers if isinstance(number, int))


def _held(data: Any) -> int:
    """Return the bytes of decoded JSON in memory. Equal keys count once, because the decoder shares their strings."""
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
