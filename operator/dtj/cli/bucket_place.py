"""A job by its prefix in the bucket, with the interface of a job on a cluster. It outlives the job's object."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any

from dtj.api.errors import NotFound, Unusable
from dtj.client import Artifacts, DistributedTrainingJob, JobEvent, LogLine, LogQuery, Pod
from dtj.client.bucket_logs import bucket_log
from dtj.client.log_source import Selection
from dtj_trainer import contract


class BucketPlace:
    """Implements `dtj.cli.places.Place` for a prefix such as `s3://bucket/jobs/ml/mnist-1a2b3c4d`.

    Only the AWS variables of the user say where the store is and who asks: the endpoint in the bucket's job.yaml is
    not followed.
    """

    def __init__(self, uri: str) -> None:
        """Raises Unusable if `uri` is no S3 URI, and NotFound if no job has written below it."""
        self._artifacts = Artifacts(uri.rstrip("/"), os.environ)
        try:
            self._manifest = self._artifacts.job()
        except ValueError as error:
            raise Unusable(str(error)) from None
        except NotFound:
            raise NotFound(
                f"{uri} is not the prefix of a job: it has no {contract.JOB_FILE}",
                "the prefix ends in /NAMESPACE/NAME-UID; `status.artifacts.uri` of a job has it",
            ) from None

    def job(self) -> DistributedTrainingJob:
        """See `Place.job`. The status has what the bucket shows: no phase, no restarts, no failure."""
        return DistributedTrainingJob.from_cluster(self._manifest | {"status": self._status})

    def note(self) -> str | None:
        """See `Place.note`."""
        checkpoint = self._status["artifacts"].get("checkpoint")
        last = f"; its newest checkpoint is from {checkpoint['time']}" if checkpoint else ""
        return f"read from the bucket, which has no record of the job's end{last}"

    def pods(self) -> list[Pod]:
        """See `Place.pods`."""
        return []

    def events(self) -> list[JobEvent]:
        """See `Place.events`. Events are not in the bucket."""
        return []

    @contextmanager
    def artifacts(self, endpoint: str | None = None) -> Iterator[Artifacts]:
        """See `Place.artifacts`."""
        if endpoint is None:
            yield self._artifacts
        else:
            yield Artifacts(self._artifacts.uri, {**os.environ, "AWS_ENDPOINT_URL_S3": endpoint})

    def logs(self, query: LogQuery) -> Iterator[LogLine]:
        """See `Place.logs`."""
        if query.follow:
            raise Unusable("--follow can't be used with a prefix in a bucket", "give the name of the job")
        return bucket_log(
            self._artifacts, Selection(DistributedTrainingJob.from_cluster(self._manifest).job, query)
        )

    @cached_property
    def _status(self) -> dict[str, Any]:
        """Return the fields of the status that the bucket shows."""
        artifacts: dict[str, Any] = {"uri": self._artifacts.uri}
        if checkpoints := self._artifacts.checkpoints():
            newest = max(checkpoints, key=lambda checkpoint: checkpoint.time)
            time = newest.time.isoformat().replace("+00:00", "Z")
            artifacts["checkpoint"] = {"step": newest.step, "time": time, "uri": newest.uri}
        if self._artifacts.ls(contract.MODEL):
            artifacts["model"] = f"{self._artifacts.uri}/{contract.MODEL}"
        status: dict[str, Any] = {"artifacts": artifacts}
        # An image without dtj_trainer claims nothing.
        with suppress(NotFound, ValueError, KeyError, TypeError):
            status["attempt"] = int(json.loads(self._artifacts.read(contract.CLAIM_FILE))["attempt"])
        return status
