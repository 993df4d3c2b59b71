"""The stored status of a job: own writes before the cache has them, and delayed counts of pods.

* reads: the cache, the own last write while the cache is behind, the cache again, somebody else's write
* writes: nothing new, a conflict, a status that the API server refuses, other controllers' conditions
* writes without an answer: stored all the same, not stored, stored by somebody else
* waits: a status that only counts pods, any other status, a clock that is set back
"""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from dtj.api.identity import KIND
from dtj.api.job import Job, Manifest, read_job
from dtj.api.status import (
    Condition,
    Conditions,
    ConditionStatus,
    ConditionType,
    JobStatus,
    Phase,
    ProgressStatus,
    ReplicaStatus,
)
from dtj.cluster.interface import ApiError
from dtj.reconcile.stored_status import StoredStatus
from tests.unit.support.fake_cluster import FakeCluster
from tests.unit.support.jobs import manifest

JOB = KIND, "ml", "mnist"
TIME = "2026-11-21T12:00:00Z"


class Writer:
    """One job at an API server, and the status as one process stores it."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.cluster.add(manifest())
        self.passed = 0.0
        self.stored = StoredStatus(lambda: self.passed, counts_after=5.0)
        self.cache = self.shown

    @property
    def shown(self) -> Manifest:
        """The job at the API server."""
        return copy.deepcopy(self.cluster.objects[JOB])

    @property
    def job(self) -> Job:
        return read_job(dict(self.stored.latest(self.cache)))

    async def write(self, **status: object) -> JobStatus | None:
        job = self.job
        written = await self.stored.write(self.cluster, job, job.status.model_copy(update=status))
        return written and written.status


def waits(message: str) -> Condition:
    return Condition(
        type=ConditionType.RUNNING,
        status=ConditionStatus.FALSE,
        reason="PodsStarting",
        message=message,
        last_transition_time=TIME,
    )


async def test_an_own_write_counts_until_the_cache_has_it() -> None:
    writer = Writer()
    assert writer.job.status.attempt == 0

    await writer.write(attempt=1)
    assert writer.job.status.attempt == 1, "the cache has nothing of it"
    first = writer.shown
    await writer.write(attempt=2)
    writer.cache = first
    assert writer.job.status.attempt == 2, "the cache has the first of two writes"
    assert writer.stored.version == writer.shown["metadata"]["resourceVersion"]

    writer.cache = writer.shown
    assert writer.job.status.attempt == 2
    writer.cluster.change(JOB, lambda job: job["status"].update(attempt=7))
    writer.cache = writer.shown
    assert writer.job.status.attempt == 7, "somebody else's write"


async def test_what_is_stored_already_is_not_written() -> None:
    writer = Writer()
    await writer.write(attempt=1)
    calls = len(writer.cluster.calls)

    assert await writer.write(attempt=1) is None
    assert len(writer.cluster.calls) == calls


async def test_a_write_over_somebody_elses_is_refused() -> None:
    writer = Writer()
    writer.cluster.change(JOB, lambda job: job.update(status={"attempt": 7}))

    with pytest.raises(ApiError, match="409"):
        await writer.write(attempt=1)

    assert writer.job.status.attempt == 0
    assert writer.shown["status"] == {"attempt": 7}


async def test_conditions_of_other_controllers_stay() -> None:
    writer = Writer()
    theirs = {"type": "Healthy", "status": "True", "reason": "Synced", "lastTransitionTime": TIME}
    writer.cluster.change(JOB, lambda job: job.update(status={"conditions": [theirs]}))
    writer.cache = writer.shown

    await writer.write(conditions=Conditions([waits("0 of 3 pods run")]))

    assert [condition["type"] for condition in writer.shown["status"]["conditions"]] == ["Running", "Healthy"]


async def test_a_refused_status_is_stored_without_reports_and_the_refusal_is_told_once() -> None:
    writer = Writer()
    patch, refused = writer.cluster.patch_status, []

    async def strict(namespace: str, name: str, version: str, change: Manifest) -> Manifest:
        if "progress" in change:
            refused.append(change)
            raise ApiError(422, "Invalid", "status.progress: no")
        return await patch(namespace, name, version, change)

    writer.cluster.patch_status = strict  # type: ignore[method-assign]
    status = JobStatus(attempt=1, progress=ProgressStatus(step=1))

    written = await writer.stored.write(writer.cluster, writer.job, status)
    assert written is not None
    assert (written.status.attempt, written.status.progress) == (1, None)
    assert written.refusal is not None
    assert written.refusal.endswith("without reports of pods: status.progress: no")

    again = await writer.stored.write(writer.cluster, writer.job, replace_attempt(status, 2))
    assert again is not None
    assert (again.status.attempt, again.refusal) == (2, None)
    assert len(refused) == 1, "from then on no report is written"


def replace_attempt(status: JobStatus, attempt: int) -> JobStatus:
    return status.model_copy(update={"attempt": attempt})


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ({"phase": "Running"}, True),
        ({"phase": "Running", "startTime": TIME}, True),
        ({}, False),
        ({"phase": "Pending", "attempt": 7}, False),
    ],
    ids=["stored", "stored-by-an-earlier-retry", "not-stored", "written-by-somebody-else"],
)
async def test_a_write_without_an_answer_is_told_once_it_shows_that_it_was_stored(
    found: Manifest, told: bool
) -> None:
    writer = Writer()
    before = writer.job.status

    async def silent(*_: object) -> Manifest:
        raise ApiError(0, "Unreachable", "no answer in time")

    writer.cluster.patch_status = silent  # type: ignore[method-assign]
    with pytest.raises(ApiError):
        await writer.write(phase=Phase.RUNNING)
    if found:
        writer.cluster.change(JOB, lambda job: job.update(status=found))
    writer.cache = writer.shown

    assert writer.stored.confirmed(writer.job.status) == (before if told else None)
    assert writer.stored.confirmed(writer.job.status) is None, "only once"


async def test_counts_of_pods_wait_and_anything_else_does_not() -> None:
    writer = Writer()
    counted = JobStatus(conditions=[waits("1 of 3 pods run")], phase=Phase.STARTING)
    old = JobStatus(conditions=[waits("0 of 3 pods run")], phase=Phase.PENDING)
    assert writer.stored.wait(old, counted) is None, "nothing was written yet"
    await writer.write(phase=Phase.PENDING, conditions=old.conditions)

    writer.passed = 2.0
    assert writer.stored.wait(old, counted) == 3.0
    more = counted.model_copy(update={"replica_statuses": {"worker": ReplicaStatus(desired=2, active=1)}})
    assert writer.stored.wait(old, more) == 3.0
    assert writer.stored.wait(old, old) is None, "there is nothing to write"
    assert writer.stored.wait(old, replace_attempt(counted, 2)) is None
    writer.passed = 5.0
    assert writer.stored.wait(old, counted) is None


async def test_a_status_is_compared_with_what_was_read_and_not_with_what_a_job_is_given() -> None:
    writer = Writer()
    job = replace(writer.job, status=JobStatus(ssh_secret="mnist-ssh-1"))

    written = await writer.stored.write(writer.cluster, job, job.status)

    assert written is not None
    assert writer.shown["status"]["sshSecret"] == "mnist-ssh-1"
