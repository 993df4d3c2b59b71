"""The policy manifests/eks/s3-policy.json, which allows exactly the S3 requests of the trainer."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.trainer.conftest import REPOSITORY

from dtj_trainer import record_pod
from dtj_trainer.artifacts import s3
from dtj_trainer.artifacts.s3 import S3Error
from dtj_trainer.artifacts.store import ABSENT, Store
from dtj_trainer.contract.history import History, end_record
from dtj_trainer.data.sources import S3Source

# https://docs.aws.amazon.com/AmazonS3/latest/userguide/using-with-s3-policy-actions.html
ACTIONS = {
    "ListObjectsV2": "s3:ListBucket",
    "GetObject": "s3:GetObject",
    "HeadObject": "s3:GetObject",
    "PutObject": "s3:PutObject",
    "CreateMultipartUpload": "s3:PutObject",
    "UploadPart": "s3:PutObject",
    "CompleteMultipartUpload": "s3:PutObject",
    "AbortMultipartUpload": "s3:AbortMultipartUpload",
    "DeleteObject": "s3:DeleteObject",
    "DeleteObjects": "s3:DeleteObject",
}
# The methods of boto3's client that the code calls, and the requests that each may make.
REQUESTS = {
    "abort_multipart_upload": {"AbortMultipartUpload"},
    "complete_multipart_upload": {"CompleteMultipartUpload"},
    "create_multipart_upload": {"CreateMultipartUpload"},
    "delete_objects": {"DeleteObjects"},
    "download_file": {"HeadObject", "GetObject"},
    "generate_presigned_url": {"GetObject"},
    "get_object": {"GetObject"},
    "get_paginator": {"ListObjectsV2"},
    "head_object": {"HeadObject"},
    "list_objects_v2": {"ListObjectsV2"},
    "put_object": {"PutObject"},
    "upload_part": {"UploadPart"},
}
POLICY: list[dict[str, Any]] = json.loads((REPOSITORY / "manifests/eks/s3-policy.json").read_text())[
    "Statement"
]


def allowed(*names: str) -> set[str]:
    statements = [statement for statement in POLICY if statement["Sid"] in names]
    assert len(statements) == len(names)
    return {
        action
        for statement in statements
        for action in ([statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"])
    }


def called(*folders: str) -> set[str]:
    """Methods of a client in the trainer's source."""
    return {
        method
        for folder in folders
        for path in (REPOSITORY / "trainer/dtj_trainer" / folder).rglob("*.py")
        for method in re.findall(r"(?<!http\.)client\.(\w+)\(", path.read_text())
    }


HISTORY = History(
    namespace="ml",
    name="mnist",
    uid="0a1b2c3d-0000-4000-8000-000000000000",
    created="2026-11-25T10:00:00Z",
    spec_digest="ab" * 32,
    strategy="Horovod",
    world=4,
)


@pytest.fixture
def asked(job_store: Store) -> tuple[Store, set[str]]:
    """A store whose client notes each request that it makes."""
    client = s3.make_client()
    made: set[str] = set()
    client.meta.events.register("before-call.s3", lambda model, **_: made.add(model.name))
    return Store(job_store.location, client), made


def test_every_call_to_s3_is_known_here() -> None:
    assert called("artifacts", "data") == set(REQUESTS)
    assert set(ACTIONS) == {request for requests in REQUESTS.values() for request in requests} | {
        "DeleteObject"
    }


def test_the_artifacts_need_all_that_the_policy_allows_and_no_more(
    asked: tuple[Store, set[str]], tmp_path: Path
) -> None:
    store, made = asked
    large = tmp_path / "large"
    large.write_bytes(b"x" * (s3.MULTIPART_BYTES + 1))

    etag = store.put_bytes("small", b"x")
    store.put_file("large", large)
    store.put_file("conditional", large, replaces=ABSENT)
    with pytest.raises(S3Error):
        store.put_file("conditional", large, replaces=ABSENT)  # aborts its parts
    assert store.etag("small") == etag
    assert store.get_bytes("small") == b"x"
    store.get_file("large", tmp_path / "again")
    assert len(list(store.objects())) == 3
    assert store.folders() == []
    store.delete(["small", "large", "conditional"])

    assert made == set(ACTIONS) - {"DeleteObject"}
    assert {ACTIONS[request] for request in made} == allowed("ListArtifacts", "ReadAndWriteArtifacts")


def test_the_history_needs_no_more_and_stays_below_the_artifacts_uri(
    asked: tuple[Store, set[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store, made = asked
    own = f"{store.location.prefix}/{HISTORY.prefix}"
    keys: list[str] = []
    store._client.meta.events.register(
        "before-parameter-build.s3.PutObject", lambda params, **_: keys.append(params["Key"])
    )
    monkeypatch.setattr(
        record_pod,
        "own_store",
        lambda environment: Store(s3.parse_s3_uri(environment["DTJ_ARTIFACTS_URI"]), store._client),
    )
    end = end_record(HISTORY, "record", "2026-11-25T11:00:00Z", [], {"phase": "Failed", "attempt": 1})
    environment = {
        "DTJ_ARTIFACTS_URI": f"s3://{store.location.bucket}/{own}",
        "DTJ_HISTORY": HISTORY.to_json(),
        "DTJ_END": json.dumps(end),
        "DTJ_CONFIG_DIR": str(tmp_path),
    }
    assert record_pod.record(environment)

    assert {ACTIONS[request] for request in made} <= allowed("ReadAndWriteArtifacts")
    assert sorted(keys) == [
        f"{store.location.prefix}/{HISTORY.index_key}",
        *(f"{own}/{name}" for name in ("end.json", "run.json")),
    ]


def test_the_data_need_all_that_the_policy_allows_and_no_more(asked: tuple[Store, set[str]]) -> None:
    store, made = asked
    store.put_bytes("train", b"data")
    made.clear()
    source = S3Source(store.location, store._client)
    (file,) = source.list().values()
    assert b"".join(source.read(file, 0)) == b"data"
    source.keeps_md5(file)

    assert {ACTIONS[request] for request in made} == allowed("ListData", "ReadData")


def test_the_doctors_look_from_a_pod_needs_no_more() -> None:
    text = (REPOSITORY / "operator/dtj/doctor/in_pod.py").read_text()
    methods = set(re.findall(r"_client\.(\w+)\(", text))
    assert methods == {"put_object", "delete_object", "list_objects_v2"}
    requests = {"".join(word.capitalize() for word in method.split("_")) for method in methods}
    assert {ACTIONS[request] for request in requests} <= allowed("ListArtifacts", "ReadAndWriteArtifacts")
