"""One Kubeflow job as a DistributedTrainingJob."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from dtj.api.checking import check
from dtj.api.identity import API_VERSION, KIND
from dtj.api.job import Manifest
from dtj.api.scheduling_rules import KUEUE_QUEUE
from dtj.convert.form import Metadata, MPIJobSpec, Spec, Template, TFJobSpec, without_nulls
from dtj.convert.hosts import with_dtjs_hosts
from dtj.convert.mpi import horovod_spec
from dtj.convert.notes import Conversion, Notes
from dtj.convert.replicas import kept_metadata
from dtj.convert.run_policy import Defaults, moved_into_run_policy, run_policy
from dtj.convert.scheduling import moved_labels, scheduling, waits_in_kueue
from dtj.convert.tensorflow import parameter_server_spec

_GROUP = "kubeflow.org/"
_FIELDS = {"MPIJob": "mpiReplicaSpecs", "TFJob": "tfReplicaSpecs"}
"""The kinds that are converted, and where their replicas are."""
# Those of one kind have the same fields. What they do where a job says nothing:
# https://github.com/kubeflow/mpi-operator v0.2.3, v0.3.0 and v0.8.0, https://github.com/kubeflow/training-operator
# v0.5.3 and v1.8.1, pkg/apis.
_VERSIONS: dict[str, dict[str, Defaults]] = {
    "MPIJob": {
        "v1alpha2": Defaults("None", 6),
        "v1": Defaults("None"),
        "v2beta1": Defaults("None", 6),
    },
    "TFJob": {
        "v1alpha2": Defaults("Running"),
        "v1beta1": Defaults("Running"),
        "v1beta2": Defaults("Running"),
        "v1": Defaults("None"),
    },
}
_NEWEST = {"MPIJob": "v2beta1", "TFJob": "v1"}
_BY_SSH = ("v2beta1",)
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
    if not version.startswith(_GROUP) or kind not in (*_FIELDS, "PyTorchJob"):
        notes.refuse("apiVersion", f"{version} {kind}", f"no equivalent in dtj: {_STRATEGIES}")
    elif kind == "PyTorchJob":
        _refuse_pytorch(without_nulls(manifest), notes)
    else:
        made = _of_version(kind, version.removeprefix(_GROUP), without_nulls(manifest), artifacts, notes)
    if made is not None:
        name = made["metadata"]["name"]
    return Conversion(kind, name, None if notes.refused else made, tuple(notes.all))


def _refuse_pytorch(manifest: Manifest, notes: Notes) -> None:
    notes.refuse(
        "kind", "PyTorchJob", f"no equivalent yet: there is no strategy for torch.distributed; {_STRATEGIES}"
    )
    spec = manifest.get("spec")
    for key, value in spec.items() if isinstance(spec, dict) else ():
        if key not in ("pytorchReplicaSpecs", "runPolicy"):
            notes.tell(f"spec.{key}", value, "no equivalent: every worker has a fixed number of ranks")


def _of_version(
    kind: str, version: str, manifest: Manifest, artifacts: str | None, notes: Notes
) -> Manifest | None:
    """The job of a kind that is converted, if its version has the form that this module reads."""
    spec, field, newest = manifest.get("spec"), _FIELDS[kind], f"{_GROUP}{_NEWEST[kind]}"
    if version not in _VERSIONS[kind]:
        has_form = isinstance(spec, dict) and field in spec
        form = (
            f"it has spec.{field}, as {newest}: change apiVersion to {newest}"
            if has_form
            else f"write it in the form of {newest}, with spec.{field}"
        )
        notes.refuse("apiVersion", f"{_GROUP}{version} {kind}", f"another form of this kind; {form}")
        return None
    if version not in ("v1", "v2beta1"):
        notes.tell("apiVersion", f"{_GROUP}{version}", "read as v1, which has the same fields")
    return _converted(kind, version, manifest, artifacts, notes)


def _converted(
    kind: str, version: str, manifest: Manifest, artifacts: str | None, notes: Notes
) -> Manifest | None:
    given: Any = manifest.get("spec")
    given = moved_into_run_policy(given) if isinstance(given, dict) else given
    manifest = with_dtjs_hosts({**manifest, "spec": given}, _FIELDS[kind], notes)
    form: type[MPIJobSpec | TFJobSpec] = MPIJobSpec if kind == "MPIJob" else TFJobSpec
    try:
        metadata = Metadata.model_validate(manifest.get("metadata", {}))
        spec = form.model_validate(manifest["spec"])
    except ValidationError as error:
        path = "metadata" if error.title == "Metadata" else "spec"
        for item in error.errors():
            notes.refuse(
                ".".join([path, *map(str, item["loc"])]), None, item["msg"][0].lower() + item["msg"][1:]
            )
        return None
    defaults = _VERSIONS[kind][version]
    named = _name(metadata, notes)
    policy = run_policy(spec.run_policy, defaults, waits_in_kueue(metadata), notes)
    if isinstance(spec, TFJobSpec):
        made, policy = parameter_server_spec(spec, policy, defaults, notes)
    else:
        made, policy = horovod_spec(named, version in _BY_SSH, spec, policy, defaults, notes)
    if notes.refused:
        return None
    scheduled = scheduling(metadata, spec.run_policy, _templates(spec), _members(made), notes)
    if scheduled:
        policy["schedulingPolicy"] = scheduled
    if scheduled.get("gang") == "Kueue" and made["strategy"] == "Horovod" and "command" not in made:
        notes.tell(
            "spec.mpiReplicaSpecs.Launcher.template.spec.containers.command",
            None,
            "starts together with the workers, as Kueue admits all pods at once: let it wait until each host in "
            "/etc/mpi/hostfile answers ssh -F /etc/dtj/ssh_config",
        )
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
    job = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": _metadata(named, metadata, made),
        "spec": made,
    }
    _check(job, notes)
    return job


def _templates(spec: Spec) -> list[Template]:
    replicas = spec.tf_replica_specs if isinstance(spec, TFJobSpec) else {}
    replicas = spec.mpi_replica_specs if isinstance(spec, MPIJobSpec) else replicas
    return [replica.template for replica in replicas.values()]


def _members(made: Manifest) -> int:
    """How many pods the job begins with, as its gang counts them."""
    specs = made["replicaSpecs"]
    return sum(specs[role].get("replicas", 1) for role in ("worker", "ps") if role in specs)


def _name(given: Metadata, notes: Notes) -> str:
    if given.name or not given.generate_name:
        return given.name
    name = given.generate_name.rstrip("-")
    notes.tell("metadata.generateName", given.generate_name, f"now the name {name}")
    return name


def _metadata(name: str, given: Metadata, made: Manifest) -> Manifest:
    labels, annotations, of_pods = moved_labels(given)
    if waits_in_kueue(given):
        _label_pods(made, of_pods)
    namespace = {"namespace": given.namespace} if given.namespace else {}
    return {"name": name, **namespace, **kept_metadata(labels, annotations)}


def _label_pods(made: Manifest, labels: dict[str, str]) -> None:
    """Give every pod the labels; that of the queue is set by the operator alone."""
    if labels and made["strategy"] == "Horovod":
        made["replicaSpecs"].setdefault("launcher", {})
    for role in made["replicaSpecs"].values():
        template = role.get("template", {})
        metadata = template.get("metadata", {})
        own = {key: value for key, value in metadata.get("labels", {}).items() if key != KUEUE_QUEUE}
        if own == metadata.get("labels", {}) and not labels:
            continue
        role["template"] = {**template, "metadata": {**metadata, "labels": labels | own}}


def _check(job: Manifest, notes: Notes) -> None:
    """Refuse what would be no valid job, whatever the reason."""
    for fault in check(job)[1]:
        notes.refuse(f"{fault.field} (converted)", None, fault.message)
