"""The operator's memory of a job from one pass to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dtj.api.job import Fault, read_status
from dtj.api.unreadable import AnyJob, read_stored_job
from dtj.reconcile.cost import Cost
from dtj.reconcile.event_recorder import EventRecorder
from dtj.reconcile.expectations import Expectations
from dtj.reconcile.refusal import Refusals
from dtj.reconcile.ssh_secret import SshSecret
from dtj.reconcile.stored_status import StoredStatus


@dataclass
class Memory:
    """The memory of one job. A pass with an empty memory is correct, but sends more requests."""

    uid: str
    stored: StoredStatus
    recorder: EventRecorder
    expectations: Expectations
    refusals: Refusals = field(default_factory=Refusals)
    ssh_secret: SshSecret = field(default_factory=SshSecret)
    cost: Cost = field(default_factory=Cost)
    over: bool = False
    """Whether the job has ended."""
    stacks_of: str | None = None
    """The `stalledSince` of the job when the operator last asked its ranks for their stacks."""
    ungrouped: bool = False
    """Whether the job's PodGroup was deleted."""
    no_tensorboard: str | None = None
    """Why the API server refused the job's TensorBoard."""
    _read: tuple[object, AnyJob, list[Fault]] | None = None
    """The fields that the job was read from, without its status; the job; and its faults."""

    def read(self, manifest: Mapping[str, Any]) -> tuple[AnyJob, list[Fault]]:
        """Return the job and its faults. Read the spec again only if generation, labels, or annotations differ."""
        metadata = manifest["metadata"]
        source = metadata["generation"], metadata.get("labels"), metadata.get("annotations")
        if self._read is None or self._read[0] != source:
            self._read = source, *read_stored_job(manifest)
        _, job, faults = self._read
        return replace(job, status=read_status(manifest.get("status") or {})), faults
