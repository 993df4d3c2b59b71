"""The rules of a strategy, as validation, CLI, client and status ask them. `dtj.api.strategies` registers them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dtj.api.job import Job
    from dtj.api.spec import JobSpec


@dataclass(frozen=True, kw_only=True)
class Role:
    """The rules of one role of a strategy."""

    required: bool = False
    """The job must give an entry."""
    implied: bool = False
    """The role has pods also where the job gives no entry."""
    single: bool = False
    """The role has exactly one pod."""
    without_gpus: str | None = None
    """Why the role may have no GPUs; None: it may have them."""
    created_first: bool = True
    """The pods need no other pod of the job: they are created first, and a gang consists of them."""
    runs_program: bool = True
    """The pods run the job's command. Other pods run what the strategy gives them."""
    decides: bool = False
    """The success of the pods is the job's success."""
    reports: bool = False
    """The pod of index 0 reports the progress."""
    evaluates: bool = False
    """The training goes on without the pods."""
    holds_state: bool = False
    """Where replicas restart one by one: the training can't go on when a pod of the role is lost."""
    collects_ranks: bool = False
    """The log of the pod has the lines of all ranks."""
    option: str | None = None
    """The option of `dtj new` that asks for the pods: `workers`, `ps` or `evaluator`; None: nobody is asked."""
    ranks: Callable[[JobSpec, int], range] | None = None
    """The ranks that run in the pod of an index; None: no ranks run in the role."""


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
    restarts_alone: bool = False
    """A lost replica restarts alone, or with those that hold state; else every replica restarts."""
    volumes: Callable[[JobSpec], tuple[str, ...]] = lambda _: ()
    """Names of the volumes that the strategy adds to each pod."""
    peer_list_bytes: Callable[[Job], int] = lambda _: 0
    """Size of the list of pods that the strategy writes into the job's ConfigMap."""
    peer_list_variable: str | None = None
    """The environment variable that holds the whole list of pods, where there is one."""
    facts: Callable[[Mapping[str, Any]], dict[str, str]] = lambda _: {}
    """What `dtj report` shows of a spec as plain data, besides what it shows of every strategy."""
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


def pods_of(spec: JobSpec, rules: StrategyRules) -> Iterator[tuple[str, int]]:
    """The roles of a job with their number of pods, the implied roles among them."""
    given = spec.replica_specs.given()
    for name, role in rules.roles.items():
        if name in given:
            yield name, given[name].replicas
        elif role.implied:
            yield name, 1
