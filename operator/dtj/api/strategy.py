"""The type of a strategy's rules, which validation, CLI, client and status read. See also `dtj.api.strategies`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from dtj.api.spec import JobSpec, ReplicaSpec

Hosts = Mapping[str, str]
"""By role: the host name of the pod of index 0."""


@dataclass(frozen=True, kw_only=True)
class Role:
    """The rules of one role of a strategy."""

    required: bool = False
    """The job must have an entry for the role in replicaSpecs."""
    unless: str = ""
    """The condition under which a job needs no entry of a required role: a clause for the message about the entry."""
    implied: bool = False
    """The role has pods even if the job has no entry for the role."""
    instead_of: str | None = None
    """Name of a role that can't have pods in the same job."""
    single: bool = False
    """The role has exactly one pod."""
    without_gpus: str | None = None
    """Why the role may have no GPUs; None: it may have them."""
    created_first: bool = True
    """The pods need no other pod of the job. The operator creates them first, and only they belong to a gang."""
    runs_program: bool = True
    """The pods run the job's command. Other pods run what the strategy gives them."""
    decides: bool = False
    """The success of the pod of index 0 is the job's success."""
    all_decide: bool = False
    """With `decides`: the job succeeds when every pod of the role has succeeded, not only that of index 0."""
    reports: bool = False
    """The pod of index 0 reports the progress."""
    evaluates: bool = False
    """The pods evaluate checkpoints. The training continues without them."""
    holds_state: bool = False
    """The pods hold a part of the training's state. Such a pod must not end before the training, and the training
    can't go on without it."""
    collects_ranks: bool = False
    """The log of the pod contains the output of all ranks, as that of mpirun's launcher does."""
    option: str | None = None
    """The option of `dtj new` for the number of pods: `workers`, `ps` or `evaluator`; None: there is no option."""
    ranks: Callable[[JobSpec, int], range] | None = None
    """The ranks that run in the pod of an index; None: no ranks run in the role."""
    resources: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """With `implied`: requests and limits of the role's pod in a job without an entry for the role."""


@dataclass(frozen=True, kw_only=True)
class ScriptMark:
    """A name of a library. A script that uses the name is written for a strategy."""

    name: str
    """A name that scripts of the strategy use: tensorflow.distribute.ParameterServerStrategy, or a name below it."""
    replicas: Mapping[str, int] = field(default_factory=dict)
    """The number of pods of each role that such a script needs besides its workers."""


@dataclass(frozen=True, kw_only=True)
class Starter:
    """The values that `dtj new` writes for a strategy by default."""

    image: str
    """Name of the image in dtj's registry, without a tag."""
    module: str
    """The module of `dtj_trainer.programs` that trains."""
    block: Mapping[str, str] | None = None
    """Fields of the strategy's block in the spec, by the names of the model."""


@dataclass(frozen=True, kw_only=True)
class StrategyRules:
    """One strategy, as validation, the CLI, the client and the status see it."""

    name: str
    description: str
    """What the strategy is, as a clause. The description of `spec.strategy` in the CRD contains it."""
    roles: Mapping[str, Role]
    starter: Starter
    block: str | None = None
    """The block of the spec that only this strategy has, by the name of the model's field."""
    form: Callable[[JobSpec], StrategyRules] | None = None
    """The rules of a job whose roles depend on what its spec names; None: every job has these rules."""
    form_of_pods: Callable[[Collection[str]], StrategyRules] | None = None
    """As `form`, but from the names of the roles that have pods: for a job whose spec can't be read."""
    restarts_alone: bool = False
    """Whether a lost replica restarts alone, or with its group (`restart_groups`). False: all replicas restart."""
    holds_rounds: Callable[[Mapping[str, ReplicaSpec]], bool] = lambda _: False
    """Whether the pods of these roles can restart their ranks in place. The pods of an MPIJob never can."""
    evaluator_timeout: Callable[[JobSpec], float] | None = None
    """Seconds that the pod that evaluates may run after the end of the training; None: 0."""
    volumes: tuple[str, ...] = ()
    """Names of the volumes that the strategy adds to each pod."""
    peer_list_bytes: Callable[[Hosts, Mapping[str, int], int], int] = lambda *_: 0
    """Returns the size of the list of pods that the strategy writes into the job's ConfigMap.

    Its arguments: the host of the first pod of each role, the number of pods of each role, and the ranks in a pod.
    """
    peer_list_variable: str | None = None
    """The environment variable that holds the whole list of pods; None if the strategy has none."""
    facts: Callable[[Mapping[str, Any]], dict[str, str]] = lambda _: {}
    """Returns rows for `dtj report` that only this strategy has, from a spec as plain data."""
    faults: Callable[[JobSpec], Iterable[tuple[str, str]]] | None = None
    """Returns faults of a spec that only this strategy has: the field and the message of each fault."""
    notes: Callable[[JobSpec], tuple[str, ...]] = lambda _: ()
    """Returns sentences that `dtj plan` prints about decisions that the strategy takes for a spec."""
    variables: frozenset[str] = frozenset()
    """Environment variables of its own that the strategy sets, and that a job must not set."""
    script_marks: tuple[ScriptMark, ...] = ()
    """How `dtj submit SCRIPT` recognizes scripts of the strategy. The numbers of pods come from the first mark if the
    user names the strategy and the script has no mark."""
    executables: tuple[str, ...] = ()
    """Alternative programs, such as two versions of mpirun. `dtj run` needs one of them on the machine."""
    shares_gpus: bool = False
    """With `dtj run`, every rank sees all GPUs of the job, and the program chooses one by its local rank."""

    @property
    def ranked(self) -> bool:
        """Whether the processes of the training are numbered as ranks."""
        return any(role.ranks for role in self.roles.values())

    @cached_property
    def named(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the roles for which a field of `Role` is set, by the name of the field."""
        return {
            each.name: tuple(name for name, role in self.roles.items() if getattr(role, each.name))
            for each in fields(Role)
        }

    def of_pods(self, roles: Collection[str]) -> StrategyRules:
        """The rules of a job of which only the roles that have pods are known."""
        return self.form_of_pods(roles) if self.form_of_pods is not None else self

    def restart_groups(self, pods: Mapping[str, Sequence[str]]) -> dict[str, frozenset[str]] | None:
        """Return the pods that start again when a pod is lost, by the name of the lost pod; None: always all pods.

        pods: names of the job's pods by role. The pods that hold the state and the pod that decides start again
        together, from the newest checkpoint, and any other pod alone. Where no role holds the state, every pod that
        trains holds it: all of them start again.
        """
        if not self.restarts_alone:
            return None

        def of(rule: str) -> list[str]:
            return [name for role in self.named[rule] for name in pods.get(role, ())]

        together = frozenset(of("holds_state"))
        if together:
            together |= {*of("decides")[:1]}
        else:
            together = frozenset(name for names in pods.values() for name in names)
            together -= {*of("evaluates")}
        return {
            name: together if name in together else frozenset({name})
            for names in pods.values()
            for name in names
        }

    def pods_of(self, given: Mapping[str, ReplicaSpec]) -> dict[str, int]:
        """The roles that have pods in a job, the implied roles among them, and the number of pods.

        given: the roles that have an entry.
        """
        return {
            name: count
            for name, role in self.roles.items()
            if (count := given[name].replicas if name in given else int(role.implied))
        }

    def role_of_option(self, option: str) -> str | None:
        """Name of the role for which an option of `dtj new` asks."""
        return next((name for name, role in self.roles.items() if role.option == option), None)

    def ranks_of(self, spec: JobSpec, role: str, index: int) -> range:
        """The ranks that run in a pod; empty where no rank runs in it."""
        known = self.roles.get(role)
        return known.ranks(spec, index) if known is not None and known.ranks is not None else range(0)

    def procs(self, spec: JobSpec) -> int:
        """Ranks in each pod that runs ranks; 1 for a strategy without ranks."""
        for role in self.roles.values():
            if role.ranks is not None:
                return len(role.ranks(spec, 0))
        return 1


def digits_in_indexes(count: int) -> int:
    """Return how many digits the indexes 0 to `count` - 1 have in total."""
    return sum(max(count - (10**power if power else 0), 0) for power in range(len(str(count))))
