"""The program of the test pod of `dtj doctor`, against a real S3 server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.patience import PATIENCE
from tests.trainer.conftest import keys
from tests.trainer.differing_store import WITHOUT_CONDITIONS, differing_store, refuse_conditions

from dtj.doctor import in_pod
from dtj_trainer.artifacts.s3 import parse_s3_uri

WITHOUT_TRAINER = "import sys; sys.modules['dtj_trainer'] = None\n"


@pytest.fixture(params=["dtj_trainer", "boto3"])
def look(request, tmp_path, object_store):
    """Runs the program with the one library or the other; its findings about S3 by name."""
    start = WITHOUT_TRAINER if request.param == "boto3" else ""
    # The import from the future has to be the first statement.
    program = start + Path(in_pod.__file__).read_text().replace("from __future__ import annotations\n", "")

    def run(artifacts: str, data: str = "") -> dict[str, tuple[str, str]]:
        report = tmp_path / "report"
        given = {"ARTIFACTS_URI": artifacts, "DATA_URI": data, "KEY": "dtj-doctor-x", "REPORT": str(report)}
        environment = {**os.environ, **{f"DTJ_DOCTOR_{name}": value for name, value in given.items()}}
        subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=50 * PATIENCE)
        return {f["name"]: (f["verdict"], f["message"]) for f in json.loads(report.read_text())}

    return run


def test_a_bucket_that_lets_the_job_in(look, job_uri, job_store):
    job_store.put_bytes("data/set", b"x")
    found = look(job_uri, f"{job_uri}/data")
    assert found["S3 artifacts"] == ("ok", f"a pod writes and deletes below {job_uri}")
    assert found["S3 conditions"] == ("ok", f"the store of {job_uri} honours If-None-Match and If-Match")
    assert found["S3 data"] == ("ok", f"a pod lists {job_uri}/data")
    assert keys(job_store) == ["data/set"], "nothing of the doctor's stays"


@pytest.mark.parametrize("kind", WITHOUT_CONDITIONS)
def test_a_store_without_conditional_writes_is_a_warning(
    look, job_uri, job_store, object_store, monkeypatch, kind
):
    with differing_store(object_store.endpoint) as store:
        store.rule, store.unknown = WITHOUT_CONDITIONS[kind]
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", store.endpoint)
        found = look(job_uri)
        assert keys(job_store) == [], "nothing of the doctor's stays"
    ignored = "If-Match" if kind == "ignores If-Match" else "If-None-Match and If-Match"
    verdict, message = found["S3 conditions"]
    assert verdict == "warning"
    assert message.startswith(f"the store of {job_uri} does not honour {ignored} of a put, so that a pod")
    assert found["S3 artifacts"][0] == "ok"


def test_a_store_that_fails_at_a_condition_is_not_judged(look, job_uri, object_store, monkeypatch):
    with differing_store(object_store.endpoint) as store:
        store.rule = refuse_conditions(403, "AccessDenied")
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", store.endpoint)
        verdict, message = look(job_uri)["S3 conditions"]
    assert verdict == "warning"
    assert message.startswith(f"conditions of a put can't be tested below {job_uri}: ")


def test_a_data_set_that_is_not_there(look, job_uri):
    assert look(job_uri, f"{job_uri}/data")["S3 data"] == (
        "failed",
        f"there is no object below {job_uri}/data",
    )


def test_a_bucket_that_is_not_there(look):
    verdict, message = look("s3://no-such-bucket/jobs")["S3 artifacts"]
    assert verdict == "failed"
    assert message.startswith("an object can't be written below s3://no-such-bucket/jobs: ")
    assert "does not exist" in message


def test_a_wrong_secret(look, job_uri, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "other")
    assert "SignatureDoesNotMatch" in look(job_uri)["S3 artifacts"][1]


def test_a_bucket_that_keeps_what_is_written_is_a_warning(monkeypatch):
    class Keeps(in_pod._Boto):
        def __init__(self) -> None:
            """Without a client."""

        def put(self, uri: str, key: str) -> None:
            """Take it."""

        def honours(self, uri: str, key: str, condition: str) -> bool:
            return True

        def delete(self, uri: str, key: str) -> None:
            raise PermissionError("AccessDenied")

    monkeypatch.setattr(in_pod, "ARTIFACTS", "s3://training/jobs")
    found: in_pod.Results = []
    in_pod._test_artifacts(found, Keeps())
    assert [told["verdict"] for told in found] == ["warning", "ok"]
    assert found[0]["message"].endswith("so that old checkpoints stay there: AccessDenied")


@pytest.mark.parametrize(
    ("uri", "split"),
    [
        ("s3://training", ("training", "")),
        ("s3://training/a/b/", ("training", "a/b/")),
        ("s3://tenant:training/a", ("tenant:training", "a/")),
        (
            "s3://arn:aws:s3:us-east-1:123456789012:accesspoint/team-a/a",
            ("arn:aws:s3:us-east-1:123456789012:accesspoint/team-a", "a/"),
        ),
    ],
)
def test_without_the_trainer_a_uri_is_split_as_with_it(uri, split):
    assert in_pod._split(uri) == split
    location = parse_s3_uri(uri)
    assert (location.bucket, f"{location.prefix}/" if location.prefix else "") == split
