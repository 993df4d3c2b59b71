"""The commands that read a job by its prefix in the bucket, after the job was deleted.

* status, logs and artifacts
* a prefix without a job, and what a bucket can't do
* the endpoint in the bucket's job.yaml
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from tests.unit.support.jobs import manifest
from typer.testing import CliRunner, Result

from dtj.api.errors import NotFound, Unreachable, Unusable
from dtj.cli.main import app
from dtj.client import LogQuery
from dtj.views.bucket_place import BucketPlace
from dtj_trainer.artifacts.manifest import Manifest
from dtj_trainer.artifacts.store import Store
from dtj_trainer.contract.code_archive import pack

CHECKPOINT = Manifest(40, 40, "2026-11-25T10:00:00Z", attempt=2, files=(), claim=2)


@pytest.fixture
def uri(job_store: Store) -> str:
    """The prefix of a job that wrote two attempts' logs, a checkpoint and a model."""
    job = manifest()
    job["spec"]["artifacts"] = {"uri": "s3://elsewhere/jobs", "endpoint": "http://hostile.invalid"}
    objects = {
        "job.yaml": yaml.safe_dump(job),
        "attempt.json": json.dumps(
            {"attempt": 2, "number": 2, "writer": "w", "time": "2026-11-25T09:00:00Z"}
        ),
        "logs/attempt-1/launcher-0.log": "[rank 0] step 1\n",
        "logs/attempt-2/launcher-0.log": "[rank 0] step 2\n[rank 1] step 2\n",
        "logs/attempt-2/rank-1.log": "step 2\n",
        "checkpoints/40-2/manifest.json": CHECKPOINT.to_json().decode(),
        "model/model.pt": "weights",
    }
    for key, text in objects.items():
        job_store.put_bytes(key, text.encode())
    return job_store.location.uri


def call(*words: str) -> Result:
    return CliRunner().invoke(app, [*words])


def test_the_status_has_what_the_bucket_shows(uri: str) -> None:
    shown = json.loads(call("status", uri, "-o", "json").stdout)["status"]
    assert shown == {
        "attempt": 2,
        "artifacts": {
            "uri": uri,
            "checkpoint": {"step": 40, "time": "2026-11-25T10:00:00Z", "uri": f"{uri}/checkpoints/40-2"},
            "model": f"{uri}/model",
        },
    }
    text = " ".join(call("status", f"{uri}/").stdout.split())
    assert "read from the bucket: no end recorded; last sign 2026-11-25T10:00:00Z" in text
    assert "Running" not in text


def test_a_job_that_has_gone_back_shows_that_checkpoint_until_it_has_a_newer_one(
    uri: str, job_store: Store
) -> None:
    def shown() -> str:
        return json.loads(call("status", uri, "-o", "json").stdout)["status"]["artifacts"]["checkpoint"][
            "uri"
        ]

    def claims(number: int, restores: str | None) -> None:
        claim = {"attempt": number, "number": number, "writer": "w", "time": "2026-11-25T11:00:00Z"}
        job_store.put_bytes("attempt.json", json.dumps(claim | {"restores": restores}).encode())

    def stored(number: int, claim: int) -> None:
        manifest = replace(CHECKPOINT, number=number, claim=claim, attempt=claim)
        job_store.put_bytes(f"checkpoints/{manifest.folder}/manifest.json", manifest.to_json())

    stored(20, 2)
    claims(3, f"{uri}/checkpoints/20-2")
    assert shown() == f"{uri}/checkpoints/20-2"
    for nothing in (None, "", "s3://other/job/checkpoints/20-2", f"{uri}/checkpoints/10-2"):
        claims(3, nothing)
        assert shown() == f"{uri}/checkpoints/40-2"
    claims(3, f"{uri}/checkpoints/20-2")
    stored(25, 3)
    assert shown() == f"{uri}/checkpoints/25-3"


def test_the_logs_of_each_attempt_are_printed(uri: str) -> None:
    assert call("logs", uri).stdout == "[rank 0] step 2\n[rank 1] step 2\n"
    assert call("logs", uri, "--rank", "1").stdout == "[rank 1] step 2\n"
    assert call("logs", uri, "--attempt", "1").stdout == "[rank 0] step 1\n"
    with pytest.raises(Unusable, match="--follow can't be used with a job that is read from the bucket"):
        BucketPlace(uri).logs(LogQuery(follow=True))


def test_the_lines_of_one_round_are_printed(uri: str, job_store: Store) -> None:
    def begins(number: int) -> bytes:
        return f"dtj: round {number} begins, after the failure of worker-0: killed\n".encode()

    log = "logs/attempt-3/launcher-0.log"
    job_store.put_bytes(log, b"[rank 0] a\n" + begins(1) + b"[rank 0] b\n")
    job_store.put_bytes(f"{log}.00002", b"[rank 1] c\n" + begins(2) + b"[rank 0] d\n")
    job_store.put_bytes("logs/attempt-3/rank-1.log", b"dtj: round 1 begins\nc\n")

    assert call("logs", uri, "--round", "0").stdout == "[rank 0] a\n"
    assert call("logs", uri, "--round", "1", "--tail", "2").stdout == "[rank 0] b\n[rank 1] c\n"
    assert (
        call("logs", uri, "--round", "1", "--rank", "1", "--no-prefix").stdout == "dtj: round 1 begins\nc\n"
    )
    assert call("logs", uri, "--round", "0", "--attempt", "1").stdout == "[rank 0] step 1\n"
    with pytest.raises(NotFound, match=r"of attempt 3 of .* have no round 4: they have rounds 0, 1, 2"):
        list(BucketPlace(uri).logs(LogQuery(round=4, attempt=3)))
    job_store.delete([log])
    assert call("logs", uri, "--round", "1").stdout == "[rank 1] c\n", "the first segment is gone"


def test_the_code_of_a_job_outlives_its_config_map(uri: str, job_store: Store, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    with (tmp_path / "archive").open("wb") as file:
        packed = pack([("train.py", tmp_path / "train.py")], file)
    code = {"configMap": "gone", "digest": packed.digest, "entrypoint": "train.py"}
    job = manifest(code=code, command=[], args=[], artifacts={"uri": "s3://elsewhere/jobs"})
    git = {"commit": "1a" * 20, "branch": "main", "remote": "https://host/a", "modified": True}
    run = {
        "version": 1,
        "uid": job["metadata"]["uid"],
        "created": "2026-11-25T10:00:00Z",
        "code": {"git": git},
    }
    job_store.put_bytes("job.yaml", yaml.safe_dump(job).encode())
    job_store.put_bytes("run.json", json.dumps(run).encode())
    job_store.put_bytes("code.tar.gz", (tmp_path / "archive").read_bytes())
    shown = " ".join(call("status", uri).stdout.split())
    assert f"{packed.digest}, commit 1a1a1a1a1a1a of main, with changes" in shown
    copied = call("artifacts", "get", uri, "code", str(tmp_path / "to"))
    assert copied.stdout == f"{tmp_path}/to/code/train.py\n"
    assert (tmp_path / "to/code/train.py").read_text() == "print(1)"
    git["commit"] = "hostile\n"
    job_store.put_bytes("run.json", json.dumps(run).encode())
    assert "hostile" not in call("status", uri).stdout


def test_artifacts_are_listed_from_the_store_that_the_user_named(uri: str) -> None:
    listed = call("artifacts", "ls", uri, "-o", "json")
    assert "model/model.pt" in [item["key"] for item in json.loads(listed.stdout)]
    away = call("artifacts", "ls", uri, "--endpoint", "http://127.0.0.1:9")
    assert isinstance(away.exception, Unreachable)


def test_a_prefix_without_a_job_is_refused(uri: str) -> None:
    with pytest.raises(NotFound, match=r"is not the prefix of a job: it has neither job\.yaml nor end\.json"):
        BucketPlace(f"{uri}/model")
    with pytest.raises(Unusable, match="s3://"):
        BucketPlace("s3://")
