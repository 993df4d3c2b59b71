"""The rules of a strategy, as validation, CLI, client and status ask them. `dtj.api.strategies` registers them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dtj.api.job import Job
    from dtj.api.spec import JobSpec


@dataclass(frozen=True, kw_only=True)
class Role:
    """The rules of one role of a strategy."""

    required: bool = False
    """The job must give an entry."""
    unless: str = ""
    """When the job needs no entry of a required role, for the message of a missing entry."""
    implied: bool = False
    """The role has pods also where the job gives no entry."""
    instead_of: str | None = None
    """Name of a role that can't have pods in the same job."""
    single: bool = False
    """The role has exactly one pod."""
    without_gpus: str | None = None
    """Why the role may have no GPUs; None: it may have them."""
    created_first: bool = True
    """The pods need no other pod of the job: they are created first, and a gang consists of them."""
    runs_program: bool = True
    """The pods run the job's command. Other pods run what the strategy gives them."""
    decides: bool = False
    """The success of the pod of index 0 is the job's success."""
    all_decide: bool = False
    """With `decides`: the job succeeds when every pod of the role has succeeded, not only that of index 0."""
    reports: bool = False
    """The pod of index 0 reports the progress."""
    evaluates: bool = False
    """The training goes on without the pods."""
    holds_state: bool = False
    """The pods hold a part of the training's state. Such a pod must not end before the training, and the training
    can't go on without it."""
    collects_ranks: bool = False
    """The log of the pod has the lines of all ranks."""
    option: str | None = None
    """The option of `dtj new` that asks for the pods: `workers`, `ps` or `evaluator`; None: nobody is asked."""
    ranks: Callable[[JobSpec, int], range] | None = None
    """The ranks that run in the pod of an index; None: no ranks run in the role."""
    resources: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """With `implied`: requests and limits of the pod of a job that gives no entry."""


@dataclass(frozen=True, kw_only=True)
class ScriptMark:
    """A name of a library. A script that uses the name is written for a strategy."""

    name: str
    """As the library documents it: tensorflow.distribute.ParameterServerStrategy. Names below it count, too."""
    replicas: Mapping[str, int] = field(default_factory=dict)
    """The number of pods of each role that such a script needs besides its workers."""


@dataclass(frozen=True, kw_only=True)
class Starter:
    """What `dtj new` writes for a strategy when nothing else is asked for."""

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
    """For the description of `spec.strategy`."""
    roles: Mapping[str, Role]
    starter: Starter
    block: str | None = None
    """The block of the spec that only this strategy has, by the name of the model's field."""
    form: Callable[[JobSpec], StrategyRules] | None = None
    """The rules of a job whose roles depend on what its spec names; None: every job has these rules."""
    form_of_pods: Callable[[Collection[str]], StrategyRules] | None = None
    """The same by the roles that have pods, for a job whose spec can't be read."""
    restarts_alone: bool = False
    """A lost replica restarts alone, or with its group (`restart_groups`); else every replica restarts."""
    volumes: Callable[[JobSpec], tuple[str, ...]] = lambda _: ()
    """Names of the volumes that the strategy adds to each pod."""
    peer_list_bytes: Callable[[Job], int] = lambda _: 0
    """Size of the list of pods that the strategy writes into the job's ConfigMap."""
    peer_list_variable: str | None = None
    """The environment variable that holds the whole list of pods, where there is one."""
    facts: Callable[[Mapping[str, Any]], dict[str, str]] = lambda _: {}
    """What `dtj report` shows of a spec as plain data, besides what it shows of every strategy."""
    faults: Callable[[Job], Iterable[tuple[str, str]]] = lambda _: ()
    """What is wrong with a job in the strategy's own terms: the field and the message of each fault."""
    notes: Callable[[JobSpec], tuple[str, ...]] = lambda _: ()
    """Sentences for `dtj plan` on what the strategy makes of a spec."""
    variables: frozenset[str] = frozenset()
    """Environment variables of its own that the strategy sets, and that a job must not set."""
    script_marks: tuple[ScriptMark, ...] = ()
    """How `dtj submit SCRIPT` recognizes a script of the strategy. A script without a mark has the first one."""
    executables: tuple[str, ...] = ()
    """Programs of which `dtj run` needs one on the machine."""
    shares_gpus: bool = False
    """On one machine every rank sees all GPUs of the job, and chooses by its local rank."""

    @property
    def ranked(self) -> bool:
        """Whether the processes of the training are numbered as ranks."""
        return any(role.ranks for role in self.roles.values())

    def names(self, rule: Callable[[Role], object]) -> tuple[str, ...]:
        """Names of the roles for which a rule holds."""
        return tuple(name for name, role in self.roles.items() if rule(role))

    def created_first(self) -> tuple[str, ...]:
        """Names of the roles whose pods are created first."""
        return self.names(lambda role: role.created_first)

    def of(self, spec: JobSpec) -> StrategyRules:
        """The rules of one job."""
        return self.form(spec) if self.form is not None else self

    def of_pods(self, roles: Collection[str]) -> StrategyRules:
        """The rules of a job of which only the roles that have pods are known."""
        return self.form_of_pods(roles) if self.form_of_pods is not None else self

    def restart_groups(self, pods: Mapping[str, Sequence[str]]) -> dict[str, frozenset[str]] | None:
        """The pods that start again when a pod is lost, by its name; None: every pod, whichever is lost.

        pods: names of the job's pods by role. The pods that hold the state and the pod that decides start again
        together, from the newest checkpoint, and any other pod alone. Where no role holds the state, every pod that
        trains holds it: all of them start again.
        """
        if not self.restarts_alone:
            return None

        def of(rule: Callable[[Role], object]) -> list[str]:
            return [name for role in self.names(rule) for name in pods.get(role, ())]

        together = frozenset(of(lambda role: role.holds_state))
        if together:
            together |= {*of(lambda role: role.decides)[:1]}
        else:
            together = frozenset(name for names in pods.values() for name in names)
            together -= {*of(lambda role: role.evaluates)}
        return {
            name: together if name in together else frozenset({name})
            for names in pods.values()
            for name in names
        }

    def role_of_option(self, option: str) -> str | None:
        """Name of the role for which an option of `dtj new` asks."""
        return next(iter(self.names(lambda role: role.option == option)), None)

    def ranks_of(self, spec: JobSpec, role: str, index: int) -> range:
        """The ranks that run in a pod; empty where no rank runs in it."""
        known = self.roles.get(role)
        return known.ranks(spec, index) if known is not None and known.ranks is not None else range(0)


def count_of_digits(count: int) -> int:
    """How many digits the numbers from 0 below `count` have together."""
    return sum(max(count - (10**power if power else 0), 0) for power in range(len(str(count))))


def pods_of(spec: JobSpec) -> Iterator[tuple[str, int]]:
    """The roles that have pods in a job, the implied roles among them, and the number of pods."""
    given = spec.replica_specs.given()
    for name, role in spec.rules.roles.items():
        if name in given and given[name].replicas:
            yield name, given[name].replicas
        elif name not in given and role.implied:
            yield name, 1
