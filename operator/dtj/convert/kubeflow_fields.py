"""The fields of Kubeflow's jobs that the conversion reads.

The versions are `kubeflow.org/v1`, `v2beta1`, and versions before v1 with the same fields. Other fields stay in
`model_extra`: the conversion copies each of these fields or notes that the field is left out.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from dtj.api.base import Quantity


class KubeflowObject(BaseModel):
    """A YAML object with camelCase keys. Undeclared fields are allowed."""

    model_config = ConfigDict(alias_generator=to_camel, extra="allow", frozen=True)

    @property
    def rest(self) -> dict[str, Any]:
        """The fields that the model does not declare."""
        return dict(self.model_extra or {})


class Variable(KubeflowObject):
    """An environment variable of a container."""

    name: str


class ContainerResources(KubeflowObject):
    """The `resources` of a container."""

    requests: dict[str, Quantity] = {}
    limits: dict[str, Quantity] = {}


class Container(KubeflowObject):
    """A container of a pod template."""

    name: str
    image: str = ""
    command: list[str] = []
    args: list[str] = []
    env: list[Variable] = []
    ports: list[dict[str, Any]] = []
    resources: ContainerResources = ContainerResources()


class PodSpec(KubeflowObject):
    """The `spec` of a pod template."""

    containers: Annotated[list[Container], Field(min_length=1)]


class ObjectMeta(KubeflowObject):
    """The `metadata` of a job or a pod template."""

    name: str = ""
    generate_name: str = ""
    namespace: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class Template(KubeflowObject):
    """A pod template."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec


class KubeflowReplica(KubeflowObject):
    """The replicas of one role."""

    replicas: Annotated[int, Field(ge=0, le=10000)] = 1
    restart_policy: str | None = None
    template: Template


class KubeflowRunPolicy(KubeflowObject):
    """The fields of `runPolicy` that have an equivalent in dtj."""

    suspend: bool = False
    backoff_limit: Annotated[int, Field(ge=0)] | None = None
    active_deadline_seconds: Annotated[int, Field(ge=1)] | None = None
    ttl_seconds_after_finished: Annotated[int, Field(ge=0)] | None = None
    managed_by: str | None = None
    clean_pod_policy: str | None = None
    scheduling_policy: dict[str, Any] = {}


class Spec(KubeflowObject):
    """The fields that the spec of every kind has."""

    run_policy: KubeflowRunPolicy = KubeflowRunPolicy()

    @property
    def replicas(self) -> dict[str, KubeflowReplica]:
        """The replicas by role."""
        raise NotImplementedError


class TFJobSpec(Spec):
    """The spec of a TFJob."""

    tf_replica_specs: dict[str, KubeflowReplica]

    @property
    def replicas(self) -> dict[str, KubeflowReplica]:
        """The replicas by role."""
        return self.tf_replica_specs


class MPIJobSpec(Spec):
    """The spec of an MPIJob."""

    mpi_replica_specs: dict[str, KubeflowReplica]
    slots_per_worker: Annotated[int, Field(ge=1, le=1024)] = 1
    run_launcher_as_worker: bool = False
    mpi_implementation: str = "OpenMPI"
    main_container: str | None = None
    ssh_auth_mount_path: str | None = None

    @property
    def replicas(self) -> dict[str, KubeflowReplica]:
        """The replicas by role."""
        return self.mpi_replica_specs


class PyTorchJobSpec(Spec):
    """The spec of a PyTorchJob."""

    pytorch_replica_specs: dict[str, KubeflowReplica]
    nproc_per_node: str | int | None = None

    @property
    def replicas(self) -> dict[str, KubeflowReplica]:
        """The replicas by role."""
        return self.pytorch_replica_specs


class WorkerSpec(Spec):
    """The spec of a job of equal workers, as the conversion reads it from several objects or parts of the input."""

    worker: KubeflowReplica
    procs: str
    """Ranks in each worker: a number, or auto, gpu or cpu."""
    path: str
    """The field of the input that describes the workers, for notes."""
    procs_path: str
    """The field of the input with the number of ranks, for notes."""
    scheduling: dict[str, Any] = {}
    """dtj's `schedulingPolicy`."""

    @property
    def replicas(self) -> dict[str, KubeflowReplica]:
        """The replicas by role."""
        return {"worker": self.worker}


def without_nulls(value: Any) -> Any:
    """Return the value without null fields. The API server treats a null field as absent."""
    if isinstance(value, dict):
        return {key: without_nulls(entry) for key, entry in value.items() if entry is not None}
    if isinstance(value, list):
        return [without_nulls(entry) for entry in value]
    return value
