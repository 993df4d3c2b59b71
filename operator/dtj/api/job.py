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
from dtj.api.schema_errors import sentence
from dtj.api.shown import is_text, key_shown, shown
from dtj.api.spec import (
    DEFAULT_RESTART_STRATEGY,
    DataCache,
    JobSpec,
    MLflow,
    ReplicaSpec,
    RestartStrategy,
    RunPolicy,
)
from dtj.api.status import JobStatus
from dtj.api.strategies import rules_of
from dtj.api.strategy import StrategyRules

Manifest = dict[str, Any]
"""A Kubernetes object as maps and lists, such as YAML or JSON gives it."""
MOST_FAULTS = 100
"""The largest number of faults that are reported for one job. A last entry gives the number of further faults."""
LONGEST_MESSAGE = 8192
"""The largest number of characters in the message that lists the faults of a job."""
_FIELDS = ("apiVersion", "kind", "metadata", "spec", "status")
# Only this many characters of an unknown field are compared with known names: the comparison of long names is slow.
_LONGEST_FIELD = 100


NO_STATUS = JobStatus()
"""The status of a job that the operator has not seen."""
POD_USER = 1000
"""The user ID in the trainer images, and the group ID of a job's files."""


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong with a job."""

    field: str
    message: str
    place: Place = dataclasses.field(default=(), compare=False, repr=False)
    """The keys and indexes that lead to the field in the manifest. Empty if only `field` names the place."""
    count: int = 1
    """The number of faults that this entry stands for. More than 1 only in the last entry: "has 12 more faults"."""
    passes: bool = False
    """Whether the fault can disappear without a change of the job. The job then waits, and does not fail."""

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


@dataclass(frozen=True)
class Job:
    """A job with a valid spec, and the values that follow from its spec and status."""

    name: str
    namespace: str
    uid: str
    generation: int
    spec: JobSpec
    status: JobStatus
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    pod_user: int | None = POD_USER
    """User and group of the pods unless a template sets them; None: the cluster chooses them, as OpenShift does."""
    created: str | None = None
    """When the API server stored the job, RFC 3339; None for a job that is not stored."""
    resolved: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)
    """The values of the fields below, computed from the spec once. A copy of the job takes them over."""
    short_uid: str = field(init=False, repr=False, compare=False)
    """The first part of the uid. It distinguishes this job from earlier jobs of the same name in the bucket."""
    service: str = field(init=False, repr=False, compare=False)
    """The name of the headless Service that gives each pod a DNS name."""
    domain: str = field(init=False, repr=False, compare=False)
    """The DNS name of the Service, and the end of the DNS names of the pods, whatever the cluster's domain is."""
    config_map: str = field(init=False, repr=False, compare=False)
    """The name of the ConfigMap with the hostfile, the ssh configuration and the start scripts."""
    artifacts_uri: str | None = field(init=False, repr=False, compare=False)
    """The job's own prefix in the bucket; None for a job without spec.artifacts."""
    attempt: int = field(init=False, repr=False, compare=False)
    """The number of the attempt that runs, or of the first one while the job has not begun."""
    finished: bool = field(init=False, repr=False, compare=False)
    """Whether the job has succeeded or failed for good."""
    run_policy: RunPolicy = field(init=False, repr=False, compare=False)
    """How the job is retried, suspended and cleaned up."""
    rules: StrategyRules = field(init=False, repr=False, compare=False)
    """The rules of the job's strategy. For ParameterServer, they depend on the roles that the spec names."""
    given: Mapping[str, ReplicaSpec] = field(init=False, repr=False, compare=False)
    """The roles that have an entry in replicaSpecs."""
    pods: Mapping[str, int] = field(init=False, repr=False, compare=False)
    """The number of pods by role, with the roles that have pods without an entry in replicaSpecs."""
    procs: int = field(init=False, repr=False, compare=False)
    """Ranks in each pod that runs ranks; 1 for a strategy without ranks."""
    own_command: list[str] = field(init=False, repr=False, compare=False)
    """The command of each rank or replica, without args: `command`, else the entrypoint of `code`."""
    restarts_in_place: bool = field(init=False, repr=False, compare=False)
    """Whether the agents of the pods start the ranks again after a failure, without new pods."""
    by_mpi_operator: bool = field(init=False, repr=False, compare=False)
    """Whether mpi-operator makes the pods."""
    cache: DataCache | None = field(init=False, repr=False, compare=False)
    """The cache of the data set, where the job asks for one."""
    mlflow: MLflow | None = field(init=False, repr=False, compare=False)
    """The MLflow server that records the job; None if the spec names none."""

    def __post_init__(self) -> None:
        known = self.resolved
        # A copy by `dataclasses.replace` with another spec must not keep the values that follow from the old spec.
        if known is None or known["spec"] is not self.spec:
            known = _resolve(self.spec)
        short_uid, artifacts, uri = self.uid.split("-", 1)[0], self.spec.artifacts, None
        if artifacts is not None:
            uri = f"{artifacts.uri.rstrip('/')}/{self.namespace}/{self.name}-{short_uid}"
        # An assignment to a field of the frozen dataclass would fail. `vars` bypasses the check.
        vars(self).update(
            known,
            resolved=known,
            short_uid=short_uid,
            service=self.name,
            domain=f"{self.name}.{self.namespace}.svc",
            # mpi-operator makes a ConfigMap called `<job>-config`: dtj's ConfigMap needs another name.
            config_map=f"{self.name}-dtj" if known["by_mpi_operator"] else f"{self.name}-config",
            artifacts_uri=uri,
            **course_of(self.status),
        )


def course_of(status: JobStatus) -> dict[str, Any]:
    """Return the fields of a job that follow from its status."""
    return {"attempt": max(status.attempt, 1), "finished": status.conditions.finished}


def _resolve(spec: JobSpec) -> dict[str, Any]:
    given, own_command, by_mpi_operator = spec.replica_specs.given(), spec.own_command, spec.by_mpi_operator
    rules, strategy = rules_of(spec), spec.run_policy.restart_strategy or DEFAULT_RESTART_STRATEGY
    in_place = strategy is RestartStrategy.IN_PLACE_RESTART
    return {
        "spec": spec,
        "run_policy": spec.run_policy,
        "rules": rules,
        "given": given,
        "pods": rules.pods_of(given),
        "procs": rules.procs(spec),
        "own_command": own_command,
        "restarts_in_place": in_place and not by_mpi_operator and rules.holds_rounds(given),
        "by_mpi_operator": by_mpi_operator,
        "cache": spec.data.cache if spec.data else None,
        "mlflow": spec.tracking.mlflow if spec.tracking else None,
    }


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

    Raises InvalidJob when the manifest does not have the resource's form. Fields of the status that this version
    can't read, such as those of a newer operator, are left out.
    """
    faults = []
    for key, value in (("apiVersion", API_VERSION), ("kind", KIND)):
        if manifest.get(key, value) != value:
            faults.append(Fault(key, f"{shown(manifest[key])} is not {value}", (key,)))
    more: list[Fault] = []
    if unknown := [key for key in manifest if key not in _FIELDS]:
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
    """Read a status without the fields that this version does not know, or that have another type in this version.

    All other fields are kept: a job must not start again because a newer operator added a condition.
    """
    if not data:
        return NO_STATUS
    try:
        return JobStatus.model_validate(data, extra="ignore")
    except ValidationError as error:
        places = {item["loc"] for item in error.errors()}
    known = dict(data)
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
    """Return a fault for each value of metadata that must be a string and is not: `name: 1`, `labels: {version: 2}`.

    The API server can't decode such an object.
    """
    wrong: list[tuple[Place, Any]] = [
        (("metadata", key), metadata[key]) for key in ("name", "namespace") if _is_no_text(metadata, key)
    ]
    for kind in ("labels", "annotations"):
        entries = metadata.get(kind) or {}
        if not isinstance(entries, dict):
            message = f"must be an object, got {shown(entries)}"
            return [Fault(f"metadata.{kind}", message, ("metadata", kind))]
        wrong += [(("metadata", kind, key), entries[key]) for key in entries if _is_no_text(entries, key)]
    return [
        Fault(_of_metadata(place), f"must be a string, got {shown(value)}", place) for place, value in wrong
    ]


def _is_no_text(entries: Mapping[Any, Any], key: Any) -> bool:
    value = entries.get(key)
    return value is not None and not (isinstance(value, str) and value.isascii()) and not is_text(value)


def _of_metadata(place: Place) -> str:
    return f"metadata.{place[1]}" + "".join(f"[{key_shown(key)}]" for key in place[2:])


def _fault_of(item: dict[str, Any]) -> Fault:
    return Fault(_path(item["loc"]), _sentence(item), ("spec", *item["loc"]))


def _path(location: Place) -> str:
    parts = (f"[{part}]" if isinstance(part, int) else f".{key_shown(part)}" for part in location)
    return "".join(["spec", *parts])


def _known_fields(location: Place) -> list[str]:
    """Return the names of the fields that the schema has at a place of the spec."""
    model: type[ApiModel] = JobSpec
    for part in location:
        if isinstance(part, str):
            by_alias = {field.alias: field for field in model.model_fields.values()}
            model = model_of(by_alias[part].annotation) or model
    return [field.alias or name for name, field in model.model_fields.items()]


def unknown_field(name: str, known: Iterable[str]) -> str:
    """Return the message for an unknown field. known: names of fields, of which the closest one is suggested."""
    lower = {field.lower(): field for field in known}
    near = get_close_matches(name[:_LONGEST_FIELD].lower(), lower, n=1)
    return f"unknown field; did you mean {lower[near[0]]}?" if near else "unknown field"


def _sentence(item: dict[str, Any]) -> str:
    if item["type"] == "extra_forbidden":
        return unknown_field(str(item["loc"][-1]), _known_fields(item["loc"][:-1]))
    return sentence(item)
