"""The runtime of a TrainJob: the pod template that the TrainJob fills in (trainer.kubeflow.org/v1alpha1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field, ValidationError

from dtj.api.job import Manifest
from dtj.convert.kubeflow_fields import KubeflowObject, ObjectMeta, Template, without_nulls
from dtj.convert.notes import Notes

GROUP = "trainer.kubeflow.org"
SHIPPED = "torch-distributed"
"""The runtime for torch that Kubeflow Trainer installs: one node, and a container with only an image."""
NODE = "node"
"""The name of the container that trains."""
_STEP = f"{GROUP}/trainjob-ancestor-step"
_KINDS = ("ClusterTrainingRuntime", "TrainingRuntime")
# The keys by which Kubernetes merges the entries of a list. A patch replaces a list without a key.
_KEYS = {
    **dict.fromkeys(("containers", "initContainers", "volumes", "env", "imagePullSecrets"), "name"),
    "volumeMounts": "mountPath",
}


class RuntimeRef(KubeflowObject):
    """The reference of a TrainJob to its runtime."""

    name: str
    kind: str = _KINDS[0]


class _MLPolicy(KubeflowObject):
    num_nodes: Annotated[int, Field(ge=1, le=10000)] = 1
    torch: dict[str, Any] | None = None


class _JobSpec(KubeflowObject):
    template: Template
    backoff_limit: int | None = None


class _JobTemplate(KubeflowObject):
    metadata: ObjectMeta = ObjectMeta()
    spec: _JobSpec


class _ReplicatedJob(KubeflowObject):
    name: str
    template: _JobTemplate


class _FailurePolicy(KubeflowObject):
    max_restarts: int = 0


class _JobSetSpec(KubeflowObject):
    replicated_jobs: tuple[_ReplicatedJob, ...] = ()
    failure_policy: _FailurePolicy | None = None


class _JobSet(KubeflowObject):
    metadata: ObjectMeta = ObjectMeta()
    spec: _JobSetSpec


class Runtime(KubeflowObject):
    """The spec of a TrainingRuntime or ClusterTrainingRuntime."""

    ml_policy: _MLPolicy = _MLPolicy()
    pod_group_policy: dict[str, Any] | None = None
    template: _JobSet

    @property
    def node(self) -> _ReplicatedJob | None:
        """The job whose pods train."""
        return next((job for job in self.template.spec.replicated_jobs if step_of(job) == "trainer"), None)

    @property
    def other_jobs(self) -> list[_ReplicatedJob]:
        """The jobs before the training or beside it."""
        return [job for job in self.template.spec.replicated_jobs if job is not self.node]


def step_of(job: _ReplicatedJob) -> str | None:
    """Return which step of a TrainJob a job of the runtime is."""
    return job.template.metadata.labels.get(_STEP)


def is_runtime(manifest: Manifest) -> bool:
    """Return whether an object is a runtime of a TrainJob."""
    return str(manifest.get("apiVersion")).partition("/")[0] == GROUP and str(manifest.get("kind")) in _KINDS


def find_runtime(
    ref: RuntimeRef, patches: Sequence[Manifest], others: Sequence[Manifest], notes: Notes
) -> Runtime | None:
    """Return the runtime with the patches of the TrainJob. If dtj can't read it, the notes have the reasons."""
    found = [
        other
        for other in others
        if is_runtime(other) and other["kind"] == ref.kind and _name(other) == ref.name
    ]
    spec: Any = without_nulls(found[0].get("spec")) if found else _shipped(ref, notes)
    if spec is None and not found:
        return None
    for index, patch in enumerate(patches):
        given = patch.get("trainingRuntimeSpec")
        if isinstance(given, dict):
            spec = patched(spec, given)
            notes.add(
                f"spec.runtimePatches[{index}]", patch.get("manager"), "applied to the runtime's template"
            )
    try:
        return Runtime.model_validate(spec)
    except ValidationError as error:
        for item in error.errors():
            place = ".".join(map(str, item["loc"]))
            notes.refuse(
                f"{ref.kind} {ref.name}: spec.{place}", None, item["msg"][0].lower() + item["msg"][1:]
            )
        return None


def _name(manifest: Manifest) -> Any:
    metadata = manifest.get("metadata")
    return metadata.get("name") if isinstance(metadata, dict) else None


def _shipped(ref: RuntimeRef, notes: Notes) -> Manifest | None:
    get = f"kubectl get {ref.kind.lower()} {ref.name} -o yaml"
    if ref.name != SHIPPED:
        notes.refuse(
            "spec.runtimeRef.name",
            ref.name,
            f"not in the input: the runtime has the template of the pods; add the output of `{get}` to the input",
        )
        return None
    notes.add(
        "spec.runtimeRef.name",
        ref.name,
        f"not in the input: read as the runtime that Trainer installs, one node with torch. If yours differs, "
        f"add the output of `{get}` to the input",
    )
    container = {"name": NODE}
    job = {
        "name": NODE,
        "template": {
            "metadata": {"labels": {_STEP: "trainer"}},
            "spec": {"template": {"spec": {"containers": [container]}}},
        },
    }
    return {"mlPolicy": {"torch": {}}, "template": {"spec": {"replicatedJobs": [job]}}}


def patched(value: Any, patch: Any, field: str = "") -> Any:
    """Return a value with a patch as Kubernetes merges it: objects by field, and some lists by a key."""
    if isinstance(value, Mapping) and isinstance(patch, Mapping):
        return {
            **value,
            **{name: patched(value.get(name), given, name) for name, given in patch.items()},
        }
    key = "name" if field == "replicatedJobs" else _KEYS.get(field)
    if key and isinstance(value, list) and isinstance(patch, list):
        return list(_by_key(value, patch, key))
    return patch


def _by_key(entries: list[Any], patches: list[Any], key: str) -> Iterator[Any]:
    given = {str(entry.get(key)): entry for entry in patches if isinstance(entry, dict)}
    for entry in entries:
        patch = given.pop(str(entry.get(key)), None) if isinstance(entry, dict) else None
        yield entry if patch is None else patched(entry, patch)
    yield from given.values()
