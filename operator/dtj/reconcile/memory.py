"""The operator's memory of a job from one pass to the next, with the processor time of the last pass."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from dtj.api.job import Fault, read_status
from dtj.api.unreadable import NOT_KEPT, AnyJob, read_stored_job
from dtj.reconcile.boot_clock import Clock
from dtj.reconcile.event_recorder import EventRecorder
from dtj.reconcile.expectations import Expectations
from dtj.reconcile.kept_job import KeptJob
from dtj.reconcile.refusal import Refusals
from dtj.reconcile.retry import Tries
from dtj.reconcile.ssh_secret import SshSecret
from dtj.reconcile.stored_status import StoredStatus
from dtj.status.record import Refusal

# A thread checks, plans and evaluates a job with more pods, or with a longer spec, so that the event loop is not
# blocked.
_LARGE = 200
_LONG = 16_384
T = TypeVar("T")


class Cost:
    """The processor time of a job's last pass."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.long = False
        """Whether the spec of the job is long."""

    def begin(self) -> None:
        """Begin to count the processor time of a pass."""
        self.seconds = 0.0

    async def count(self, do: Callable[[], T], pods: int = 0) -> T:
        """Run a part of a pass and count its processor time.

        do: runs in a thread for a large job, so nothing may change the data that `do` reads.
        pods: the number of pods of the job.
        """

        def timed() -> tuple[T, float]:
            begun = time.thread_time()
            return do(), time.thread_time() - begun

        result, cost = await asyncio.to_thread(timed) if self.long or pods > _LARGE else timed()
        self.seconds += cost
        return result


class Memory:
    """The memory of one job. A pass with an empty memory is correct, but sends more requests."""

    def __init__(
        self, uid: str, clock: Clock, counts_after: float, host_paths: Sequence[str] | None = None
    ) -> None:
        """counts_after: see `StoredStatus`. host_paths: see `check`."""
        self.uid = uid
        self._host_paths = host_paths
        self.stored = StoredStatus(clock.elapsed, counts_after)
        self.recorder = EventRecorder(clock)
        self.expectations = Expectations(clock.elapsed)
        self.refusals = Refusals(Tries(uid, clock.elapsed), clock.elapsed)
        # Slow growth: a record has five minutes.
        self.record_tries = Tries(uid, clock.elapsed, growth=2.0)
        """The record pods that the cluster took away or refused."""
        self.board_tries = Tries(uid, clock.elapsed)
        """The refused TensorBoards."""
        self.ssh_secret = SshSecret()
        self.cost = Cost()
        self.over = False
        """Whether the job has ended."""
        self.stacks_of: str | None = None
        """The `stalledSince` of the job when the operator last asked its ranks for their stacks."""
        self.ungrouped = False
        """Whether the job's PodGroup was deleted."""
        self.no_tensorboard: str | None = None
        """Why the API server refused the job's TensorBoard."""
        self.no_record: Refusal | None = None
        """Why the API server refused the job's record pod."""
        self._read: tuple[object, AnyJob, list[Fault]] | None = None
        """The fields that the job was read from, without its status; the job; and its faults."""

    async def read(self, manifest: Mapping[str, Any]) -> tuple[AnyJob, list[Fault]]:
        """Return the job and its faults. Read the spec again only if generation, labels, or annotations differ."""
        metadata = manifest["metadata"]
        known = ("labels", "annotations")
        source = metadata["generation"], *map(metadata.get, known), manifest.get(NOT_KEPT)
        if self._read is None or self._read[0] != source:
            self.cost.long = isinstance(manifest, KeptJob) and len(manifest.spec) > _LONG
            read = await self.cost.count(partial(read_stored_job, manifest, self._host_paths))
            self._read = source, *read
        _, job, faults = self._read
        return replace(job, status=read_status(manifest.get("status") or {})), faults

    def shed(self) -> None:
        """Forget the spec of a job that has ended. The next pass reads it again."""
        self._read = None
