"""What a conversion needs to know of a job besides its spec, and of a kind of job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from dtj.api.job import Manifest
from dtj.api.strategy import StrategyRules
from dtj.convert.form import Spec
from dtj.convert.notes import Notes
from dtj.convert.run_policy import Defaults

S = TypeVar("S", bound=Spec)


@dataclass(frozen=True)
class Source:
    """A job of Kubeflow, besides its spec."""

    name: str
    version: str
    defaults: Defaults
    queued: bool
    """Whether Kueue queues the job."""


@dataclass(frozen=True)
class Kind(Generic[S]):
    """A kind of job that can be converted."""

    strategy: StrategyRules
    field: str
    """Where the spec has the replicas."""
    form: type[S]
    convert: Callable[[Source, S, Manifest, Notes], tuple[Manifest, Manifest]]
    """Makes spec and run policy of a job, given its form and the run policy as far as every kind has it. The notes
    say why where that is impossible.
    """
    versions: Mapping[str, Defaults]
    """The versions that have these fields, and what each does where a job does not say."""
    newest: str
