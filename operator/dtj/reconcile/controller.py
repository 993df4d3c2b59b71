"""The controller: workers that take keys from the queue and run a pass over each job."""

from __future__ import annotations

import asyncio
import logging
import time

from dtj.cluster.interface import ApiError
from dtj.reconcile.health import Stuck
from dtj.reconcile.metrics import OperatorMetrics
from dtj.reconcile.queue import WorkQueue
from dtj.reconcile.reconciler import Reconciler
from dtj.reconcile.view import Key, View

_log = logging.getLogger(__name__)
# The resync runs a pass over every unfinished job this often, in case the operator has missed an event.
_RESYNC_SECONDS = 300.0
# The operator is stuck when a key waits longer than this, or when a pass gets no answer to a request for longer.
STUCK_SECONDS = 120.0
_CONFLICT = 409
# kopf's watch, which triggers passes, may report a change of a job this many seconds later than the cache.
_TRIGGER_SECONDS = 0.1


class Controller:
    """Runs passes until `stop`."""

    def __init__(
        self, queue: WorkQueue, reconciler: Reconciler, view: View, metrics: OperatorMetrics
    ) -> None:
        self.queue = queue
        self._reconciler = reconciler
        self._view = view
        self._metrics = metrics
        self._tasks: list[asyncio.Task[None]] = []
        self._passing: set[asyncio.Task[None] | None] = set()
        self._ending = False
        self._read: dict[Key, str] = {}
        """The version of each job at the beginning of its last pass."""
        metrics.queue_depth.set_function(lambda: len(queue))

    def start(self, workers: int) -> None:
        """Start the workers and the resync."""
        self._tasks = [asyncio.create_task(self._work(), name=f"dtj-worker-{n}") for n in range(workers)]
        self._tasks.append(asyncio.create_task(self._resync(), name="dtj-resync"))

    def changed(self, key: Key, version: str) -> None:
        """Run a pass at once over a job whose newest version is `version`, if the cache has this version."""
        if version == self._version(key):
            self._add_if_unread(key)

    def cached(self, key: Key) -> None:
        """Run a pass over a job that changed in the cache, unless `changed` requests the pass in the meantime.

        `changed` alone would lose changes: the trigger may call `changed` before the cache has the change, and never
        calls `changed` for a job that was deleted while the trigger's watch was interrupted.
        """
        asyncio.get_running_loop().call_later(_TRIGGER_SECONDS, self._add_if_unread, key)

    def _add_if_unread(self, key: Key) -> None:
        """Add the key unless the last pass already read the version of the job that the cache has."""
        if self._version(key) != self._read.get(key):
            self.queue.add(key)

    def _version(self, key: Key) -> str | None:
        job = self._view.job(key)
        return str(job["metadata"]["resourceVersion"]) if job else None

    async def stop(self, grace: float = 0.0) -> None:
        """Begin no more passes. Running passes have `grace` seconds to end; stored statuses remain stored."""
        self._ending = True
        for task in self._tasks:
            if task not in self._passing:
                task.cancel()
        if grace and self._tasks:
            await asyncio.wait(self._tasks, timeout=grace)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def check(self) -> dict[str, float]:
        """Return figures for the health check. Raises Stuck when a task has ended or a job has waited too long."""
        ended = [task.get_name() for task in self._tasks if task.done()]
        if ended:
            raise Stuck(f"tasks of the operator have ended: {', '.join(ended)}")
        oldest = self.queue.oldest()
        if oldest > STUCK_SECONDS:
            raise Stuck(
                f"a job has waited {oldest:.0f} s for a pass, or a pass has made no progress for this time"
            )
        return {"queued": float(len(self.queue)), "oldestSeconds": round(oldest, 1)}

    async def _work(self) -> None:
        task = asyncio.current_task()
        while not self._ending:
            key = await self.queue.take()
            self._metrics.reconcile_wait.observe(self.queue.waited(key))
            self._passing.add(task)
            try:
                await self._pass(key)
            finally:
                self._passing.discard(task)
                self.queue.done(key, self._reconciler.rest(key))

    async def _pass(self, key: Key) -> None:
        begin = time.perf_counter()
        if version := self._version(key):
            self._read[key] = version
        else:
            self._read.pop(key, None)
        try:
            again = await self._reconciler.reconcile(key)
        except ApiError as error:
            if error.status != _CONFLICT:
                self._metrics.reconcile_failures.inc()
                _log.warning("%s/%s: %s", *key, error)
            self.queue.retry(key, error.retry_after or 0.0)
        except Exception:  # noqa: BLE001 - one job's trouble must not end the worker that others need
            self._metrics.reconcile_failures.inc()
            _log.exception(
                "%s/%s: the pass over this job ended with an unexpected error; the next pass is in 1 s", *key
            )
            self.queue.retry(key, 1.0)
        else:
            self.queue.forget(key)
            if again is not None:
                self.queue.add_after(key, max(again, 0.0))
            elif self._view.job(key) is None:
                self.queue.drop(key)
        finally:
            self._metrics.reconcile.observe(time.perf_counter() - begin)

    async def _resync(self) -> None:
        while True:
            await asyncio.sleep(_RESYNC_SECONDS)
            for key in self._view.active():
                self.queue.add(key)
