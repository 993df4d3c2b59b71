"""One Kubeflow job as a DistributedTrainingJob."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from dtj.api.checking import check
from dtj.api.identity import API_VERSION, KIND
from dtj.api.job import Manifest
from dtj.convert.form import Metadata, MPIJobSpec, Spec, TFJobSpec, without_nulls
from dtj.convert.mpi import horovod_spec
from dtj.convert.notes import Conversion, Notes
from dtj.convert.replicas import kept_metadata
from dtj.convert.run_policy import moved_into_run_policy, run_policy
from dtj.convert.tensorflow import parameter_server_spec

_FORMS: dict[str, type[Spec]] = {"TFJob": TFJobSpec, "MPIJob": MPIJobSpec, "PyTorchJob": Spec}
_VERSIONS = {"TFJob": ("v1",), "MPIJob": ("v1", "v2beta1"), "PyTorchJob": ("v1",)}
_STRATEGIES = "this version has the strategies Horovod (MPIJob) and ParameterServer (TFJob with PS)"


def is_kubeflow_job(manifest: Manifest) -> bool:
    """Whether `convert` is to say something of it."""
    group = str(manifest.get("apiVersion")).partition("/")[0]
    return group in ("kubeflow.org", "trainer.kubeflow.org") and str(manifest.get("kind")).endswith("Job")


def convert(manifest: Manifest, artifacts: str | None = None) -> Conversion:
    """The job in dtj's form, or the reasons why there is none. artifacts: s3:// URI for `spec.artifacts.uri`."""
    kind, version = str(manifest.get("kind")), str(manifest.get("apiVersion"))
    notes = Notes()
    metadata = manifest.get("metadata")
    name = str(metadata.get("name", "")) if isinstance(metadata, dict) else ""
    made = None
    if version not in [f"kubeflow.org/{known}" for known in _VERSIONS.get(kind, ())]:
        notes.refuse("apiVersion", f"{version} {kind}", f"no equivalent in dtj: {_STRATEGIES}")
    else:
        made = _converted(kind, without_nulls(manifest), artifacts, notes)
    if made is not None:
        name = made["metadata"]["name"]
    return Conversion(kind, name, None if notes.refused else made, tuple(notes.all))


def _converted(kind: str, manifest: Manifest, artifacts: str | None, notes: Notes) -> Manifest | None:
    given: Any = manifest.get("spec")
    given = moved_into_run_policy(given) if isinstance(given, dict) else given
    try:
        metadata = Metadata.model_validate(manifest.get("metadata", {}))
        spec = _FORMS[kind].model_validate(given)
    except ValidationError as error:
        path = "metadata" if error.title == "Metadata" else "spec"
        for item in error.errors():
            notes.refuse(
                ".".join([path, *map(str, item["loc"])]), None, item["msg"][0].lower() + item["msg"][1:]
            )
        return None
    policy = run_policy(spec.run_policy, notes)
    if isinstance(spec, TFJobSpec):
        made, policy = parameter_server_spec(spec, policy, notes)
    elif isinstance(spec, MPIJobSpec):
        made, policy = horovod_spec(spec, policy, notes)
    else:
        notes.refuse(
            "kind", kind, f"no equivalent yet: there is no strategy for torch.distributed; {_STRATEGIES}"
        )
        for key, value in spec.rest.items():
            if key != "pytorchReplicaSpecs":
                notes.tell(f"spec.{key}", value, "no equivalent: every worker has a fixed number of ranks")
        return None
    if notes.refused:
        return None
    _give_priority(spec, made)
    if artifacts:
        made["artifacts"] = {"uri": artifacts}
    else:
        notes.tell(
            "spec.artifacts",
            None,
            "no such field in Kubeflow: checkpoints are not kept, and retries begin anew; set artifacts.uri "
            "(dtj convert --artifacts s3://bucket/prefix)",
        )
    if policy:
        made["runPolicy"] = policy
    job = {"apiVersion": API_VERSION, "kind": KIND, "metadata": _metadata(metadata, notes), "spec": made}
    _check(job, notes)
    return job


def _metadata(given: Metadata, notes: Notes) -> Manifest:
    name = given.name
    if not name and given.generate_name:
        name = given.generate_name.rstrip("-")
        notes.tell("metadata.generateName", given.generate_name, f"now the name {name}")
    queue = given.labels.get("kueue.x-k8s.io/queue-name")
    if queue is not None:
        notes.tell(
            "metadata.labels[kueue.x-k8s.io/queue-name]",
            queue,
            "kept, without effect: Kueue does not know dtj's jobs",
        )
    namespace = {"namespace": given.namespace} if given.namespace else {}
    return {"name": name, **namespace, **kept_metadata(given.labels, given.annotations)}


def _give_priority(spec: Spec, made: Manifest) -> None:
    priority = spec.run_policy.scheduling_policy.get("priorityClass")
    if not priority:
        return
    if made["strategy"] == "Horovod":
        made["replicaSpecs"].setdefault("launcher", {})
    for role in made["replicaSpecs"].values():
        template = role.get("template", {})
        role["template"] = template | {"spec": {"priorityClassName": priority, **template.get("spec", {})}}


def _check(job: Manifest, notes: Notes) -> None:
    """Refuse what would be no valid job, whatever the reason."""
    for fault in check(job)[1]:
        notes.refuse(f"{fault.field} (converted)", None, fault.message)
