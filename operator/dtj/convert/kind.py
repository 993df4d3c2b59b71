"""Data of a conversion besides the spec of the job: facts about the job, and the rules of its kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from dtj.api.job import Manifest
from dtj.api.strategy import StrategyRules
from dtj.convert.kubeflow_fields import Spec
from dtj.convert.notes import Notes
from dtj.convert.run_policy import VersionDefaults

S = TypeVar("S", bound=Spec)


@dataclass(frozen=True)
class OriginalJob:
    """Facts about a Kubeflow job that are not in its spec, and what the user adds to the spec."""

    name: str
    version: str
    defaults: VersionDefaults
    queued: bool
    """Whether Kueue queues the job."""
    command: Sequence[str]
    """The command of containers without one; empty if the user gives none."""


@dataclass(frozen=True)
class KindRules(Generic[S]):
    """The rules for the conversion of a kind of job."""

    strategy: StrategyRules
    field: str
    """A field that every spec of this form has: the field with the replicas, if the form has such a field."""
    form: type[S]
    convert: Callable[[OriginalJob, S, Manifest, Notes], tuple[Manifest, Manifest]]
    """The function that returns dtj's spec and run policy.

    The function gets Kubeflow's spec, and the run policy from the fields that every kind has. If the conversion is
    impossible, the function adds the reasons to the notes.
    """
    versions: Mapping[str, VersionDefaults]
    """The versions that have these fields, with the defaults of each version."""
    newest: str
    group: str = "kubeflow.org"
    origin: str = "Kubeflow"
    """The project that has this kind of job, for messages."""
    prepare: Callable[[Manifest, Sequence[Manifest], Notes], Manifest | None] | None = None
    """For jobs with fields in other objects: the function that gets the job and the other objects of the input, and
    returns the complete job. The function returns None for a job that can't be converted, with the reasons in the
    notes.
    """
