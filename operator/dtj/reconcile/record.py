"""The record pod of a job: the operator makes it, reads how it ended, and deletes it.

The pod never holds up a training. Of thousands of jobs that end at once, only a few have their record pods at a time.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dtj.api.job import Fault, Job, Manifest
from dtj.api.names import record_name
from dtj.api.reasons import Reason
from dtj.api.scheduling_rules import KUEUE_QUEUE
from dtj.api.status import JobStatus
from dtj.cluster.port import ApiError, Cluster
from dtj.reconcile.memory import Memory
from dtj.reconcile.record_places import RecordPlaces
from dtj.reconcile.refusal import Refused, make
from dtj.reconcile.retry import FIRST_SECONDS
from dtj.reconcile.snapshot import Snapshot
from dtj.reconcile.view import Key, OwnedRecord, controller_uid
from dtj.status.decision import Decision
from dtj.status.pods import is_disrupted
from dtj.status.record import RecordPod, Refusal, as_recorded, recording
from dtj.status.times import written_time
from dtj_trainer.contract.history import RECORD_POD, RecordedPod

_log = logging.getLogger(__name__)
MOST_LOST = 5
"""The cluster may take away so many record pods of a job, one after another, before the record is given up."""
# A job that waits for its turn is woken when it has it. It asks again after so long all the same.
_TURN_SECONDS = 60.0
_PLACE = "spec.artifacts"

Build = Callable[[Job, JobStatus, Sequence[RecordedPod], str], Manifest]
"""Returns the record pod of a job: `record_pod` with an image."""


def view_record(manifest: Mapping[str, Any]) -> OwnedRecord:
    """Return the fields of a record pod that the operator reads."""
    metadata, status = manifest["metadata"], manifest.get("status") or {}
    # A sidecar that the cluster adds may run on, or fail when the kubelet ends it.
    containers = {each["name"]: each.get("state") or {} for each in status.get("containerStatuses") or []}
    state = containers.get(RECORD_POD, {})
    ended, waiting = state.get("terminated"), state.get("waiting") or {}
    phase, reason, fault = status.get("phase"), status.get("reason") or "", None
    deleting = metadata.get("deletionTimestamp") is not None
    succeeded = phase == "Succeeded" or (ended is not None and ended.get("exitCode") == 0)
    taken = bool(reason) or deleting or is_disrupted(status)
    if succeeded:
        pass
    # Kubernetes gives a pod that exceeds activeDeadlineSeconds the same reason.
    elif phase == "Failed" and reason == Reason.DEADLINE_EXCEEDED:
        fault = "it did not end in time" + (f": {waiting['message']}" if waiting.get("message") else "")
    elif ended and not taken:
        fault = (ended.get("message") or "").strip() or f"it ended with exit code {ended.get('exitCode')}"
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
    """Return whether a record pod can find the job's prefix in the bucket."""
    wrong = any(fault.field.startswith(_PLACE) for fault in faults)
    return job.artifacts_uri is not None and job.created is not None and not wrong


def _name(job: Job, status: JobStatus) -> str:
    return record_name(job.name, job.short_uid, status.current_attempt, ended=status.finished)


class Recorder:
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
            _log.warning("%s/%s: its record pod: %s", *key, error)
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
            self._places.leave(key)  # Other jobs have their turn meanwhile.
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
            # The record says of itself that it is written, as the stored status does once the pod has succeeded.
            written = as_recorded(job, status, _name(job, status), seen.now)
            await make(cluster, job, self._build(job, written, pods, time))
        except Refused as refused:
            memory.no_record = Refusal(refused.obstacle[1], since, lasting=refused.invalid)
        except ApiError as error:
            memory.no_record = Refusal(str(error), since, lasting=False)
        else:
            memory.no_record = None
            return None
        _log.warning("%s/%s: its record pod: %s", job.namespace, job.name, memory.no_record.why)
        self._places.leave((job.namespace, job.name))
        memory.record_tries.fail()
        return 0.0 if memory.no_record.lasting else memory.record_tries.due_in()
