"""The record pod of a job, which writes `end.json`: the operator creates it, reads how it ended, and deletes it.

The number of record pods at a time is limited, also if thousands of jobs end at once. Namespaces share these places.
`status.record` decides whether a job needs a record pod.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dtj.api.job import Fault, Job, Manifest
from dtj.api.names import record_name
from dtj.api.reasons import Reason
from dtj.api.scheduling_rules import KUEUE_QUEUE
from dtj.api.status import JobStatus
from dtj.cluster.interface import ApiError, Cluster
from dtj.reconcile.boot_clock import boot_clock
from dtj.reconcile.memory import Memory
from dtj.reconcile.refusal import FIRST_SECONDS, CreationRefused, make
from dtj.reconcile.snapshot import Snapshot
from dtj.reconcile.view import Key, OwnedRecord, controller_uid
from dtj.status.decision import Decision
from dtj.status.pods import is_disrupted
from dtj.status.record import RecordPod, Refusal, as_recorded, recording
from dtj.status.times import written_time
from dtj_trainer.contract.history import RECORD_POD, RecordedPod

# The places for record pods at a time. Namespaces share the places fairly: record pods that hang at the bucket of one
# tenant do not delay other tenants.

MOST_RECORD_PODS = 16
"""The largest number of record pods at a time, of all jobs."""
MOST_IN_VAIN = 2
"""The largest number of record pods at a time of a namespace whose last record pod failed to write."""
MOST_REMEMBERED = 1_000
"""The number of namespaces that are remembered because their last record pod failed. The oldest are forgotten, since
the operator does not learn of deleted namespaces."""
# A job loses its place if no pass over the job has asked for a place for this many seconds, since all passes fail.
_FORGOTTEN_SECONDS = 600.0


class RecordPlaces:
    """Gives each place that becomes free to the namespace that has fewest, and there to the job that asked first.

    One namespace leaves a quarter of the places free, for the next that comes. A namespace whose last record pod
    wrote nothing has few places until one of its pods writes: a pod waits minutes for a store that does not answer.
    """

    def __init__(
        self,
        most: int = MOST_RECORD_PODS,
        wake: Callable[[Key], None] = lambda _: None,
        elapsed: Callable[[], float] = boot_clock,
    ) -> None:
        """wake: called with a job that has waited for a place and has the place now.
        elapsed: returns seconds of a monotonic clock.
        """
        self._most = most
        self._wake = wake
        self._elapsed = elapsed
        self._held: dict[Key, float] = {}
        """When each job with a place asked for it last, or got it, in seconds of the clock."""
        self._waiting: dict[str, dict[Key, None]] = {}
        """The jobs that wait, by namespace."""
        self._in_vain: dict[str, None] = {}
        """The namespaces whose last record pod failed to write, the newest last."""

    def hold(self, key: Key) -> None:
        """Note that a job has a record pod."""
        self._wait_no_more(key)
        self._held[key] = self._elapsed()

    def ended(self, namespace: str, *, wrote: bool) -> None:
        """Note that a record pod of this namespace ended, or was given up."""
        self._in_vain.pop(namespace, None)
        if not wrote:
            self._in_vain[namespace] = None
            if len(self._in_vain) > MOST_REMEMBERED:
                del self._in_vain[next(iter(self._in_vain))]

    def take(self, key: Key) -> bool:
        """Return whether the job has a place. Without a place, the job waits for one from now on."""
        if key not in self._held:
            self._waiting.setdefault(key[0], {})[key] = None
            self._give(asking=key)
        if key in self._held:
            self._held[key] = self._elapsed()
            return True
        return False

    def leave(self, key: Key) -> None:
        """Give up the job's place, or its wait."""
        self._wait_no_more(key)
        if self._held.pop(key, None) is not None:
            self._give()

    def _share(self, namespace: str) -> int:
        return MOST_IN_VAIN if namespace in self._in_vain else self._most - self._most // 4

    def _wait_no_more(self, key: Key) -> None:
        waiting = self._waiting.get(key[0], {})
        waiting.pop(key, None)
        if not waiting:
            self._waiting.pop(key[0], None)

    def _give(self, asking: Key | None = None) -> None:
        now = self._elapsed()
        for key in [key for key, at in self._held.items() if now - at > _FORGOTTEN_SECONDS]:
            del self._held[key]
        while len(self._held) < self._most:
            held = Counter(namespace for namespace, _ in self._held)
            below = [each for each in self._waiting if held[each] < self._share(each)]
            if not below:
                return
            namespace = min(below, key=lambda each: held[each])
            key = next(iter(self._waiting[namespace]))
            self._wait_no_more(key)
            self._held[key] = now
            if key != asking:
                self._wake(key)


_log = logging.getLogger(__name__)
MOST_LOST = 5
"""The number of record pods of a job that the cluster may take away before the operator gives up the record."""
# A job that waits for a place gets a pass when the place is free, and another pass after this many seconds.
_TURN_SECONDS = 60.0
_PLACE = "spec.artifacts"

Build = Callable[[Job, JobStatus, Sequence[RecordedPod], str], Manifest]
"""Returns the record pod of a job: `record_pod` with an image."""


def view_record(manifest: Mapping[str, Any]) -> OwnedRecord:
    """Return the fields of a record pod that the operator reads."""
    metadata, status = manifest["metadata"], manifest.get("status") or {}
    # Read only the container that records: a sidecar that the cluster injects may continue, or fail at its end.
    containers = {each["name"]: each.get("state") or {} for each in status.get("containerStatuses") or []}
    state = containers.get(RECORD_POD, {})
    ended, waiting = state.get("terminated"), state.get("waiting") or {}
    phase, reason, fault = status.get("phase"), status.get("reason") or "", None
    deleting = metadata.get("deletionTimestamp") is not None
    succeeded = phase == "Succeeded" or (ended is not None and ended.get("exitCode") == 0)
    taken = bool(reason) or deleting or is_disrupted(status)
    if succeeded:
        pass
    # Kubernetes' reason for a pod beyond its activeDeadlineSeconds is also DeadlineExceeded.
    elif phase == "Failed" and reason == Reason.DEADLINE_EXCEEDED:
        fault = "the pod did not end in time" + (f": {waiting['message']}" if waiting.get("message") else "")
    elif ended and not taken:
        fault = (
            ended.get("message") or ""
        ).strip() or f"the pod ended with exit code {ended.get('exitCode')}"
    elif waiting.get("reason") == "CreateContainerConfigError":
        fault = waiting.get("message") or waiting["reason"]
    pod = RecordPod(
        name=metadata["name"],
        uid=metadata["uid"],
        created=metadata["creationTimestamp"],
        deleting=deleting,
        succeeded=succeeded,
        fault=fault,
        lost=phase == "Failed" and fault is None and not succeeded,
        held=held_by_gate(manifest),
    )
    return OwnedRecord(controller_uid(manifest), pod)


def held_by_gate(manifest: Mapping[str, Any]) -> str | None:
    """Return what holds a pod with scheduling gates: a cluster may queue each pod of a namespace."""
    gates = [gate["name"] for gate in (manifest.get("spec") or {}).get("schedulingGates") or []]
    if not gates:
        return None
    queue = (manifest["metadata"].get("labels") or {}).get(KUEUE_QUEUE)
    return f"Kueue holds it in LocalQueue {queue}" if queue else f"the scheduling gate {gates[0]} holds it"


def recorded(seen: Snapshot, decision: Decision) -> tuple[Decision, bool]:
    """Set the condition `Recorded` of a job that keeps artifacts; return whether the job needs a record pod too."""
    job = seen.job
    if seen.records is None or not isinstance(job, Job) or not _keeps(job, seen.faults):
        return decision, False
    name = _name(job, decision.status)
    pod = next((pod for pod in seen.records if pod.name == name), None)
    result = recording(job, decision, pod, seen.no_record, seen.now)
    return result.decision, result.wanted


def _keeps(job: Job, faults: Sequence[Fault]) -> bool:
    """Return whether the job has a valid prefix in a bucket, in which a record pod can write."""
    wrong = any(fault.field.startswith(_PLACE) for fault in faults)
    return job.artifacts_uri is not None and job.created is not None and not wrong


def _name(job: Job, status: JobStatus) -> str:
    return record_name(job.name, job.short_uid, max(status.attempt, 1), ended=status.finished)


class RecordKeeper:
    """Makes and deletes record pods. Only the jobs with a place have one."""

    def __init__(self, build: Build, places: RecordPlaces) -> None:
        self._build = build
        self._places = places

    async def keep(
        self, cluster: Cluster, memory: Memory, seen: Snapshot, status: JobStatus, *, wanted: bool
    ) -> float | None:
        """Make the record pod, or delete record pods that have done their work.

        status: the stored status. wanted: whether the job needs a record pod. Returns seconds until the next pass is
        due, or None. An error of the API server is logged and noted in `memory`.
        """
        job = seen.job
        if not isinstance(job, Job) or seen.records is None:
            return None
        key, name = (job.namespace, job.name), _name(job, status)
        try:
            for pod in seen.records:
                if not pod.deleting and (pod.name != name or pod.lost or not wanted):
                    await cluster.delete_pod(job.namespace, pod.name, pod.uid)
                    if pod.name == name and not pod.lost:
                        self._places.ended(job.namespace, wrote=pod.succeeded)
                    elif pod.name == name:
                        memory.record_tries.fail()
        except ApiError as error:
            _log.warning("%s/%s: a record pod of this job can't be deleted: %s", *key, error)
            return FIRST_SECONDS
        if not wanted:
            self.forget(key)
            memory.no_record = None
            if not any(pod.lost for pod in seen.records):
                memory.record_tries.reset()
            return None
        if any(pod.name == name for pod in seen.records):
            self._places.hold(key)
            return None
        if left := memory.record_tries.due_in():
            self._places.leave(key)  # During the pause, another job may have the place.
            return left
        if not self._places.take(key):
            return random.uniform(1.0, 2.0) * _TURN_SECONDS  # noqa: S311 - not for secrets
        return await self._make(cluster, memory, job, seen, status)

    def forget(self, key: Key) -> None:
        """Give up the job's place."""
        self._places.leave(key)

    async def _make(
        self, cluster: Cluster, memory: Memory, job: Job, seen: Snapshot, status: JobStatus
    ) -> float | None:
        pods = [
            RecordedPod(name=pod.name, node=pod.node) if pod.node else RecordedPod(name=pod.name)
            for pod in seen.observed.pods
        ]
        time, before = written_time(seen.now), memory.no_record
        since = before.since if before else time
        if before is None and memory.record_tries.failed >= MOST_LOST:
            why = f"the cluster took {MOST_LOST} record pods away, one after another"
            memory.no_record = Refusal(why, since, lasting=True)
            self._places.leave((job.namespace, job.name))
            return 0.0
        try:
            # The status inside end.json has the condition Recorded as True: if the file exists, the end is recorded.
            written = as_recorded(job, status, _name(job, status), seen.now)
            await make(cluster, job, self._build(job, written, pods, time))
        except CreationRefused as refused:
            memory.no_record = Refusal(refused.obstacle[1], since, lasting=refused.invalid)
        except ApiError as error:
            memory.no_record = Refusal(str(error), since, lasting=False)
        else:
            memory.no_record = None
            return None
        _log.warning(
            "%s/%s: the record pod of this job can't be created: %s",
            job.namespace,
            job.name,
            memory.no_record.why,
        )
        self._places.leave((job.namespace, job.name))
        memory.record_tries.fail()
        return 0.0 if memory.no_record.lasting else memory.record_tries.due_in()
