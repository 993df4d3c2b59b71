"""A whole DistributedTrainingJob."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

from dtj.api.base import ApiModel, model_of
from dtj.api.identity import API_VERSION, KIND
from dtj.api.places import Place
from dtj.api.sentences import sentence
from dtj.api.shown import is_text, key_shown, shown
from dtj.api.spec import JobSpec, RunPolicy
from dtj.api.status import JobStatus
from dtj.api.strategy import StrategyRules

Manifest = dict[str, Any]
"""A Kubernetes object as plain data."""
MOST_FAULTS = 100
"""The number of faults of one job that are reported. A last fault says how many more there are."""
LONGEST_MESSAGE = 8192
"""Characters of a text that has all faults of a job."""
_FIELDS = ("apiVersion", "kind", "metadata", "spec", "status")
# Characters of a misspelt field that are compared with the names of fields.
_LONGEST_FIELD = 100


POD_USER = 1000
"""The user of the trainer images, and the group of a job's files."""


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong with a job."""

    field: str
    message: str
    place: Place = dataclasses.field(default=(), compare=False, repr=False)
    """Where the field is in the manifest. Empty where only `field` says it."""
    count: int = 1
    """How many faults it stands for."""
    passes: bool = False
    """Whether the fault may go without a change of the job: the job waits and does not fail."""

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


@dataclass(frozen=True)
class Job:
    """A job as the operator works with it."""

    name: str
    namespace: str
    uid: str
    generation: int
    spec: JobSpec
    status: JobStatus
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    pod_user: int | None = POD_USER
    """User and group of its pods where templates name none; None: the cluster chooses them, as OpenShift does."""
    created: str | None = None
    """When the API server stored the job, RFC 3339; None for a job that is not stored."""

    @property
    def run_policy(self) -> RunPolicy:
        """How the job is retried, suspended and cleaned up."""
        return self.spec.run_policy

    @property
    def rules(self) -> StrategyRules:
        """The rules of its strategy."""
        return self.spec.rules

    @property
    def short_uid(self) -> str:
        """What tells this job from an earlier one of the same name, in names and in the bucket."""
        return self.uid.split("-", 1)[0]

    @property
    def artifacts_uri(self) -> str | None:
        """The job's own prefix in the bucket; None where nothing is kept."""
        if self.spec.artifacts is None:
            return None
        return f"{self.spec.artifacts.uri.rstrip('/')}/{self.namespace}/{self.name}-{self.short_uid}"


class InvalidJob(ValueError):
    """A manifest is no valid job. `faults` has the reasons, at most MOST_FAULTS and one more."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = first_faults(faults)
        super().__init__(in_a_line(self.faults))


def first_faults(faults: Sequence[Fault]) -> list[Fault]:
    """Return the first MOST_FAULTS faults and, if there are more, a fault that says how many are left out."""
    return [*faults[:MOST_FAULTS], *_more(sum(fault.count for fault in faults[MOST_FAULTS:]))]


def in_a_line(faults: Sequence[Fault], longest: int = LONGEST_MESSAGE) -> str:
    """Return the faults as one line of at most `longest` characters, which says how many faults are left out."""
    texts = [str(fault) for fault in faults]
    if len(text := "; ".join(texts)) <= longest:
        return text
    room = longest - len("; and 1000000 more faults")
    listed = [texts[0] if len(texts[0]) <= room else f"{texts[0][: room - 1]}…"]
    for text in texts[1:]:
        if len("; ".join([*listed, text])) > room:
            break
        listed.append(text)
    count = sum(fault.count for fault in faults[len(listed) :])
    return "; ".join([*listed, *([f"and {_faults(count)}"] if count else [])])


def _more(count: int) -> list[Fault]:
    return [Fault("spec", f"has {_faults(count)} than are listed here", count=count)] if count else []


def _faults(more: int) -> str:
    return f"{more} more {'fault' if more == 1 else 'faults'}"


def read_job(manifest: Mapping[str, Any]) -> Job:
    """Read a job from its manifest.

    Raises InvalidJob when the manifest does not have the resource's form. What this version cannot read
    of a status (written by a newer one) is left out rather than refused.
    """
    faults = []
    for key, value in (("apiVersion", API_VERSION), ("kind", KIND)):
        if manifest.get(key, value) != value:
            faults.append(Fault(key, f"{shown(manifest[key])} is not {value}", (key,)))
    unknown = [key for key in manifest if key not in _FIELDS]
    more = _more(len(unknown[MOST_FAULTS:]))
    faults += [
        Fault(key_shown(key), unknown_field(str(key), _FIELDS), (key,)) for key in unknown[:MOST_FAULTS]
    ]
    metadata = manifest.get("metadata") or {}
    if isinstance(metadata, dict):
        faults += _no_text(metadata)
    else:
        faults.append(Fault("metadata", f"must be an object, got {shown(metadata)}", ("metadata",)))
    if manifest.get("spec") is None:
        raise InvalidJob([*faults, Fault("spec", "required", ("spec",)), *more])
    try:
        spec = JobSpec.model_validate(manifest["spec"])
    except ValidationError as error:
        wrong = error.errors(include_url=False)
        faults += [_fault_of(dict(item)) for item in wrong[:MOST_FAULTS]]
        raise InvalidJob([*faults, *more, *_more(len(wrong[MOST_FAULTS:]))]) from None
    if faults:
        raise InvalidJob([*faults, *more])
    status, generation = manifest.get("status"), metadata.get("generation")
    created = metadata.get("creationTimestamp")
    return Job(
        name=str(metadata.get("name") or ""),
        namespace=str(metadata.get("namespace") or "default"),
        uid=str(metadata.get("uid") or ""),
        generation=generation if isinstance(generation, int) else 0,
        spec=spec,
        status=read_status(status if isinstance(status, dict) else {}),
        labels=metadata.get("labels") or {},
        annotations=metadata.get("annotations") or {},
        created=created if isinstance(created, str) else None,
    )


def read_status(data: Mapping[str, Any]) -> JobStatus:
    """Read a status; what this version does not know, or knows otherwise, is left out.

    The rest counts: a job must not begin anew because a newer operator wrote one condition more.
    """
    known = dict(data)
    try:
        return JobStatus.model_validate(known, extra="ignore")
    except ValidationError as error:
        places = {item["loc"] for item in error.errors()}
    for name in {place[0] for place in places}:
        entries = known[str(name)]
        unread = {place[1] for place in places if place[0] == name and len(place) > 1}
        if name == "conditions" and isinstance(entries, list):
            known["conditions"] = [entry for index, entry in enumerate(entries) if index not in unread]
        else:
            del known[str(name)]
    return JobStatus.model_validate(known, extra="ignore")


def written(job: Job) -> Manifest:
    """The job as its author would write it: without status and without what the API server added."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": job.name, "namespace": job.namespace},
        "spec": job.spec.model_dump(by_alias=True, mode="json", exclude_unset=True),
    }


def _no_text(metadata: Manifest) -> list[Fault]:
    """What the API server takes for no text, and so for no object at all: `name: 1`, `labels: {version: 2}`."""
    given: list[tuple[str, Place, Any]] = [
        (f"metadata.{key}", ("metadata", key), metadata.get(key)) for key in ("name", "namespace")
    ]
    for kind in ("labels", "annotations"):
        entries = metadata.get(kind) or {}
        if not isinstance(entries, dict):
            wrong = f"must be an object, got {shown(entries)}"
            return [Fault(f"metadata.{kind}", wrong, ("metadata", kind))]
        given += [
            (f"metadata.{kind}[{key_shown(key)}]", ("metadata", kind, key), value)
            for key, value in entries.items()
        ]
    return [
        Fault(field, f"must be a string, got {shown(value)}", place)
        for field, place, value in given
        if value is not None and not is_text(value)
    ]


def _fault_of(item: dict[str, Any]) -> Fault:
    return Fault(_path(item["loc"]), _sentence(item), ("spec", *item["loc"]))


def _path(location: Place) -> str:
    parts = (f"[{part}]" if isinstance(part, int) else f".{key_shown(part)}" for part in location)
    return "".join(["spec", *parts])


def _known_fields(location: Place) -> list[str]:
    """The fields of the model at a place of the spec."""
    model: type[ApiModel] = JobSpec
    for part in location:
        if isinstance(part, str):
            by_alias = {field.alias: field for field in model.model_fields.values()}
            model = model_of(by_alias[part].annotation) or model
    return [field.alias or name for name, field in model.model_fields.items()]


def unknown_field(name: str, known: Iterable[str]) -> str:
    """What is said of a field that there is not. known: those that it may be meant for."""
    lower = {field.lower(): field for field in known}
    near = get_close_matches(name[:_LONGEST_FIELD].lower(), lower, n=1)
    return f"unknown field; did you mean {lower[near[0]]}?" if near else "unknown field"


def _sentence(item: dict[str, Any]) -> str:
    if item["type"] == "extra_forbidden":
        return unknown_field(str(item["loc"][-1]), _known_fields(item["loc"][:-1]))
    return sentence(item)
