"""One Kubeflow job as a DistributedTrainingJob."""

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
    """Whether the object is a job of Kubeflow, of a kind that is converted or refused."""
    group = str(manifest.get("apiVersion")).partition("/")[0]
    return group in ("kubeflow.org", "trainer.kubeflow.org") and str(manifest.get("kind")).endswith("Job")


def convert(manifest: Manifest, artifacts: str | None = None) -> Conversion:
    """The job in dtj's form, or the reasons why the job can't be converted.

    artifacts: s3:// URI for `spec.artifacts.uri`.
    """
    kind, version = str(manifest.get("kind")), str(manifest.get("apiVersion"))
    notes = Notes()
    metadata = manifest.get("metadata")
    name = str(metadata.get("name", "")) if isinstance(metadata, dict) else ""
    made = None
    if version.startswith(_GROUP) and kind in _KINDS:
        made = _of_version(kind, version.removeprefix(_GROUP), without_nulls(manifest), artifacts, notes)
    elif version.startswith(_GROUP) and kind == "PyTorchJob":
        _refuse_pytorch(without_nulls(manifest), notes)
    else:
        notes.refuse("apiVersion", f"{version} {kind}", f"no equivalent in dtj: dtj converts {_CONVERTED}")
    if made is not None:
        name = made["metadata"]["name"]
    return Conversion(kind, name, None if notes.refused else made, tuple(notes.all))


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
    """The job, if its version has the fields that the conversion reads."""
    spec, rules = manifest.get("spec"), _KINDS[kind]
    newest = f"{_GROUP}{rules.newest}"
    if version not in rules.versions:
        has_form = isinstance(spec, dict) and rules.field in spec
        form = (
            f"the job has spec.{rules.field}, as {newest}: change apiVersion to {newest}"
            if has_form
            else f"write the job in the form of {newest}, with spec.{rules.field}"
        )
        notes.refuse("apiVersion", f"{_GROUP}{version} {kind}", f"another form of this kind; {form}")
        return None
    if version not in ("v1", "v2beta1"):
        notes.add("apiVersion", f"{_GROUP}{version}", "read as v1, which has the same fields")
    return _converted(rules, version, manifest, artifacts, notes)


def _converted(
    kind: Kind[Any], version: str, manifest: Manifest, artifacts: str | None, notes: Notes
) -> Manifest | None:
    given: Any = manifest.get("spec")
    given = moved_into_run_policy(given) if isinstance(given, dict) else given
    manifest = with_dtjs_hosts({**manifest, "spec": given}, kind.field, notes)
    try:
        metadata = Metadata.model_validate(manifest.get("metadata", {}))
        spec: Spec = kind.form.model_validate(manifest["spec"])
    except ValidationError as error:
        _refuse_form(error, notes)
        return None
    source = Source(_name(metadata, notes), version, kind.versions[version], waits_in_kueue(metadata))
    policy = run_policy(spec.run_policy, source.defaults, source.queued, notes)
    made, policy = kind.convert(source, spec, policy, notes)
    if notes.refused:
        return None
    templates = [replica.template for replica in spec.replicas.values()]
    if scheduled := scheduling(metadata, spec.run_policy, templates, _members(made), notes):
        policy["schedulingPolicy"] = scheduled
    if artifacts:
        made["artifacts"] = {"uri": artifacts}
    else:
        notes.add(
            "spec.artifacts",
            None,
            "Kubeflow has no such field: checkpoints are not kept, and a retry starts from the beginning; set "
            "artifacts.uri (dtj convert --artifacts s3://bucket/prefix)",
        )
    if policy:
        made["runPolicy"] = policy
    job = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": _metadata(source.name, metadata, made),
        "spec": made,
    }
    for fault in check(job)[1]:
        notes.refuse(f"{fault.field} (converted)", None, fault.message)
    return job


def _refuse_form(error: ValidationError, notes: Notes) -> None:
    path = "metadata" if error.title == "Metadata" else "spec"
    for item in error.errors():
        notes.refuse(".".join([path, *map(str, item["loc"])]), None, item["msg"][0].lower() + item["msg"][1:])


def _members(made: Manifest) -> int:
    """The number of pods in the gang of a job; 0 for a spec that `check` refuses."""
    try:
        return members(JobSpec.model_validate(made))
    except ValidationError:
        return 0


def _name(given: Metadata, notes: Notes) -> str:
    if given.name or not given.generate_name:
        return given.name
    name = given.generate_name.rstrip("-")
    notes.add("metadata.generateName", given.generate_name, f"now the name {name}")
    return name


def _metadata(name: str, given: Metadata, made: Manifest) -> Manifest:
    labels, annotations, of_pods = moved_labels(given)
    if waits_in_kueue(given):
        _label_pods(made, of_pods)
    namespace = {"namespace": given.namespace} if given.namespace else {}
    return {"name": name, **namespace, **kept_metadata(labels, annotations)}


def _label_pods(made: Manifest, labels: dict[str, str]) -> None:
    """Give every pod the labels. The operator alone sets the label of the queue."""
    for role in made["replicaSpecs"].values():
        template = role.get("template", {})
        metadata = template.get("metadata", {})
        own = {key: value for key, value in metadata.get("labels", {}).items() if key != KUEUE_QUEUE}
        if own == metadata.get("labels", {}) and not labels:
            continue
        role["template"] = {**template, "metadata": {**metadata, "labels": labels | own}}
