"""Data of a conversion besides the spec of the job: facts about the job, and the rules of its kind."""

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
    """Facts about a Kubeflow job that are not in its spec."""

    name: str
    version: str
    defaults: Defaults
    queued: bool
    """Whether Kueue queues the job."""


@dataclass(frozen=True)
class Kind(Generic[S]):
    """The rules for the conversion of a kind of job."""

    strategy: StrategyRules
    field: str
    """The field of the spec that has the replicas."""
    form: type[S]
    convert: Callable[[Source, S, Manifest, Notes], tuple[Manifest, Manifest]]
    """The function that returns dtj's spec and run policy.

    The function gets Kubeflow's spec, and the run policy from the fields that every kind has. If the conversion is
    impossible, the function adds the reasons to the notes.
    """
    versions: Mapping[str, Defaults]
    """The versions that have these fields, with the defaults of each version."""
    newest: str
