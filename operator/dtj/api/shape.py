"""The shape of a job: the pods of its present attempt, and what each of them means to the job.

`dtj.plan` gives these pods their containers, and `dtj.status` evaluates the job by these pods. `shape_of` makes the
shape of a job whose spec has no faults. `stored_shape` makes the shape of any other job from its status: the pods of
such a job still run, end, and are cleaned up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from dtj.api.job import Job
from dtj.api.names import pod_name
from dtj.api.stored_job import AnyJob
from dtj.api.strategy import StrategyRules


@dataclass(frozen=True, slots=True)
class Replica:
    """One pod of a job. A job may have thousands of pods: the manifest is generated when the pod is created."""

    name: str
    role: str
    index: int
    attempt: int
    """The attempt to which the pod must belong. A pod of an earlier attempt is deleted."""


@dataclass(frozen=True)
class Shape:
    """The pods of a job's present attempt."""

    stages: tuple[tuple[Replica, ...], ...]
    """Pods by stage. The pods of a stage are created when all earlier stages are ready; see also
    `next_stage_on_running`."""
    decisive: tuple[str, ...]
    """Names of the pods whose success is the job's success."""
    reporter: str
    """Name of the pod that runs rank 0 and reports the progress of the training."""
    artifacts_uri: str | None = None
    restarts_with: Mapping[str, frozenset[str]] | None = None
    """By pod name: the pods that start again when that pod is lost. None: every loss restarts all pods."""
    holds_state: frozenset[str] = frozenset()
    """Names of the pods that hold the state of the training and must not end before the training ends."""
    evaluator: str | None = None
    """Name of the pod that measures checkpoints beside the training, if any. The job can succeed without it."""
    evaluator_timeout: float = 0.0
    """Seconds that the evaluator may run after the end of the training."""
    next_stage_on_running: bool = False
    """Whether the containers of a stage wait for the earlier stages themselves. The operator then creates the next
    stage when the earlier pods run, if they become ready soon after their start."""
    workload: str | None = None
    """Name of Kueue's Workload of the attempt, if the pods are queued as one group."""
    all_or_nothing: bool = False
    """Whether a scheduler admits the pods except the evaluator as one group. A lost member is then not created again
    alone: each attempt is a group of its own."""
    handed_over: bool = False
    """Whether mpi-operator creates the pods."""
    planned: bool = True
    """Whether the spec asks for these pods; if False, the shape stems from the stored status."""

    def __post_init__(self) -> None:
        """Raise ValueError for a shape that contradicts itself, which is a bug in the rules of a strategy."""
        names = self.attempts.keys()
        if not names or not all(self.stages) or len(names) < len(self.replicas):
            listed = [replica.name for replica in self.replicas]
            raise ValueError(f"each stage of a job needs pods, and each pod a name of its own: {listed}")
        named = {*self.decisive, self.reporter, *(self.restarts_with or {}), *self.holds_state}
        self.check_names(named if self.evaluator is None else named | {self.evaluator})
        if not self.decisive or self.evaluator in self.decisive:
            raise ValueError("the success of at least one pod besides the evaluator must decide the job")
        if self.restarts_with is not None and self.restarts_with.keys() != names:
            raise ValueError("restarts_with must say for every pod which pods start again")

    def check_names(self, names: Iterable[str]) -> None:
        """Raise ValueError if one of these names is no pod's."""
        if unknown := {*names} - self.attempts.keys():
            raise ValueError(f"the job has no pod {', '.join(sorted(unknown))}")

    @cached_property
    def replicas(self) -> tuple[Replica, ...]:
        """Every pod of the attempt."""
        return tuple(replica for stage in self.stages for replica in stage)

    @cached_property
    def roles(self) -> Mapping[str, Sequence[str]]:
        """Names of the pods, by role."""
        names = defaultdict[str, list[str]](list)
        for replica in self.replicas:
            names[replica.role].append(replica.name)
        return dict(names)

    @cached_property
    def attempts(self) -> Mapping[str, int]:
        """The attempt to which each pod must belong, by pod name."""
        return {replica.name: replica.attempt for replica in self.replicas}

    @cached_property
    def newest_attempt(self) -> int:
        """The newest attempt to which a pod must belong."""
        return max(self.attempts.values())

    @cached_property
    def stage_names(self) -> Sequence[Sequence[str]]:
        """Names of the pods, by stage."""
        return [[replica.name for replica in stage] for stage in self.stages]

    @cached_property
    def first(self) -> frozenset[str]:
        """Names of the pods of the first stage."""
        return frozenset(self.stage_names[0])

    @cached_property
    def created_last(self) -> frozenset[str]:
        """Names of the pods of the last stage. While all of them exist, every pod of the attempt has been created."""
        return frozenset(self.stage_names[-1]) - {self.evaluator}

    @cached_property
    def needed(self) -> frozenset[str]:
        """Names of the pods that must run for the job to run: all but the evaluator."""
        return frozenset(self.attempts) - {self.evaluator}

    @cached_property
    def decides(self) -> frozenset[str]:
        """Names of the decisive pods."""
        return frozenset(self.decisive)

    @cached_property
    def peers(self) -> frozenset[str]:
        """Names of the pods whose program also fails when the program of another of these pods fails.

        Where no pod holds the state for the others, the decisive pod and those that restart with it train in step.
        """
        if self.restarts_with is None or self.holds_state:
            return self.decides
        return self.restarts_with.get(self.decisive[0], self.decides)

    @cached_property
    def completes(self) -> frozenset[str]:
        """Names of the pods whose success is final while the training goes on without them."""
        if self.holds_state and self.restarts_with is not None:
            return self.needed - self.holds_state - self.decides
        return self.peers if len(self.peers) > 1 else frozenset()

    @cached_property
    def tells_the_end(self) -> Sequence[str]:
        """Names of the pods whose termination message has the last progress and artifacts of the training."""
        return (self.reporter,) if self.reporter in self.decides else self.decisive


def shape_of(job: Job, *, next_stage_on_running: bool = False) -> Shape:
    """Return the shape of a job without faults. next_stage_on_running: see `Shape`."""
    return _shape(
        job.name,
        job.rules,
        job.pods,
        attempt_of(job),
        artifacts_uri=job.artifacts_uri,
        evaluator_timeout=timeout(job.spec) if (timeout := job.rules.evaluator_timeout) else 0.0,
        next_stage_on_running=next_stage_on_running,
        handed_over=job.by_mpi_operator,
    )


def stored_shape(job: AnyJob) -> Shape | None:
    """Return the shape of a job whose spec has faults, by its status; None if the status names no decisive pod."""
    status = job.status
    sizes = {role: count.desired for role, count in status.replica_statuses.items() if count.desired}
    if job.rules is None:
        return None
    # A `Job` has the rules that fit its spec. For an unreadable job, the rules follow from the roles that have pods.
    rules = job.rules if isinstance(job, Job) else job.rules.of_pods(sizes)
    if not sizes.keys() & set(rules.named["decides"]):
        return None
    return _shape(
        job.name,
        rules,
        sizes,
        attempt_of(job),
        artifacts_uri=status.artifacts.uri if status.artifacts else None,
        planned=False,
    )


def attempt_of(job: AnyJob) -> Callable[[str], int]:
    """Return the function that says to which attempt a pod must belong, by `<role>-<index>`."""
    known, attempt = job.status.replica_attempts, job.attempt
    if job.rules.restarts_alone if job.rules is not None else known is not None:
        return lambda replica: (known or {}).get(replica, 1)
    return lambda _: attempt


def _shape(
    name: str,
    rules: StrategyRules,
    sizes: Mapping[str, int],
    attempt: Callable[[str], int],
    *,
    artifacts_uri: str | None,
    evaluator_timeout: float = 0.0,
    next_stage_on_running: bool = False,
    handed_over: bool = False,
    planned: bool = True,
) -> Shape:
    """Apply the rules of a strategy. sizes: the number of pods by role; attempt: see `attempt_of`."""
    names = {role: [pod_name(name, role, index) for index in range(count)] for role, count in sizes.items()}
    pods = {
        role: tuple(
            Replica(pod, role, index, attempt(f"{role}-{index}")) for index, pod in enumerate(of_role)
        )
        for role, of_role in names.items()
    }

    def of(rule: str) -> tuple[str, ...]:
        return tuple(name for role in rules.named[rule] for name in names.get(role, ()))

    # The stored status may name roles that the strategy does not have. Such pods count as pods of the first stage.
    last = rules.roles.keys() - rules.named["created_first"]
    stages = (
        tuple(replica for role in pods if (role in last) is late for replica in pods[role])
        for late in (False, True)
    )
    decisive = of("all_decide") or of("decides")[:1]
    return Shape(
        stages=tuple(stage for stage in stages if stage),
        decisive=decisive,
        reporter=next(iter(of("reports")), decisive[0]),
        artifacts_uri=artifacts_uri,
        restarts_with=rules.restart_groups(names),
        holds_state=frozenset(of("holds_state")),
        evaluator=next(iter(of("evaluates")), None),
        evaluator_timeout=evaluator_timeout,
        next_stage_on_running=next_stage_on_running,
        handed_over=handed_over,
        planned=planned,
    )
