"""What a plan is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from dtj.api.job import Manifest


@dataclass(frozen=True, slots=True)
class Replica:
    """One pod of a plan. A job may have thousands: the manifest is made when the pod is."""

    name: str
    role: str
    index: int
    attempt: int
    """In which attempt the pod is to be."""


@dataclass(frozen=True)
class TensorBoard:
    """What shows a job's event files, beside the training."""

    service: Manifest
    deployment: Manifest


@dataclass(frozen=True)
class Plan:
    """The objects of one attempt of a job."""

    service: Manifest
    config: Manifest
    ssh_secret: str | None
    """Name of the Secret with the job's ssh key, where the strategy needs one; its content is made once."""
    stages: tuple[tuple[Replica, ...], ...]
    """Pods by stage: those of a stage are made when all of the stages before are ready, or see `waits_itself`."""
    pod: Callable[[Replica], Manifest] = field(compare=False)
    """Makes the manifest of a pod."""
    decisive: tuple[str, ...]
    """Names of the pods whose success is the job's."""
    reporter: str
    """Name of the pod that runs rank 0 and serves /progress."""
    answering: frozenset[str] = frozenset()
    """Names of the pods that serve PROGRESS_PORT."""
    evaluator: str | None = None
    """Name of the pod that measures checkpoints beside the training, where there is one: the job does not need it."""
    evaluator_timeout: float = 0.0
    """Seconds that the evaluator gets after the end of the training."""
    waits_itself: bool = False
    """Whether the last stage's containers wait for those before: they need only run, where that takes no time."""
    network_policy: Manifest | None = None
    """What lets nobody but the job's own pods and the operator reach them, where the operator makes that."""
    restarts_with: Mapping[str, frozenset[str]] | None = None
    """The pods that are started again when one is lost, by its name; None: all of them, whichever it is."""
    tensorboard: TensorBoard | None = None
    """Where the job asks for one."""
    mpijob: Manifest | None = None
    """The MPIJob that the job is handed over as. Then only it and `config` are made; mpi-operator makes a service and
    pods like those of the plan."""

    pod_group: Manifest | None = None
    """The object by which a scheduler places the pods of the first stage all together or not at all."""
    workload: str | None = None
    """Name of Kueue's Workload, where one group of pods is queued."""
    all_or_nothing: bool = False
    """A scheduler admits the pods except the evaluator as one group: no member is created again alone, and each
    attempt is a group of its own."""

    def __post_init__(self) -> None:
        """Raise ValueError for a plan that contradicts itself: the mistake is in the strategy's module."""
        names = [replica.name for stage in self.stages for replica in stage]
        if not names or not all(self.stages) or len({*names}) < len(names):
            raise ValueError(f"each stage needs pods, and each pod a name of its own: {names}")
        named = {*self.decisive, self.reporter, *self.answering, *(self.restarts_with or {})}
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
        """Every pod of the attempt."""
        return tuple(replica for stage in self.stages for replica in stage)

    @property
    def pods(self) -> tuple[Manifest, ...]:
        """The manifests of all pods, made anew: for a person or a machine, not for each pass over a large job."""
        return tuple(map(self.pod, self.replicas))

    @property
    def objects(self) -> tuple[Manifest, ...]:
        """All that the operator makes, but the Secret."""
        board = (self.tensorboard.service, self.tensorboard.deployment) if self.tensorboard else ()
        if self.mpijob:
            return (self.config, self.mpijob, *board)
        groups = (self.pod_group,) if self.pod_group is not None else ()
        return (self.service, self.config, *groups, *self.pods, *board)

    @cached_property
    def roles(self) -> Mapping[str, int]:
        """Pods by role."""
        return Counter(replica.role for replica in self.replicas)

    @cached_property
    def stage_names(self) -> list[list[str]]:
        """The names of the pods, by stage."""
        return [[replica.name for replica in stage] for stage in self.stages]

    @cached_property
    def created_last(self) -> frozenset[str]:
        """Names of the pods of the last stage: while all of them exist, every pod of the attempt has been created."""
        return frozenset(self.stage_names[-1]) - {self.evaluator}

    @cached_property
    def attempts(self) -> dict[str, int]:
        """In which attempt each pod is to be, by its name."""
        return {replica.name: replica.attempt for replica in self.replicas}
