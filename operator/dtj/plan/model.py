"""The data types of a plan."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from dtj.api.job import Manifest


@dataclass(frozen=True, slots=True)
class Replica:
    """One pod of a plan. A job may have thousands of pods: the manifest is generated when the pod is created."""

    name: str
    role: str
    index: int
    attempt: int
    """The attempt to which the pod must belong."""


@dataclass(frozen=True)
class TensorBoard:
    """The objects that show a job's event files, beside the training."""

    service: Manifest
    deployment: Manifest


@dataclass(frozen=True)
class Plan:
    """The objects of one attempt of a job."""

    service: Manifest
    config: Manifest
    ssh_secret: str | None
    """Name of the Secret with the job's ssh key, if the strategy needs one. The key is generated once for each
    job."""
    stages: tuple[tuple[Replica, ...], ...]
    """Pods by stage. The pods of a stage are created when all earlier stages are ready; see also
    `next_stage_on_running`."""
    pod: Callable[[Replica], Manifest] = field(compare=False)
    """Generates the manifest of a pod."""
    decisive: tuple[str, ...]
    """Names of the pods whose success is the job's success."""
    reporter: str
    """Name of the pod that runs rank 0 and serves /progress."""
    serves_progress: frozenset[str] = frozenset()
    """Names of the pods that serve PROGRESS_PORT."""
    port_variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables whose value is a port alone: the name of the pod that listens on it, by variable."""
    evaluator: str | None = None
    """Name of the pod that measures checkpoints beside the training, if any. The job can succeed without it."""
    evaluator_timeout: float = 0.0
    """Seconds that the evaluator may run after the end of the training."""
    next_stage_on_running: bool = False
    """Whether the containers of a stage wait for the earlier stages themselves. The operator then creates the next
    stage when the earlier pods run, if they become ready soon after their start."""
    network_policy: Manifest | None = None
    """The NetworkPolicy that admits only the job's own pods and the operator, if the operator creates one."""
    restarts_with: Mapping[str, frozenset[str]] | None = None
    """By pod name: the pods that start again when that pod is lost. None: every loss restarts all pods."""
    tensorboard: TensorBoard | None = None
    """The job's TensorBoard, if the job asks for one."""
    mpijob: Manifest | None = None
    """The MPIJob to which the job is delegated. The operator then creates only the MPIJob and `config`; mpi-operator
    creates a service and pods like those of the plan."""

    pod_group: Manifest | None = None
    """The object by which a scheduler admits the pods of the first stage all together or not at all."""
    workload: str | None = None
    """Name of Kueue's Workload, if a group of pods is queued."""
    all_or_nothing: bool = False
    """A scheduler admits the pods except the evaluator as one group: no member is created again alone, and each
    attempt is a group of its own."""

    def __post_init__(self) -> None:
        """Raise ValueError for a plan that contradicts itself, which is a bug in the strategy's module."""
        names = [replica.name for stage in self.stages for replica in stage]
        if not names or not all(self.stages) or len({*names}) < len(names):
            raise ValueError(f"each stage of a plan needs pods, and each pod a name of its own: {names}")
        named = {*self.decisive, self.reporter, *self.serves_progress, *(self.restarts_with or {})}
        named.update(self.port_variables.values())
        if self.evaluator is not None:
            named.add(self.evaluator)
        if unknown := named.difference(names):
            raise ValueError(f"the plan has no pod {', '.join(sorted(unknown))}")
        if not self.decisive or self.evaluator in self.decisive:
            raise ValueError("the success of at least one pod besides the evaluator must decide the job")
        if self.restarts_with is not None and self.restarts_with.keys() != {*names}:
            raise ValueError("restarts_with must say for every pod which pods start again")

    @cached_property
    def replicas(self) -> tuple[Replica, ...]:
        """Return every pod of the attempt."""
        return tuple(replica for stage in self.stages for replica in stage)

    @property
    def pods(self) -> tuple[Manifest, ...]:
        """Generate the manifests of all pods. Use it for output, not in each pass over a large job."""
        return tuple(map(self.pod, self.replicas))

    @property
    def objects(self) -> tuple[Manifest, ...]:
        """Return all objects that the operator creates, except the Secret."""
        board = (self.tensorboard.service, self.tensorboard.deployment) if self.tensorboard else ()
        if self.mpijob:
            return (self.config, self.mpijob, *board)
        groups = (self.pod_group,) if self.pod_group is not None else ()
        return (self.service, self.config, *groups, *self.pods, *board)

    @cached_property
    def roles(self) -> Mapping[str, list[str]]:
        """Return the names of the pods, by role."""
        names = defaultdict[str, list[str]](list)
        for replica in self.replicas:
            names[replica.role].append(replica.name)
        return names

    @cached_property
    def stage_names(self) -> list[list[str]]:
        """Return the names of the pods, by stage."""
        return [[replica.name for replica in stage] for stage in self.stages]

    @cached_property
    def created_last(self) -> frozenset[str]:
        """Return the pods of the last stage. While all of them exist, every pod of the attempt has been created."""
        return frozenset(self.stage_names[-1]) - {self.evaluator}

    @cached_property
    def attempts(self) -> dict[str, int]:
        """Return the attempt of each pod, by pod name."""
        return {replica.name: replica.attempt for replica in self.replicas}
