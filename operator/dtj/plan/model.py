"""The data types of a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from dtj.api.job import Manifest
from dtj.api.shape import Replica, Shape
from dtj.plan.recipe import Recipe


@dataclass(frozen=True)
class TensorBoard:
    """The objects that show a job's event files, beside the training."""

    service: Manifest
    deployment: Manifest


def _not_rendered(replica: Replica) -> Manifest:
    raise ValueError(f"the plan has no manifest for pod {replica.name}: pass the plan to with_pods first")


@dataclass(frozen=True)
class Plan:
    """The objects of one attempt of a job."""

    shape: Shape
    service: Manifest
    config: Manifest
    recipe: Callable[[Replica], Recipe] = field(compare=False)
    """Generates the recipe of a pod's container."""
    pod: Callable[[Replica], Manifest] = field(compare=False, default=_not_rendered)
    """Generates the manifest of a pod. `with_pods` in `plan.pods` sets it: a strategy leaves it out."""
    ssh_secret: str | None = None
    """Name of the Secret with the job's ssh key, if the strategy needs one. The key is generated once for each
    job."""
    network_policy: Manifest | None = None
    """The NetworkPolicy that admits only the job's own pods and the operator, if the operator creates one."""
    tensorboard: TensorBoard | None = None
    """The job's TensorBoard, if the job asks for one."""
    mpijob: Manifest | None = None
    """The MPIJob to which the job is delegated. The operator then creates only the MPIJob and `config`; mpi-operator
    creates a service and pods like those of the plan."""
    pod_group: Manifest | None = None
    """The object by which a scheduler admits the pods of the first stage all together or not at all."""

    @cached_property
    def serves_progress(self) -> frozenset[str]:
        """Names of the pods that serve PROGRESS_PORT. The pods of a role are alike."""
        first = {replica.role: replica for replica in reversed(self.shape.replicas)}
        roles = [role for role, replica in first.items() if self.recipe(replica).serves_progress]
        return frozenset(name for role in roles for name in self.shape.roles[role])

    @cached_property
    def recipes(self) -> Mapping[str, Recipe]:
        """Generate the recipe of every pod, by pod name. Do not use it in a pass over a large job."""
        return {replica.name: self.recipe(replica) for replica in self.shape.replicas}

    @property
    def pods(self) -> tuple[Manifest, ...]:
        """Generate the manifests of all pods. Use it for output, not in each pass over a large job."""
        return tuple(map(self.pod, self.shape.replicas))

    @property
    def objects(self) -> tuple[Manifest, ...]:
        """Return all objects that the operator creates, except the Secret."""
        board = (self.tensorboard.service, self.tensorboard.deployment) if self.tensorboard else ()
        if self.mpijob:
            return (self.config, self.mpijob, *board)
        groups = (self.pod_group,) if self.pod_group is not None else ()
        return (self.service, self.config, *groups, *self.pods, *board)
