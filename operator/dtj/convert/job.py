"""Conversion of one job of another operator to a DistributedTrainingJob."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from dtj.api.checking import check
from dtj.api.identity import API_VERSION, KIND
from dtj.api.job import Manifest
from dtj.api.scheduling_rules import KUEUE_QUEUE, members
from dtj.api.spec import JobSpec
from dtj.convert.form import Metadata, Spec, without_nulls
from dtj.convert.hosts import with_dtjs_hosts
from dtj.convert.kind import Kind, Source
from dtj.convert.mpi import MPI_JOB
from dtj.convert.notes import Conversion, Notes
from dtj.convert.pytorch import PYTORCH_JOB
from dtj.convert.replicas import COMMAND_GIVEN, kept_metadata
from dtj.convert.run_policy import moved_into_run_policy, run_policy
from dtj.convert.scheduling import moved_labels, scheduling, waits_in_kueue
from dtj.convert.tensorflow import TF_JOB
from dtj.convert.torchx import TORCHX_JOB
from dtj.convert.trainjob import TRAIN_JOB

_NAMES: dict[str, Kind[Any]] = {
    "MPIJob": MPI_JOB,
    "TFJob": TF_JOB,
    "PyTorchJob": PYTORCH_JOB,
    "TrainJob": TRAIN_JOB,
    "Job": TORCHX_JOB,
}
_KINDS = {(kind.group, name): kind for name, kind in _NAMES.items()}
CONVERTED = "MPIJob, TFJob, PyTorchJob, TrainJob and torchx's dist.ddp"
"""The kinds of jobs that are converted, for messages."""
_GROUPS = {group for group, _ in _KINDS}


def is_job(manifest: Manifest) -> bool:
    """Return whether the object is a job of Kubeflow or Volcano. `convert` refuses some kinds of these jobs."""
    group = str(manifest.get("apiVersion")).partition("/")[0]
    return group in _GROUPS and str(manifest.get("kind")).endswith("Job")


@dataclass(frozen=True)
class _Added:
    """What the user adds to a job."""

    artifacts: str | None
    command: Sequence[str]


def convert(
    manifest: Manifest,
    artifacts: str | None = None,
    others: Sequence[Manifest] = (),
    command: Sequence[str] = (),
) -> Conversion:
    """Convert a job. If the job can't be converted, the result has the reasons.

    artifacts: s3:// URI for `spec.artifacts.uri`. others: the other objects of the input, for example the runtime of
    a TrainJob. command: the command of containers without one.
    """
    kind, version = str(manifest.get("kind")), str(manifest.get("apiVersion"))
    notes = Notes()
    metadata = manifest.get("metadata")
    name = str(metadata.get("name", "")) if isinstance(metadata, dict) else ""
    job = None
    group, _, number = version.partition("/")
    if (rules := _KINDS.get((group, kind))) is not None:
        job = _of_version(
            rules, kind, number, without_nulls(manifest), _Added(artifacts, command), others, notes
        )
    else:
        notes.refuse("apiVersion", f"{version} {kind}", f"no equivalent in dtj: dtj converts {CONVERTED}")
    if job is not None:
        name = job["metadata"]["name"]
    return Conversion(kind, name, None if notes.refused else job, tuple(notes.all))


def _of_version(
    rules: Kind[Any],
    kind: str,
    version: str,
    manifest: Manifest,
    added: _Added,
    others: Sequence[Manifest],
    notes: Notes,
) -> Manifest | None:
    """Convert a job whose version has the fields that the conversion reads, and refuse other versions."""
    spec = manifest.get("spec")
    newest = f"{rules.group}/{rules.newest}"
    if version not in rules.versions:
        has_field = isinstance(spec, dict) and rules.field in spec
        remedy = (
            f"the job has spec.{rules.field}, as {newest}: change apiVersion to {newest}"
            if has_field
            else f"write the job in the form of {newest}, with spec.{rules.field}"
        )
        notes.refuse(
            "apiVersion", f"{rules.group}/{version} {kind}", f"dtj does not convert this version; {remedy}"
        )
        return None
    if version not in ("v1", rules.newest):
        notes.add("apiVersion", f"{rules.group}/{version}", "read as v1, which has the same fields")
    return _converted(rules, version, manifest, added, others, notes)


def _prepared(
    kind: Kind[Any], manifest: Manifest, others: Sequence[Manifest], notes: Notes
) -> Manifest | None:
    """Return the job in the form of its kind.

    A job of `kubeflow.org` gets all fields of the run policy in `runPolicy`, and dtj's host names.
    """
    if kind.prepare is not None:
        return kind.prepare(manifest, others, notes)
    spec = manifest.get("spec")
    spec = moved_into_run_policy(spec) if isinstance(spec, dict) else spec
    return with_dtjs_hosts({**manifest, "spec": spec}, kind.field, notes)


def _converted(
    kind: Kind[Any],
    version: str,
    manifest: Manifest,
    added: _Added,
    others: Sequence[Manifest],
    notes: Notes,
) -> Manifest | None:
    try:
        metadata = Metadata.model_validate(manifest.get("metadata", {}))
        prepared = _prepared(kind, manifest, others, notes)
        if prepared is None:
            return None
        spec: Spec = kind.form.model_validate(prepared["spec"])
    except ValidationError as error:
        _refuse_form(error, notes)
        return None
    name, queued = _name(metadata, notes), waits_in_kueue(metadata)
    source = Source(name, version, kind.versions[version], queued, added.command)
    policy = run_policy(spec.run_policy, source.defaults, source.queued, notes)
    dtj_spec, policy = kind.convert(source, spec, policy, notes)
    if notes.refused:
        return None
    templates = [replica.template for replica in spec.replicas.values() if replica.replicas]
    if scheduling_policy := scheduling(metadata, spec.run_policy, templates, _members(dtj_spec), notes):
        policy["schedulingPolicy"] = policy.get("schedulingPolicy", {}) | scheduling_policy
    if added.command and not any(note.now == COMMAND_GIVEN for note in notes.all):
        notes.add("--command", shlex.join(added.command), "left out: the job has a command")
    if added.artifacts:
        dtj_spec["artifacts"] = {"uri": added.artifacts}
    else:
        notes.add(
            "spec.artifacts",
            None,
            f"{kind.origin} has no such field: checkpoints are not kept, and a retry starts from the beginning; set "
            "artifacts.uri (dtj convert --artifacts s3://bucket/prefix)",
        )
    if policy:
        dtj_spec["runPolicy"] = policy
    job = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": _metadata(source.name, metadata, dtj_spec),
        "spec": dtj_spec,
    }
    for fault in check(job)[1]:
        notes.refuse(f"{fault.field} (converted)", None, fault.message)
    return job


def _refuse_form(error: ValidationError, notes: Notes) -> None:
    path = "metadata" if error.title == "Metadata" else "spec"
    for item in error.errors():
        notes.refuse(".".join([path, *map(str, item["loc"])]), None, item["msg"][0].lower() + item["msg"][1:])


def _members(dtj_spec: Manifest) -> int:
    """Return the number of pods in the gang of a job; 0 for a spec that `check` refuses."""
    try:
        return members(JobSpec.model_validate(dtj_spec))
    except ValidationError:
        return 0


def _name(metadata: Metadata, notes: Notes) -> str:
    if metadata.name or not metadata.generate_name:
        return metadata.name
    name = metadata.generate_name.rstrip("-")
    notes.add("metadata.generateName", metadata.generate_name, f"now the name {name}")
    return name


def _metadata(name: str, source: Metadata, dtj_spec: Manifest) -> Manifest:
    labels, annotations, of_pods = moved_labels(source)
    if waits_in_kueue(source):
        _label_pods(dtj_spec, of_pods)
    namespace = {"namespace": source.namespace} if source.namespace else {}
    return {"name": name, **namespace, **kept_metadata(labels, annotations)}


def _label_pods(dtj_spec: Manifest, labels: dict[str, str]) -> None:
    """Add labels to every pod template, and remove the label of the queue, which only the operator may set."""
    for role in dtj_spec["replicaSpecs"].values():
        template = role.get("template", {})
        metadata = template.get("metadata", {})
        own = {key: value for key, value in metadata.get("labels", {}).items() if key != KUEUE_QUEUE}
        if own == metadata.get("labels", {}) and not labels:
            continue
        role["template"] = {**template, "metadata": {**metadata, "labels": labels | own}}
