"""The stored status of one job. It includes the last write of this process, even before the cache shows the write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dtj.api.job import Manifest
from dtj.api.reasons import Reason
from dtj.api.status import Condition, Conditions, ConditionType, JobStatus, Phase
from dtj.api.stored_job import AnyJob
from dtj.cluster.interface import ApiError, Cluster
from dtj.reconcile.kept_job import KeptJob, with_status
from dtj.reconcile.patch import merge_patch
from dtj.status.events import happenings

# The API server answers 422 to an object that does not match its schema.
_INVALID = 422
_SERVER_ERROR = 500
# `_plain` shortens messages to this many characters.
_MESSAGE_LENGTH = 256
_STARTING = (Phase.PENDING, Phase.STARTING)
_CONDITIONS = frozenset(kind.value for kind in ConditionType)


@dataclass(frozen=True)
class WrittenStatus:
    """A status that the API server has stored."""

    status: JobStatus
    refusal: str | None = None
    """The reason why the API server refused the status with the reports of pods; set once for each refusal."""


class StoredStatus:
    """Writes the status of one job, and shows each write at once. The data are in memory only."""

    def __init__(self, elapsed: Callable[[], float], counts_after: float = 0.0) -> None:
        """elapsed: returns seconds of a monotonic clock.
        counts_after: seconds after a write in which a status with new counts of pods alone waits.
        """
        self._elapsed = elapsed
        self._counts_after = counts_after
        self._latest: Mapping[str, Any] = {}
        self._written: KeptJob | None = None
        """The job that the API server returned after the last write."""
        self._written_at: float | None = None
        self._overtaken: set[str] = set()
        """Versions of the job that the writes have replaced since the cache last caught up."""
        self._unanswered: tuple[JobStatus, JobStatus] | None = None
        """The status before and after a write that got no answer. The API server may have stored this write."""
        self._refusal: str | None = None
        self._plain = False
        """Whether the API server has refused a status with reports of pods. Later statuses then have no reports."""

    @property
    def version(self) -> str:
        """The latest version of the job that this process knows."""
        return str(self._latest["metadata"]["resourceVersion"])

    def latest(self, shown: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the stored job. shown: the job in the cache, which may not have the last write yet."""
        if self._written is not None and shown["metadata"]["resourceVersion"] in self._overtaken:
            self._latest = self._written
        else:
            self._overtaken.clear()
            self._latest, self._written = shown, None
        return self._latest

    def wait(self, old: JobStatus, new: JobStatus) -> float | None:
        """Return the seconds that `new` can wait because only its counts of pods are new; None to write now."""
        if self._written_at is None or old == new or not _only_counts(old, new):
            return None
        left = self._written_at + self._counts_after - self._elapsed()
        return left if left > 0 else None

    async def write(self, cluster: Cluster, job: AnyJob, status: JobStatus) -> WrittenStatus | None:
        """Store a status, unless the stored status is the same.

        job: the job that `latest` returned.

        Raises ApiError, with status 409 when the API server has a newer version of the job than `latest`.
        """
        if self._plain:
            status = _plain(status, job.status)
        patch = self._patch(status)
        if not patch:
            return None
        try:
            await self._store(cluster, job, status, patch)
        except ApiError as error:
            if error.status != _INVALID or self._plain:
                raise
            # Store the status without reports of pods: a report must not prevent the write of the other fields.
            self._plain, status = True, _plain(status, job.status)
            self._refusal = (
                f"the API server refused the status, which is stored without reports of pods: {error.message}"
            )
            await self._store(cluster, job, status, self._patch(status))
        refusal, self._refusal = self._refusal, None
        return WrittenStatus(status, refusal)

    def confirmed(self, stored: JobStatus) -> JobStatus | None:
        """Return the status before a write that got no answer, if `stored` shows that the write succeeded."""
        if self._unanswered is None or stored == self._unanswered[0]:
            return None
        before, wanted = self._unanswered
        self._unanswered = None
        # Compare without timestamps: the stored status may stem from an earlier retry of the same write.
        return before if happenings(before, stored) == happenings(before, wanted) else None

    def _patch(self, status: JobStatus) -> Manifest:
        """Return the merge patch that turns the stored status into this status."""
        stored = self._latest.get("status") or {}
        new = status.model_dump(by_alias=True, mode="json", exclude_none=True)
        # A merge patch replaces the whole list, so the patch must repeat the conditions that other controllers set.
        new["conditions"] += [
            condition for condition in stored.get("conditions") or () if condition["type"] not in _CONDITIONS
        ]
        return merge_patch(stored, new)

    async def _store(self, cluster: Cluster, job: AnyJob, status: JobStatus, patch: Manifest) -> None:
        version = self.version
        try:
            answer = await cluster.patch_status(job.namespace, job.name, version, patch)
        except ApiError as error:
            if error.status == 0 or error.status >= _SERVER_ERROR:
                self._unanswered = job.status, status
            raise
        self._unanswered = None
        self._latest = self._written = with_status(self._latest, answer, patch)
        self._written_at = self._elapsed()
        self._overtaken.add(version)
        self._overtaken.discard(self.version)


def _only_counts(old: JobStatus, new: JobStatus) -> bool:
    """Return whether `new` differs from `old` only in counts of pods, and in fields that follow from the counts.

    The phase Starting counts as Pending, and the message of the reason PodsStarting counts the running pods.
    """
    return _without_counts(old) == _without_counts(new)


def _without_counts(status: JobStatus) -> JobStatus:
    phase = Phase.PENDING if status.phase in _STARTING else status.phase
    conditions = [
        condition.model_copy(update={"message": ""}) if _counts(condition) else condition
        for condition in status.conditions
    ]
    # Ignore the message, which follows from the conditions and contains the same counts.
    counts: dict[str, object] = {"replica_statuses": {}, "completed_indexes": None, "message": None}
    state = Phase.PENDING if status.state in _STARTING else status.state
    return status.model_copy(
        update={**counts, "phase": phase, "state": state, "conditions": Conditions(conditions)}
    )


def _counts(condition: Condition) -> bool:
    """Return whether the message of a condition says how many pods run, or which one has not started."""
    running = condition.type is ConditionType.RUNNING
    return running and condition.reason in (Reason.PODS_STARTING, Reason.POD_NOT_STARTED, Reason.JOB_RUNNING)


def _plain(status: JobStatus, stored: JobStatus) -> JobStatus:
    """Return `status` with the reports of pods as `stored` has them.

    Messages are shortened to 256 characters. A question mark replaces each character that is not ASCII.
    """
    failure = status.failure
    if failure is not None and failure != stored.failure:
        failure = failure.model_copy(
            update={
                "failure_class": _ascii(failure.failure_class),
                "message": _ascii(failure.message),
                "rank": None,
                "exit_code": None,
                "signal": None,
                "last_log_lines": None,
            }
        )
    conditions = [
        condition.model_copy(update={"message": _ascii(condition.message)}) for condition in status.conditions
    ]
    update = {
        "progress": stored.progress,
        "artifacts": stored.artifacts,
        "pod_checkpoint": stored.pod_checkpoint,
        "failure": failure,
        "conditions": Conditions(conditions),
        "message": _ascii(status.message),
    }
    return status.model_copy(update=update)


def _ascii(text: str | None) -> str | None:
    return None if text is None else text[:_MESSAGE_LENGTH].encode("ascii", "replace").decode()
