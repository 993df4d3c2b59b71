"""The code of a job, brought back from its ConfigMap, without credentials of a bucket."""

from __future__ import annotations

import hashlib
import io
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from dtj.api.spec import config_maps_of_code
from dtj.client import (
    Artifacts,
    AsyncClient,
    DistributedTrainingJob,
    Metadata,
    NotFound,
    Unreachable,
    Unusable,
)
from dtj.client.code_files import unpack_code
from dtj.client.code_folder import pack, select
from tests.unit.support.http_cluster import HttpCluster
from tests.unit.support.jobs import stored

ARTIFACTS = {"uri": "s3://training/jobs"}


@pytest.fixture
def archive(tmp_path: Path) -> bytes:
    folder = tmp_path / "mine"
    (folder / "pkg").mkdir(parents=True)
    (folder / "train.py").write_text("print(1)")
    (folder / "pkg/a.py").write_text("x = 1")
    packed = io.BytesIO()
    pack(select(folder), packed)
    return packed.getvalue()


def digest(archive: bytes) -> str:
    return f"sha256:{hashlib.sha256(archive).hexdigest()}"


def coded(archive: bytes, **spec: Any) -> DistributedTrainingJob:
    code = {"configMap": "mnist-code", "digest": digest(archive), "entrypoint": "train.py"}
    return DistributedTrainingJob.from_cluster(stored(**{"code": code, "command": [], "args": [], **spec}))


def store(server: HttpCluster, archive: bytes, **metadata: Any) -> None:
    server.cluster.put(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "mnist-code", "namespace": "ml", **metadata},
            "binaryData": {"code.tar.gz": b64encode(archive).decode()},
        }
    )


async def test_the_files_come_from_the_config_map(
    server: HttpCluster, client: AsyncClient, archive: bytes, tmp_path: Path
) -> None:
    store(server, archive)
    server.cluster.put(coded(archive, artifacts=ARTIFACTS).to_manifest())
    to = tmp_path / "to"
    (to / "code").mkdir(parents=True)
    (to / "code/train.py").write_text("an earlier copy")
    (to / "code/mine.txt").write_text("stays")
    assert await client.get_code("mnist", to) == [to / "code/pkg/a.py", to / "code/train.py"]
    assert (to / "code/train.py").read_text() == "print(1)"
    assert sorted(path.name for path in to.rglob("*") if path.is_file()) == ["a.py", "mine.txt", "train.py"]


async def test_a_config_map_that_is_gone_or_has_other_content_is_not_used(
    server: HttpCluster, client: AsyncClient, archive: bytes, tmp_path: Path
) -> None:
    for made in (lambda: None, lambda: store(server, b"other")):
        made()
        with pytest.raises(
            NotFound, match="mnist-code no longer has the code of mnist, and the job keeps no"
        ):
            await client.get_code(coded(archive), tmp_path)


async def test_who_may_not_read_config_maps_is_told_which_right_is_missing(
    server: HttpCluster, client: AsyncClient, archive: bytes, tmp_path: Path
) -> None:
    server.refusals["GET", "configmaps"] = [(403, "Forbidden", "configmaps is forbidden: user a cannot get")]
    with pytest.raises(Unreachable, match="user a cannot get"):
        await client.get_code(coded(archive), tmp_path)


async def test_another_run_of_a_job_keeps_its_code(
    server: HttpCluster, client: AsyncClient, archive: bytes
) -> None:
    def owners() -> list[str]:
        config = server.cluster.objects["ConfigMap", "ml", "mnist-code"]
        return [owner["name"] for owner in config["metadata"].get("ownerReferences", [])]

    store(server, archive)
    await client.submit(coded(archive))
    assert owners() == [], "a ConfigMap that dtj did not make"
    store(server, archive, labels={"dtj.dev/code": "mnist"}, ownerReferences=[{"name": "mnist", "uid": "1"}])
    again = coded(archive).model_copy(update={"metadata": Metadata(name="mnist-2", namespace="ml")})
    await client.submit(again)
    assert owners() == ["mnist", "mnist-2"]


async def test_a_program_in_the_image_has_no_code(client: AsyncClient, tmp_path: Path) -> None:
    job = DistributedTrainingJob.from_cluster(stored())
    with pytest.raises(NotFound, match="its program is in the image trainer:1"):
        await client.get_code(job, tmp_path)


def test_another_archive_is_refused_and_both_digests_are_told(archive: bytes, tmp_path: Path) -> None:
    with pytest.raises(Unusable) as refusal:
        unpack_code(coded(archive), b"other", tmp_path)
    assert digest(archive) in str(refusal.value)
    assert digest(b"other") in str(refusal.value)
    assert list((tmp_path / "code").glob("*")) == []


def test_the_archive_of_a_uri_has_the_credentials_of_the_job(
    archive: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def cp(self: Artifacts, key: str, path: Path) -> None:
        asked.append((self.uri, key, self.environment))
        path.write_bytes(archive)

    monkeypatch.setattr(Artifacts, "cp", cp)
    code = {"uri": "s3://bucket/_code/1.tar.gz", "digest": digest(archive), "entrypoint": "train.py"}
    opened = Artifacts("s3://bucket/jobs/ml/mnist-1", {"AWS_REGION": "x"})
    unpack_code(coded(archive, code=code), opened, tmp_path)
    unpack_code(coded(archive), opened, tmp_path)
    assert asked == [
        ("s3://bucket/_code", "1.tar.gz", {"AWS_REGION": "x"}),
        ("s3://bucket/jobs/ml/mnist-1", "code.tar.gz", {"AWS_REGION": "x"}),
    ]


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        ({"code": {"configMap": "a", "packages": {"configMap": "a"}}}, ["a"]),
        ({"code": {"configMap": "a", "packages": {"configMap": "b"}}}, ["a", "b"]),
        ({"code": {"uri": "s3://b/c", "packages": "x"}}, []),
        ({"code": {"configMap": 1}}, []),
        ({"code": [1]}, []),
        ({}, []),
        (None, []),
    ],
)
def test_each_config_map_of_a_job_of_any_form_is_named_once(spec: Any, names: list[str]) -> None:
    assert config_maps_of_code({"spec": spec}) == names
