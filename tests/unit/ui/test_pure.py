"""What `dtj ui` shows: curves, sentences, hidden values, the name of another run."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dtj.api.masking import MASK, masked, options_of
from dtj.api.status import JobStatus
from dtj.client import DistributedTrainingJob
from dtj.report.curves import MOST_POINTS, thinned
from dtj.report.run import MetricsRow
from dtj.ui.artifacts import curves_of
from dtj.ui.rows import again_of
from dtj.views.sentences import sentence_of
from tests.unit.support.jobs import manifest

FINITE = st.floats(-1e6, 1e6)


@given(st.lists(FINITE, max_size=3000), st.integers(2, 50))
def test_few_points_keep_the_peaks_and_the_order(values: list[float], most: int) -> None:
    points = [(step, value, float(step)) for step, value in enumerate(values)]
    kept = thinned(points, most)
    assert len(kept) <= max(most, 0)
    assert [step for step, _, _ in kept] == sorted({step for step, _, _ in kept})
    if values:
        assert max(value for _, value, _ in kept) == max(values)
        assert min(value for _, value, _ in kept) == min(values)


def row(step: int, kind: str = "train", **values: object) -> MetricsRow:
    return MetricsRow(kind, float(step), step, values)


def test_a_program_with_many_names_and_rows_fills_no_screen() -> None:
    rows = [row(step, **{f"n{n}": n for n in range(100)}, loss=step) for step in range(3 * MOST_POINTS)]
    found = curves_of(rows, 2)
    assert len(found.curves) == 40
    assert all(len(curve.steps) <= MOST_POINTS for curve in found.curves)
    assert found.left_out == 2


def test_a_restart_is_where_the_attempt_changes() -> None:
    rows = [row(1, attempt=1, loss=3), row(9, attempt=1, loss=2), row(5, attempt=2, loss=2), row(6, loss=1)]
    found = curves_of(rows, 0)
    assert found.restarts == [5]
    assert found.curves[0].name == "train loss"


@pytest.mark.parametrize(
    "name",
    ["DB_PASSWORD", "aws_secret_access_key", "API-KEY", "HfToken", "PRIVATE_KEY", "DTJ_S3_SSE_CUSTOMER_KEY"],
)
def test_secret_values_are_hidden_everywhere(name: str) -> None:
    env = [{"name": name, "value": "s3cret"}, {"name": "LEVEL", "value": "info"}]
    template = {"spec": {"containers": [{"name": "trainer", "env": env}]}}
    job = manifest(env=env, replicaSpecs={"worker": {"replicas": 1, "template": template}})
    job["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": "s3cret", "a": "b"}
    hidden = masked(job)
    assert "s3cret" not in str(hidden)
    assert hidden["spec"]["env"] == [{"name": name, "value": MASK}, env[1]]
    assert hidden["metadata"]["annotations"] == {"a": "b"}


@pytest.mark.parametrize(
    ("name", "next_name"), [("mnist", "mnist-2"), ("mnist-2", "mnist-3"), ("a-9", "a-10"), ("2", "2-2")]
)
def test_another_run_has_the_next_name_and_is_not_suspended(name: str, next_name: str) -> None:
    job = manifest(name, runPolicy={"suspend": True}, artifacts={"uri": "s3://bucket/p", "resume": "Never"})
    text = again_of(DistributedTrainingJob.from_cluster(job), resume=True)
    assert f"\n  name: {next_name}\n" in text
    assert "suspend" not in text
    assert "resume: FromURI" in text
    assert "uid" not in text.partition("resumeUri")[0]


def test_another_run_of_a_job_that_is_gone_uses_its_code_in_the_bucket() -> None:
    code = {"configMap": "mnist-code", "digest": f"sha256:{'5' * 64}", "entrypoint": "train.py"}
    job = manifest(code=code, command=[], args=[], artifacts={"uri": "s3://bucket/p"})
    job["metadata"]["annotations"] = {"dtj.dev/git-commit": "1a" * 20}
    for past in (False, True):
        text = again_of(DistributedTrainingJob.from_cluster(job), resume=False, past=past)
        again = yaml.safe_load(text)
        archive = (
            {"uri": "s3://bucket/p/ml/mnist-5b6a1f0e/code.tar.gz"} if past else {"configMap": "mnist-code"}
        )
        rest = {"digest": code["digest"], "entrypoint": "train.py"}
        assert again["spec"]["code"] == archive | rest
        assert again["metadata"]["annotations"] == {"dtj.dev/git-commit": "1a" * 20}


def test_options_of_a_command_line() -> None:
    words = ["python", "train.py", "--lr=0.1", "--fast", "--epochs", "3", "--", "x"]
    assert options_of(words) == {"lr": "0.1", "fast": "", "epochs": "3"}


def test_a_job_without_a_status_is_new() -> None:
    assert sentence_of(JobStatus()) == "The operator has not seen the job yet"


def test_a_job_that_stalls_does_not_train() -> None:
    message = "all pods run, but the step has stayed at 90 for 300 s"
    stalled = {
        "type": "Stalled",
        "status": "True",
        "reason": "NoProgress",
        "message": message,
        "lastTransitionTime": "2026-11-21T12:00:00Z",
    }
    status = JobStatus.model_validate({"phase": "Running", "conditions": [stalled]})
    assert sentence_of(status) == f"The job makes no progress: {message}"
