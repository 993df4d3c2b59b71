"""What is known of the cluster without asking it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dtj.status.pods import PodView

Key = tuple[str, str]
"""Namespace and name of a job."""


@dataclass(frozen=True)
class Owned:
    """A Service or ConfigMap of a job."""

    name: str
    owner: str
    """uid of the job."""
    data: Mapping[str, str] | None = None
    uid: str = ""


@dataclass(frozen=True)
class OwnedPod:
    """A pod of a job."""

    owner: str
    """uid of the job."""
    view: PodView


class View(Protocol):
    """A cache that watches the API server; it may lag behind."""

    def job(self, key: Key) -> Mapping[str, Any] | None:
        """The job's manifest."""

    def pods(self, key: Key) -> Sequence[OwnedPod]:
        """Pods that carry the job's label."""

    def services(self, key: Key) -> Sequence[Owned]:
        """Services that carry the job's label."""

    def configs(self, key: Key) -> Sequence[Owned]:
        """ConfigMaps that carry the job's label."""

    def active(self) -> Sequence[Key]:
        """Jobs that have not ended."""

    def phases(self) -> Mapping[str, int]:
        """How many jobs are in which phase."""


def controller_uid(manifest: Mapping[str, Any]) -> str:
    """Uid of the object that controls this one; empty when nothing does."""
    for owner in manifest["metadata"].get("ownerReferences") or []:
        if owner.get("controller"):
            return str(owner["uid"])
    return ""
