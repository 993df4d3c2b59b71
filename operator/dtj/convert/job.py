"""Conversion of one Kubeflow job to a DistributedTrainingJob."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from dtj.api.checking import check
from dtj.api.identity import API_VERSION, KIND
from dtj.api.job import Manifest
from dtj.api.scheduling_rules import KUEUE_QUEUE, members
from dtj.api.shown import enumerated
from dtj.api.spec import JobSpec
from dtj.convert.form import Metadata, Spec, without_nulls
from dtj.convert.hosts import with_dtjs_hosts
from dtj.convert.kind import Kind, Source
from dtj.convert.mpi import MPI_JOB
from dtj.convert.notes import Conversion, Notes
from dtj.convert.replicas import kept_metadata
from dtj.convert.run_policy import moved_into_run_policy, run_policy
from dtj.convert.scheduling import moved_labels, scheduling, waits_in_kueue
from dtj.convert.tensorflow import TF_JOB

_GROUP = "kubeflow.org/"
_KINDS: dict[str, Kind[Any]] = {"MPIJob": MPI_JOB, "TFJob": TF_JOB}
_CONVERTED = enumerated(_KINDS, "and")


def is_kubeflow_job(manifest: Manifest) -> bool:
    """Return whether the object is a Kubeflow job. `convert` refuses some kinds of Kubeflow jobs."""
    group = str(manifest.get("apiVersion")).partition("/")[0]
    return group in ("kubeflow.org", "trainer.kubeflow.org") and str(manifest.get("kind")).endswith("Job")


def convert(manifest: Manifest, artifacts: str | None = None) -> Conversion:
    """Convert a Kubeflow job. If the job can't be converted, the result has the reasons.

    artifacts: s3:// URI for `spec.artifacts.uri`.
    """
    kind, version = str(manifest.get("kind")), str(manifest.get("apiVersion"))
    notes = Notes()
    metadata = manifest.get("metadata")
    name = str(metadata.get("name", "")) if isinstance(metadata, dict) else ""
    job = None
    if version.startswith(_GROUP) and kind in _KINDS:
        job = _of_version(kind, version.removeprefix(_GROUP), without_nulls(manifest), artifacts, notes)
    elif version.startswith(_GROUP) and kind == "PyTorchJob":
        _refuse_pytorch(without_nulls(manifest), notes)
    else:
        notes.refuse("apiVersion", f"{version} {kind}", f"no equivalent in dtj: dtj converts {_CONVERTED}")
    if job is not None:
        name = job["metadata"]["name"]
    return Conversion(kind, name, None if notes.refused else job, tuple(notes.all))


def _refuse_pytorch(manifest: Manifest, notes: Notes) -> None:
    notes.refuse(
        "kind",
        "PyTorchJob",
        f"no equivalent yet: dtj has no strategy for torch.distributed; dtj converts {_CONVERTED}",
    )
    spec = manifest.get("spec")
    for key, value in spec.items() if isinstance(spec, dict) else ():
        if key not in ("pytorchReplicaSpecs", "runPolicy"):
            notes.add(f"spec.{key}", value, "no equivalent: every worker has a fixed number of ranks")


def _of_version(
    kind: str, version: str, manifest: Manifest, artifacts: str | None, notes: Notes
) -> Manifest | None:
    """Convert a job whose version has the fields that the conversion reads, and refuse other versions."""
    spec, rules = manifest.get("spec"), _KINDS[kind]
    newest = f"{_GROUP}{rules.newest}"
    if version not in rules.versions:
        has_replicas = isinstance(spec, dict) and rules.field in spec
        remedy = (
            f"the job has spec.{rules.field}, as {newest}: change apiVersion to {newest}"
            if has_replicas
            else f"write the job in the form of {newest}, with spec.{rules.field}"
        )
        notes.refuse(
            "apiVersion", f"{_GROUP}{version} {kind}", f"dtj does not convert this version; {remedy}"
        )
        return None
    if version not in ("v1", "v2beta1"):
        notes.add("apiVersion", f"{_GROUP}{version}", "read as v1, which has the same fields")
    return _converted(rules, version, manifest, artifacts, notes)


def _converted(
    kind: Kind[Any], version: str, manifest: Manifest, artifacts: str | None, notes: Notes
) -> Manifest | None:
    raw_spec: Any = manifest.get("spec")
    raw_spec = moved_into_run_policy(raw_spec) if isinstance(raw_spec, dict) else raw_spec
    manifest = with_dtjs_hosts({**manifest, "spec": raw_spec}, kind.field, notes)
    try:
        metadata = Metadata.model_validate(manifest.get("metadata", {}))
        spec: Spec = kind.form.model_validate(manifest["spec"])
    except ValidationError as error:
        _refuse_form(error, notes)
        return None
    source = Source(_name(metadata, notes), version, kind.versions[version], waits_in_kueue(metadata))
    policy = run_policy(spec.run_policy, source.defaults, source.queued, notes)
    dtj_spec, policy = kind.convert(source, spec, policy, notes)
    if notes.refused:
        return None
    templates = [replica.template for replica in spec.replicas.values()]
    if scheduling_policy := scheduling(metadata, spec.run_policy, templates, _members(dtj_spec), notes):
        policy["schedulingPolicy"] = scheduling_policy
    if artifacts:
        dtj_spec["artifacts"] = {"uri": artifacts}
    else:
        notes.add(
            "spec.artifacts",
            None,
            "Kubeflow has no such field: checkpoints are not kept, and a retry starts from the beginning; set "
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
