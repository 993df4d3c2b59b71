"""The download of data to a pod: once, whole, and again after an interruption.

* interrupted, damaged and changed downloads
* what later processes of an attempt ask for
* buckets that are away, empty or slow
* local folders and wrong URIs
* ranks of a pod that download once
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import SimpleNamespace

import boto3
import pytest
from botocore.stub import Stubber
from tests.patience import PATIENCE

from dtj_trainer.artifacts import s3
from dtj_trainer.artifacts.s3 import DamagedObject, S3Error, S3Location, make_client, parse_s3_uri
from dtj_trainer.artifacts.store import Store
from dtj_trainer.data import staging
from dtj_trainer.data.errors import DataCorrupt, DataNotFound, DataUnavailable
from dtj_trainer.data.sources import RemoteFile, S3Source

CONTENT = bytes(range(256)) * 40
URI = "s3://datasets/some set"


Use = "Callable[[Memory], Memory]"


class Memory:
    """A store in memory that hands out `allowed` bytes and then breaks."""

    def __init__(self, content: bytes = CONTENT, etag: str | None = None, allowed: int = 1 << 30) -> None:
        self.content = content
        self.etag = etag or f'"{hashlib.md5(content).hexdigest()}"'
        self.allowed = allowed
        self.starts: list[int] = []
        self.error: BaseException = KeyboardInterrupt()
        self.encrypted = False
        self.listed: list[int | None] = []

    def list(self, pages: int | None = None, *, below: bool = False) -> dict[str, RemoteFile]:
        self.listed.append(pages)
        return {"a.gz": RemoteFile("a.gz", len(self.content), self.etag)}

    def read(self, file: RemoteFile, start: int) -> Iterator[bytes]:
        self.starts.append(start)
        for at in range(start, len(self.content), 1000):
            if self.allowed <= 0:
                raise self.error
            self.allowed -= 1000
            yield self.content[at : at + 1000]

    def keeps_md5(self, file: RemoteFile) -> bool:
        return not self.encrypted


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Use:
    monkeypatch.setenv("DTJ_ROOT", str(tmp_path))

    def use(source: Memory) -> Memory:
        monkeypatch.setattr(staging, "s3_source", lambda _: source)
        return source

    return use


def want(*wanted: str) -> Callable[[Collection[str]], list[str]]:
    """Choose these files, and say which are missing."""

    def choose(names: Collection[str]) -> list[str]:
        if missing := [name for name in wanted if name not in names]:
            raise DataNotFound(f"has no {', '.join(missing)}; there is {', '.join(names) or 'nothing'}")
        return list(wanted)

    return choose


def stage() -> Path:
    return staging.stage(URI, want("a.gz"), timeout=3)["a.gz"]


def test_a_killed_download_goes_on_where_it_stopped(use: Use) -> None:
    source = use(Memory(allowed=4000))
    with pytest.raises(KeyboardInterrupt):
        stage()
    source.allowed = 1 << 30
    assert stage().read_bytes() == CONTENT
    assert source.starts == [0, 4000]
    stage()
    assert source.starts == [0, 4000], "what is there is not fetched again"


def test_the_record_says_what_was_fetched(use: Use) -> None:
    use(Memory())
    path = stage()
    record = json.loads((path.parent / ".staged.json").read_text())
    assert record["a.gz"]["sha256"] == hashlib.sha256(CONTENT).hexdigest()
    assert path.parent.name.startswith("some_set-")


def test_within_an_attempt_only_the_first_asks_the_store(use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTJ_UID", "8c2f")
    monkeypatch.setenv("DTJ_ATTEMPT", "1")
    use(Memory())
    staging.stage_ahead(URI, want("a.gz"))
    other = use(Memory(CONTENT[::-1]))
    assert stage().read_bytes() == CONTENT
    assert other.listed == []
    monkeypatch.setenv("DTJ_ATTEMPT", "2")
    assert stage().read_bytes() == CONTENT[::-1], "the next attempt looks for a new version"
    stage()
    assert other.listed == [None]


def test_what_is_found_unchanged_is_not_asked_for_again_in_that_attempt(
    use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DTJ_UID", "8c2f")
    source = use(Memory())
    for attempt, listed in (("1", 1), ("1", 1), ("2", 2), ("2", 2)):
        monkeypatch.setenv("DTJ_ATTEMPT", attempt)
        stage()
        assert len(source.listed) == listed
    assert source.starts == [0]


def test_a_file_that_was_cut_since_is_fetched_again(use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTJ_UID", "8c2f")
    monkeypatch.setenv("DTJ_ATTEMPT", "1")
    use(Memory())
    stage().write_bytes(CONTENT[:100])
    assert stage().read_bytes() == CONTENT


def test_ahead_reads_one_page_and_leaves_every_fault_to_the_program(
    use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = use(Memory())
    staging.stage_ahead(URI, want("a.gz", "b"))
    assert (source.listed, source.starts) == ([1], []), "all files or none"
    source.allowed, source.error = 4000, S3Error("the connection broke", transient=True)
    staging.stage_ahead(URI, want("a.gz"))
    assert source.starts == [0], "tried once: the program has a patience of its own"
    source.allowed = 1 << 30
    assert stage().read_bytes() == CONTENT
    assert source.starts == [0, 4000]
    staging.stage_ahead("s3://B", want("a.gz"))
    staging.stage_ahead("/no/such/folder", want("a.gz"))


def test_a_part_of_another_version_is_dropped(use: Use) -> None:
    use(Memory(allowed=4000))
    with pytest.raises(KeyboardInterrupt):
        stage()
    other = use(Memory(CONTENT[::-1]))
    path = stage()
    assert path.read_bytes() == CONTENT[::-1]
    assert other.starts == [0]
    assert [p.name for p in path.parent.glob(".*.part")] == []


def test_a_new_version_replaces_the_old(use: Use) -> None:
    use(Memory())
    stage()
    use(Memory(CONTENT[::-1]))
    assert stage().read_bytes() == CONTENT[::-1]


def test_a_damaged_download_is_refused_and_not_kept(use: Use) -> None:
    source = use(Memory(etag='"' + "0" * 32 + '"'))
    with pytest.raises(DataCorrupt, match=r"a\.gz arrived with the MD5 [0-9a-f]{32}, and has the MD5 0{32}"):
        stage()
    source.etag = '"0123-2"'  # sent in parts: its ETag is no MD5
    assert stage().read_bytes() == CONTENT


def test_the_etag_of_an_encrypted_file_is_no_md5(use: Use) -> None:
    source = use(Memory(etag='"' + "0" * 32 + '"'))
    source.encrypted = True
    assert stage().read_bytes() == CONTENT


def test_what_the_store_says_is_damaged_is_not_taken_by_the_next_attempt(use: Use) -> None:
    source = use(Memory(etag='"' + "0" * 32 + '"'))
    source.encrypted = True
    reads = source.read

    def read(file: RemoteFile, start: int) -> Iterator[bytes]:
        yield from reads(file, start)
        raise DamagedObject("its checksum in the bucket differs")

    source.read = read
    for _ in range(2):
        with pytest.raises(DataCorrupt, match="its checksum in the bucket differs"):
            stage()
    assert source.starts == [0, 0]


@pytest.mark.parametrize(
    ("answer", "md5"),
    [
        ({}, True),
        ({"ServerSideEncryption": "AES256"}, True),
        ({"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "some-key"}, False),
        ({"ServerSideEncryption": "aws:kms:dsse"}, False),
        ({"SSECustomerAlgorithm": "AES256"}, False),
    ],
)
def test_s3_says_whether_an_etag_is_an_md5(
    answer: dict[str, str], md5: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = boto3.client("s3", "us-east-1", aws_access_key_id="a", aws_secret_access_key="b")
    source = S3Source(S3Location("datasets", "set"), client)
    with Stubber(client) as stub:
        stub.add_response(
            "head_object", answer, {"Bucket": "datasets", "Key": "set/a.gz", "IfMatch": '"0123"'}
        )
        assert source.keeps_md5(RemoteFile("a.gz", 1, '"0123"')) is md5


def test_only_the_rest_of_a_file_is_asked_for_as_a_range(job_store: Store, job_uri: str) -> None:
    """S3 answers a range without the object's checksum, so botocore has nothing to compare."""
    job_store.put_bytes("set/a.gz", CONTENT)
    client = make_client()
    asked: list[dict[str, str]] = []
    client.meta.events.register(
        "before-parameter-build.s3.GetObject", lambda params, **_: asked.append(params)
    )
    source = S3Source(parse_s3_uri(f"{job_uri}/set"), client)
    file = source.list()["a.gz"]
    assert b"".join(source.read(file, 0)) == CONTENT
    assert b"".join(source.read(file, 9000)) == CONTENT[9000:]
    assert [params.get("Range") for params in asked] == [None, "bytes=9000-"]


def test_a_store_that_comes_back_is_waited_for(use: Use) -> None:
    source = use(Memory(allowed=2000))
    source.error = S3Error("can't be reached", transient=True)
    reads = source.read

    def read(file: RemoteFile, start: int) -> Iterator[bytes]:
        if start:
            source.allowed = 1 << 30
        return reads(file, start)

    source.read = read
    assert stage().read_bytes() == CONTENT
    assert source.starts == [0, 2000]


def test_data_that_keep_coming_outlast_the_timeout(use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(s3, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(s3, "FIRST_DELAY_SECONDS", 0.0)
    source = use(Memory())
    source.error = S3Error("connection reset", transient=True)
    reads = source.read

    def read(file: RemoteFile, start: int) -> Iterator[bytes]:
        now[0] += 100
        source.allowed = 4000
        return reads(file, start)

    source.read = read
    found = staging.stage(URI, want("a.gz"), timeout=60)
    assert found["a.gz"].read_bytes() == CONTENT
    assert source.starts == [0, 4000, 8000]


def test_a_store_that_stays_away(use: Use) -> None:
    source = use(Memory(allowed=0))
    source.error = S3Error("S3 at x can't be reached", transient=True)
    with pytest.raises(DataUnavailable, match="s3://datasets/some set: S3 at x can't be reached"):
        staging.stage(URI, want("a.gz"), timeout=0.1)


def test_missing_files_are_named_with_the_uri(use: Use) -> None:
    use(Memory())
    with pytest.raises(DataNotFound) as caught:
        staging.stage(URI, want("a.gz", "b", "c"))
    assert str(caught.value) == "s3://datasets/some set has no b, c; there is a.gz"


def test_a_folder_of_this_machine_is_used_in_place(tmp_path: Path) -> None:
    folder = tmp_path / "a set"
    folder.mkdir()
    (folder / "b").write_bytes(b"1")
    for uri in (str(folder), f"file://{tmp_path}/a%20set"):
        assert staging.stage(uri, want("b")) == {"b": folder / "b"}


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("/no/such/folder", "/no/such/folder is not a folder"),
        ("file:///no/such", "file:///no/such is not a folder"),
        ("file://host/folder", "file://host/folder can't be read: data lies at s3://bucket/prefix"),
        ("gs://bucket/x", "gs://bucket/x can't be read"),
        ("s3://B", "'s3://B' names no valid bucket"),
    ],
)
def test_uris_that_name_nothing(
    uri: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DTJ_ROOT", str(tmp_path))
    with pytest.raises(DataNotFound) as caught:
        staging.stage(uri, want("a"))
    assert str(caught.value).startswith(message)
    assert list(tmp_path.iterdir()) == [], "no folder is made for them"


STAGE = """
import logging, sys
from dtj_trainer.data.errors import DataNotFound
from dtj_trainer.data.staging import stage
def fixed(names):
    if {"a.gz", "b"} - set(names):
        raise DataNotFound("has too few")
    return ["a.gz", "b"]
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
print(stage(sys.argv[1], fixed)["b"].read_bytes() == b"b" * 3_000_000)
"""


def test_ranks_of_a_pod_fetch_once(
    job_store: Store, job_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_store.put_bytes("set/a.gz", CONTENT)
    job_store.put_bytes("set/b", b"b" * 3_000_000)
    monkeypatch.setenv("DTJ_ROOT", str(tmp_path))
    ranks = [
        subprocess.Popen([sys.executable, "-c", STAGE, f"{job_uri}/set"], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    output = "".join(rank.communicate(timeout=50 * PATIENCE)[0] for rank in ranks)
    assert output.count("True") == 3
    assert output.count("staged a.gz") == output.count("staged b:") == 1


def test_in_s3_nothing_and_no_bucket(job_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTJ_ROOT", str(tmp_path))
    with pytest.raises(DataNotFound, match=f"{job_uri}/none has no a; there is nothing"):
        staging.stage(f"{job_uri}/none", want("a"))
    with pytest.raises(DataNotFound, match="the bucket nosuchbucket does not exist"):
        staging.stage("s3://nosuchbucket/x", want("a"))
