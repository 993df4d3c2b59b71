"""A job as a `Place`, read from its prefix in the bucket. The prefix still exists after the job is deleted.

`dtj.client.past_job` reads the records. This module sends no request to the API server.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from dtj.api.errors import NotFound, Unusable
from dtj.api.spec import ROLES
from dtj.api.status import JobStatus
from dtj.client import Artifacts, DistributedTrainingJob, JobEvent, LogLine, LogQuery, PastJob, Pod, RunRecord
from dtj.client.code_files import unpack_code
from dtj.client.last_sign import last_sign
from dtj.client.logs import LogSelection, bucket_log
from dtj.client.objects import event_of_condition
from dtj.client.past_job import (
    MOST_RECORD_BYTES,
    Unreadable,
    manifest_of,
    read_end,
    read_run,
    recorded_uid,
    written,
)
from dtj.client.store_environment import S3_ENDPOINT, user_environment
from dtj_trainer import contract
from dtj_trainer.contract.history import END_FILE, RUN_FILE, IndexEntry

_ENDED = "Ended"
"""The phase that is shown for a pod of a past job: the record does not contain how each pod ended."""


class BucketPlace:
    """Implements `dtj.views.places.Place` for a prefix such as `s3://bucket/jobs/ml/mnist-1a2b3c4d`.

    The endpoint in the bucket's job.yaml is not followed: only the AWS variables of the environment say where the
    store is.
    """

    def __init__(self, uri: str, environment: Mapping[str, str] | None = None) -> None:
        """Store the location. environment: AWS variables; by default those of the user.

        Raises Unusable if `uri` is no S3 URI, and NotFound if no job has written below it.
        """
        self._environment = user_environment() if environment is None else environment
        self._artifacts = Artifacts(uri.rstrip("/"), self._environment)
        try:
            self._job_file = self._optional_job_file()
            self._stored = {name: self._optional(name) for name in (END_FILE, RUN_FILE)}
        except ValueError as error:
            raise Unusable(str(error)) from None
        if self._job_file is None and not any(self._stored.values()):
            raise NotFound(
                f"{uri} is not the prefix of a job: it has neither {contract.JOB_FILE} nor {END_FILE}",
                "the prefix ends in /NAMESPACE/NAME-UID; `status.artifacts.uri` of a job has it",
            )

    @cached_property
    def past(self) -> PastJob:
        """The job, as its records show it."""
        uid = self._uid
        *_, namespace, folder = self._artifacts.uri.split("/")
        name, _, short_uid = folder.rpartition("-")
        created = self._run.created if self._run else datetime.fromtimestamp(0, UTC)
        entry = IndexEntry(created, namespace, name, uid or short_uid)
        if end := self._stored[END_FILE]:
            try:
                return PastJob(entry, self._artifacts.uri, read_end(end, uid))
            except Unreadable as error:
                return PastJob(entry, self._artifacts.uri, fault=str(error))
        return PastJob(entry, self._artifacts.uri, last_sign=self._last_sign)

    def job(self) -> DistributedTrainingJob:
        """See `Place.job`. Without a recorded end, the status is read from the checkpoints and the model."""
        manifest = manifest_of(self.past, self._job_file, self._run)
        if self.past.created.timestamp() == 0:
            del manifest["metadata"]["creationTimestamp"]
        return DistributedTrainingJob.from_cluster(
            manifest if self.past.end else manifest | {"status": self._status}
        )

    def note(self) -> str | None:
        """See `Place.note`."""
        if end := self.past.end:
            by = f" by the pod {end.by}" if end.by else ""
            return f"read from the bucket: the job's end was recorded{by} at {written(end.time)}"
        if self.past.fault:
            return f"read from the bucket: {self.past.fault}"
        if self._last_sign:
            return f"read from the bucket: no end recorded; last sign {written(self._last_sign)}"
        return "read from the bucket: no end recorded, and no sign of the training"

    def pods(self) -> list[Pod]:
        """See `Place.pods`. The pods of the last attempt, if they are recorded."""
        if self.past.end is None:
            return []
        status = self.past.end.status
        pods = [_pod(pod.name, pod.node, status) for pod in self.past.end.pods]
        return [pod for pod in pods if pod.role in ROLES]

    def events(self) -> list[JobEvent]:
        """See `Place.events`. Events are not in the bucket: return the changes of the recorded conditions."""
        return sorted(
            (event_of_condition(self.past.name, condition) for condition in self.past.status.conditions),
            key=lambda event: event.time or self.past.created,
        )

    @contextmanager
    def artifacts(self, endpoint: str | None = None) -> Iterator[Artifacts]:
        """See `Place.artifacts`."""
        if endpoint is None:
            yield self._artifacts
        else:
            yield Artifacts(self._artifacts.uri, {**self._environment, S3_ENDPOINT: endpoint})

    def get_code(self, folder: Path, endpoint: str | None = None) -> list[Path]:
        """See `Place.get_code`."""
        with self.artifacts(endpoint) as artifacts:
            return unpack_code(self.job(), artifacts, folder)

    def logs(self, query: LogQuery) -> Iterator[LogLine]:
        """See `Place.logs`."""
        if query.follow:
            raise Unusable(
                "--follow can't be used with a job that is read from the bucket", "leave out --follow"
            )
        return bucket_log(self._artifacts, LogSelection(self.job().job, query))

    @cached_property
    def _uid(self) -> str:
        return next(filter(None, map(recorded_uid, self._stored.values())), "")

    @cached_property
    def _run(self) -> RunRecord | None:
        with suppress(Unreadable):
            if stored := self._stored[RUN_FILE]:
                return read_run(stored, self._uid)
        return None

    def _optional_job_file(self) -> dict[str, Any] | None:
        try:
            return self._artifacts.job()
        except NotFound:
            return None

    def _optional(self, key: str) -> bytes | None:
        try:
            return self._artifacts.begin_of(key, MOST_RECORD_BYTES)
        except NotFound:
            return None

    @cached_property
    def _last_sign(self) -> datetime | None:
        return last_sign(self._artifacts.store)

    @cached_property
    def _status(self) -> dict[str, Any]:
        """Return the fields of the status that the bucket shows without a record of the end."""
        artifacts: dict[str, Any] = {"uri": self._artifacts.uri}
        if newest := self._artifacts.current_checkpoint():
            artifacts["checkpoint"] = {
                "step": newest.step,
                "time": newest.time.isoformat().replace("+00:00", "Z"),
                "uri": newest.uri,
                "new": list(newest.new) or None,
            }
        if self._artifacts.ls(contract.MODEL):
            artifacts["model"] = f"{self._artifacts.uri}/{contract.MODEL}"
        status: dict[str, Any] = {"artifacts": artifacts}
        # The claim, which has the number of the attempt, is missing for an image without dtj_trainer.
        with suppress(NotFound, ValueError, KeyError, TypeError):
            claim = self._artifacts.begin_of(contract.CLAIM_FILE, MOST_RECORD_BYTES)
            status["attempt"] = int(json.loads(claim)["attempt"])
        return status


def _pod(name: str, node: str | None, status: JobStatus) -> Pod:
    """Return a pod of a past job. The end of a pod is known only for the pod that the job's failure names."""
    role, _, index = name.rpartition("-")
    role = role.rpartition("-")[2]
    failure = status.failure
    failed = failure is not None and (failure.role, str(failure.index)) == (role, index)
    return Pod(
        name=name,
        uid="",
        role=role,
        index=int(index) if index.isdecimal() else 0,
        attempt=0,
        node=node,
        phase=_ENDED,
        ready=False,
        deleting=False,
        disrupted=False,
        exit_code=failure.exit_code if failed and failure else None,
        signal=failure.signal if failed and failure else None,
        reason="",
        message="",
    )
