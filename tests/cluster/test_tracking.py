"""`spec.tracking.mlflow` on the cluster, with a real MLflow server on this machine: `make test-tracking-cluster`."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from dtj_trainer.tracking.points import points_of
from tests.cluster.jobs import TORCH_EXAMPLE, Namespace, example
from tests.trainer.test_tracking_server import RealServer
from tests.trainer.tracked_jobs import sent_points

pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.trackers]


def test_a_training_is_one_run_with_the_points_of_the_bucket(namespace: Namespace, tmp_path: Path) -> None:
    """Pods reach this machine at the address of the object store."""
    host = urlsplit(os.environ["DTJ_TEST_S3_ENDPOINT"]).hostname
    assert host is not None
    server = RealServer(tmp_path, host)
    server.start()
    try:
        args = ["--model=cnn", "--max-steps=40", "--batch-size=64", "--log-seconds=0"]
        tracking = {"mlflow": {"uri": server.uri, "experiment": "digits"}}
        job = namespace.apply(example("tracked", TORCH_EXAMPLE, args=args, tracking=tracking))
        status = job.wait(300)
        run = server.run
    finally:
        server.kill()
    lines = job.artifacts().read("metrics.jsonl").splitlines()
    stored = {tuple(point) for line in lines for point in points_of("metrics.jsonl", line)}
    print(
        f"{run['status']}: {len(sent_points(run))} points, {len(run['params'])} parameters, tags {run['tags']}"
    )
    assert run["status"] == "FINISHED"
    assert run["tags"]["dtj.job"] == "tracked"
    assert run["tags"]["dtj.model"] == status["artifacts"]["model"]
    assert run["params"]["max-steps"] == "40"
    assert sent_points(run) == stored
    assert {step for name, _, _, step in stored if name == "train/loss"} >= {1, 40}
    assert any(name.startswith("system/rank-") for name in run["names"])
