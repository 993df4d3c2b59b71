"""Multipart uploads: the parts that are sent again after an error, and what is left in the bucket.

* throttled parts and uploads that resume
* files that change, and parts that are left over
* parallel parts, hashes and progress
"""

import os
import threading
from collections import Counter
from pathlib import Path

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError
from tests.trainer.conftest import keys, steps_in

from dtj_trainer import contract
from dtj_trainer.artifacts import checkpoints, multipart, s3
from dtj_trainer.artifacts.checkpoint_upload import CheckpointUploader
from dtj_trainer.artifacts.fence import Fence, Superseded
from dtj_trainer.artifacts.file_upload import FileUploader
from dtj_trainer.artifacts.manifest import sha256_of
from dtj_trainer.artifacts.multipart import HandedOver, Uploads
from dtj_trainer.artifacts.s3 import CONNECTIONS, PART_TRIES, Pace
from dtj_trainer.artifacts.store import ABSENT, Store
from dtj_trainer.artifacts.upload_rules import Rule, UploadSource

PART = 5 * s3.MEBIBYTE


class Restless(Pace):
    """Does not wait between tries."""

    def rest(self, seconds: float) -> None:
        assert seconds > 0


class Throttled:
    """A client that counts what is sent, and refuses some parts after they were sent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.client = s3.make_client()
        self.refuses = lambda number, tries: False
        self.sent = self.parts = self.most_at_once = 0
        self._at_once = 0
        self._tries: Counter[int] = Counter()
        self._lock = threading.Lock()
        upload_part, put_object = self.client.upload_part, self.client.put_object

        def part(**request):
            with self._lock:
                self.parts += 1
                self.sent += len(request["Body"])
                self._at_once += 1
                self.most_at_once = max(self.most_at_once, self._at_once)
                self._tries[request["PartNumber"]] += 1
                refused = self.refuses(request["PartNumber"], self.parts)
            try:
                if refused:
                    answer = {"Error": {"Code": "SlowDown"}, "ResponseMetadata": {"HTTPStatusCode": 503}}
                    raise ClientError(answer, "UploadPart")
                return upload_part(**request)
            finally:
                with self._lock:
                    self._at_once -= 1

        def put(**request):
            self.sent += len(request["Body"])
            return put_object(**request)

        monkeypatch.setattr(self.client, "upload_part", part)
        monkeypatch.setattr(self.client, "put_object", put)


@pytest.fixture
def throttled(object_store, monkeypatch):
    monkeypatch.setattr(s3, "MULTIPART_BYTES", PART)
    return Throttled(monkeypatch)


@pytest.fixture
def store(job_store, throttled):
    return Store(job_store.location, throttled.client, uploads=Uploads(Restless()))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DTJ_ROOT", str(tmp_path))
    monkeypatch.setenv("DTJ_ARTIFACTS_URI", "s3://set-so-that-save-does-not-prune/x")
    path = tmp_path / "checkpoints"
    path.mkdir()
    return path


def save(step: int, **sizes: int) -> int:
    def write(directory: Path) -> None:
        for name, size in sizes.items():
            (directory / name).write_bytes(os.urandom(size))

    checkpoints.save(step, write)
    return sum(sizes.values())


def uploader(folder: Path, store: Store, attempt: int = 1) -> CheckpointUploader:
    fence = Fence(store, contract.CLAIM_FILE, attempt)
    return CheckpointUploader(
        folder, store.below("c"), fence=fence, keep=3, settle_seconds=0, step_at=lambda _: None
    )


def open_uploads(store: Store) -> list[str]:
    answer = s3.make_client().list_multipart_uploads(Bucket=store.location.bucket)
    found = (upload["Key"] for upload in answer.get("Uploads", []))
    return [key for key in found if key.startswith(store.location.prefix)]


def test_a_tenth_of_the_parts_throttled_costs_little(folder, store, throttled):
    size = save(1, a=10 * PART, b=10 * PART + 1)
    throttled.refuses = lambda number, tries: tries % 10 == 0
    assert uploader(folder, store).upload_pass(ended=True, died_ns=None)
    assert steps_in(store.below("c")) == [1]
    assert size <= throttled.sent <= 1.3 * size


def test_the_next_pass_goes_on_where_the_last_one_failed(folder, store, throttled):
    size = save(1, a=3 * PART, b=4 * PART)
    sync = uploader(folder, store)
    throttled.refuses = lambda number, tries: tries > 3 and number == 3  # of b
    with pytest.raises(s3.S3Error, match="SlowDown"):
        sync.upload_pass(ended=True, died_ns=None)
    # On a busy machine, the part may fail for good before the other three of b are begun.
    arrived = throttled.parts - 3 - PART_TRIES
    assert arrived in range(4)
    throttled.refuses = lambda number, tries: False
    throttled.parts = 0
    assert sync.upload_pass(ended=True, died_ns=None)
    assert throttled.parts == 4 - arrived, "what had arrived is not sent again"
    for name in "ab":
        back = folder.parent / name
        sha256 = store.get_with_sha256(f"c/1/{name}", back)
        assert sha256 == sha256_of(folder / "1" / name)
        assert sha256 in store.get_bytes("c/1/manifest.json").decode()
    assert size == sum((folder / "1" / name).stat().st_size for name in "ab")
    assert open_uploads(store) == []


def test_the_parts_of_a_file_that_changed_are_forgotten(tmp_path, store, throttled):
    path = tmp_path / "model"
    path.write_bytes(b"1" * 2 * PART)
    sync = FileUploader(store, [UploadSource(path, "model", Rule())])
    throttled.refuses = lambda number, tries: number == 2
    with pytest.raises(s3.S3Error, match="SlowDown"):
        sync.upload_pass(ended=True, died_ns=None)
    assert len(open_uploads(store)) == 1
    path.write_bytes(b"2" * 2 * PART)
    throttled.refuses = lambda number, tries: False
    assert sync.upload_pass(ended=True, died_ns=None)
    assert store.get_bytes("model") == path.read_bytes()
    assert open_uploads(store) == []


@pytest.mark.parametrize("what", ["checkpoint", "file"])
def test_who_has_lost_the_claim_leaves_no_parts(folder, store, throttled, what):
    if what == "checkpoint":
        save(1, a=2 * PART)
        sync = uploader(folder, store)
    else:
        (folder / "m").write_bytes(b"1" * 2 * PART)
        fence = Fence(store, contract.CLAIM_FILE, 1)
        sync = FileUploader(store, [UploadSource(folder / "m", "m", Rule(), fence)])
    throttled.refuses = lambda number, tries: number == 2
    with pytest.raises(s3.S3Error, match="SlowDown"):
        sync.upload_pass(ended=True, died_ns=None)
    assert len(open_uploads(store)) == 1
    Fence(store, contract.CLAIM_FILE, 2).hold()
    if what == "checkpoint":
        with pytest.raises(Superseded):
            sync.upload_pass(ended=True, died_ns=None)
    else:
        sync.upload_pass(ended=True, died_ns=None)
    assert open_uploads(store) == []


def test_the_end_of_the_process_leaves_no_parts(tmp_path, store, throttled):
    path = tmp_path / "model"
    path.write_bytes(b"1" * 2 * PART)
    throttled.refuses = lambda number, tries: number == 2
    with pytest.raises(s3.S3Error, match="SlowDown"):
        store.put_file("model", path)
    store.uploads.close()
    assert open_uploads(store) == []
    with pytest.raises(s3.S3Error, match="this process is ending"):
        store.put_file("model", path)


def test_a_store_that_does_not_answer_holds_up_no_end(tmp_path, store, throttled, monkeypatch):
    """Each of the uploads would wait for as long as a request may take."""
    monkeypatch.setattr(multipart, "CLOSING_SECONDS", 0.1)
    throttled.refuses = lambda number, tries: number == 2
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"1" * 2 * PART)
        with pytest.raises(s3.S3Error):
            store.put_file(name, tmp_path / name)
    aborting = []
    monkeypatch.setattr(
        multipart.MultipartUpload,
        "abort",
        lambda upload: (aborting.append(upload.key), threading.Event().wait()),
    )
    store.uploads.close()
    assert len(aborting) == 2


def test_the_process_has_no_time_for_aborts(tmp_path, store, throttled, monkeypatch):
    """The grace period of the pod is over."""
    throttled.refuses = lambda number, tries: number == 2
    (tmp_path / "a").write_bytes(b"1" * 2 * PART)
    with pytest.raises(s3.S3Error):
        store.put_file("a", tmp_path / "a")
    monkeypatch.setattr(multipart, "CLOSING_SECONDS", 10_000.0)
    monkeypatch.setattr(multipart.MultipartUpload, "abort", lambda upload: threading.Event().wait())
    store.uploads.close(0.1)


def test_bytes_that_a_store_takes_and_does_not_keep_count_once(tmp_path, store, throttled, monkeypatch):
    path = tmp_path / "model"
    path.write_bytes(b"1" * 2 * PART)
    sent = []

    def lost(**request):
        while request["Body"].read():
            pass
        raise ConnectionClosedError(endpoint_url="http://store")

    monkeypatch.setattr(throttled.client, "upload_part", lost)
    for _ in range(2):
        with pytest.raises(s3.S3Error, match="can't be reached"):
            store.put_file("model", path, sent.append)
    assert sum(sent) == 2 * PART


def test_a_conditional_put_sends_several_parts_at_a_time(tmp_path, store, throttled, monkeypatch):
    path = tmp_path / "model"
    path.write_bytes(b"1" * 6 * PART)
    together = threading.Barrier(2, timeout=30)
    put = throttled.client.upload_part

    def meets(**request):
        if request["PartNumber"] <= 2:
            together.wait()
        return put(**request)

    monkeypatch.setattr(throttled.client, "upload_part", meets)
    etag = store.put_file("model", path, replaces=ABSENT)
    assert store.etag("model") == etag
    assert throttled.most_at_once <= store.uploads.pace.connections
    with pytest.raises(s3.Changed):
        store.put_file("model", path, replaces=ABSENT)
    parts = throttled.parts
    store.put_file("model", path, replaces=etag)
    assert throttled.parts == parts, "another condition needs none of the parts again"
    assert keys(store) == ["model"]
    assert open_uploads(store) == []


def test_what_is_sent_is_hashed_once_and_read_once(tmp_path, store, throttled, monkeypatch):
    path = tmp_path / "model"
    path.write_bytes(os.urandom(3 * PART))
    signed: list[str] = []

    def note(request, **_):
        signed.append(request.headers["X-Amz-Content-SHA256"])

    throttled.client.meta.events.register("before-send.s3.UploadPart", note)
    read: list[int] = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda *a: (read.append(a[1]), pread(*a))[1])
    assert store.put_with_sha256("model", path) == sha256_of(path)
    assert set(signed) == {b"UNSIGNED-PAYLOAD"}
    assert read == [PART] * 3


def test_all_connections_are_used_on_a_machine_of_few_processors(tmp_path, store, throttled, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    path = tmp_path / "model"
    path.write_bytes(bytes(CONNECTIONS * PART))
    together = threading.Barrier(CONNECTIONS, timeout=30)
    put = throttled.client.upload_part
    monkeypatch.setattr(
        throttled.client, "upload_part", lambda **request: (together.wait(), put(**request))[1]
    )
    store.put_file("model", path)
    assert keys(store) == ["model"]


def test_bytes_count_when_they_are_sent_and_once(store, throttled, tmp_path):
    path = tmp_path / "model"
    path.write_bytes(os.urandom(2 * PART + 100))
    counted: list[int] = []
    throttled.refuses = lambda number, parts: parts == 1
    store.put_file("model", path, counted.append)
    assert sum(counted) == path.stat().st_size
    assert max(counted) <= PART // 4, "whoever waits for progress sees it before a part has arrived"
    (tmp_path / "back").write_bytes(store.get_bytes("model"))
    assert (tmp_path / "back").read_bytes() == path.read_bytes()


def test_an_upload_under_way_is_handed_over_when_the_program_ends(store, throttled, tmp_path):
    """The thread that began is idle until its pass ends: another one sends the rest."""
    path = tmp_path / "model"
    path.write_bytes(os.urandom(6 * PART))
    pace = Restless(beside_program=True)
    beside = Store(store.location, throttled.client, uploads=Uploads(pace))
    throttled.refuses = lambda number, parts: parts == 2 and pace.hurry()
    with pytest.raises(HandedOver):
        beside.put_file("model", path)
    sent = throttled.parts
    assert sent < 6
    beside.put_file("model", path)
    assert throttled.parts == 6
    assert open_uploads(store) == []
