"""What the record of a job's end shows, by itself."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dtj.client.history_query import row_of
from dtj.client.past_job import PastJob, manifest_of, read_end
from dtj.client.resource import DistributedTrainingJob
from tests.unit.support.past_jobs import end, entry


@pytest.mark.parametrize(
    ("changes", "status", "strategy"),
    [
        ({"by": "launcher-0"}, {}, "Horovod"),
        ({"by": "chief-0"}, {}, "ParameterServer"),
        ({"by": "worker-0"}, {}, "TorchDistributed"),
        ({"by": "record", "pods": [{"name": "m-worker-0"}]}, {"phase": "Failed"}, None),
        ({"by": "record", "pods": [{"name": "m-worker-1-ps-0"}]}, {"phase": "Failed"}, "ParameterServer"),
        (
            {"by": "record"},
            {"phase": "Failed", "replicaStatuses": {"worker": {"desired": 2}}},
            "TorchDistributed",
        ),
        (
            {"by": "record"},
            {"phase": "Failed", "replicaStatuses": {"worker": {}, "launcher": {}}},
            "Horovod",
        ),
        ({"by": "record"}, {"phase": "Failed", "replicaStatuses": {"pilot": {}}}, None),
        ({"by": "worker-0", "strategy": "Later"}, {}, "Later"),
    ],
)
def test_the_strategy_is_shown_where_the_record_leaves_no_doubt(
    changes: dict[str, Any], status: dict[str, Any], strategy: str | None
) -> None:
    content = end(entry()) | {"pods": []} | changes
    content["status"] = content["status"] | status
    assert read_end(json.dumps(content).encode(), entry().uid).strategy == strategy


def test_a_suspended_job_has_not_ended() -> None:
    content = end(entry(), "Suspended")
    del content["status"]["completionTime"]
    past = PastJob(entry(), "s3://b/jobs/ml/mnist-0", read_end(json.dumps(content).encode(), entry().uid))
    assert (past.ended, past.seconds) == (None, None)


def test_a_record_without_a_job_file_still_makes_a_job() -> None:
    content = end(entry(), "Failed") | {"strategy": "Later", "workers": 4}
    content["status"]["restarts"]["application"] = 2**80
    record = read_end(json.dumps(content).encode(), entry().uid)
    assert record.workers == 4
    past = PastJob(entry(), "s3://b/jobs/ml/mnist-0", record)
    assert max(value for value in row_of(past).values if isinstance(value, int)) < 2**63
    job = DistributedTrainingJob.from_cluster(manifest_of(past, None))
    assert (job.name, job.namespace, job.uid) == (entry().name, "ml", entry().uid)
    assert job.status.failure is not None
    assert job.status.failure.message == "ValueError: loss is nan"
