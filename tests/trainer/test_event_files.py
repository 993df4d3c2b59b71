"""Event files from a bucket, and the program of the TensorBoard image that serves the files.

* objects that are new, have grown or were replaced
* the program of the image: retries, segments, a bucket that is away, its end
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.ipv6 import has_ipv6
from tests.patience import PATIENCE
from tests.trainer.conftest import ObjectStore, free_ports

from dtj_trainer import contract, tensorboard_pod
from dtj_trainer.artifacts import segments
from dtj_trainer.artifacts.file_upload import FileUploader
from dtj_trainer.artifacts.s3 import NoSuchKey
from dtj_trainer.artifacts.store import Store, StoredObject
from dtj_trainer.artifacts.upload_rules import EVENTS, UploadSource, is_event_file
from dtj_trainer.tensorboard import ScalarWriter
from dtj_trainer.tensorboard_pod import EventFiles


class Recorded:
    """A job's event files in a folder, and which objects were fetched."""

    def __init__(self, store: Store, folder: Path) -> None:
        self._store = store
        self.fetched: list[str] = []
        self.files = EventFiles(folder, store.objects, self._fetch)

    def _fetch(self, key: str, path: Path) -> None:
        self.fetched.append(key)
        self._store.get_growth(key, path)


def test_names_that_are_no_keys_come_back(job_store: Store, tmp_path: Path) -> None:
    name = os.fsdecode(b"run \xff/events.out.tfevents.1")
    written = tmp_path / "pod" / name
    written.parent.mkdir(parents=True)
    written.write_bytes(b"x" * 10)
    uploader = FileUploader(
        job_store, [UploadSource(tmp_path / "pod", "tensorboard", EVENTS, takes=is_event_file)]
    )
    assert uploader.upload_pass(ended=True, died_ns=None)
    assert Recorded(job_store, tmp_path / "mirror").files.fetch() == 1
    assert (tmp_path / "mirror" / name).read_bytes() == b"x" * 10


def test_only_what_is_new_or_has_changed_is_fetched(job_store: Store, tmp_path: Path) -> None:
    events = Recorded(job_store, tmp_path)
    for key, content in (("tensorboard/a", b"1"), ("tensorboard/eval/b", b"2"), ("metrics.jsonl", b"3")):
        job_store.put_bytes(key, content)
    assert (events.files.fetch(), events.files.fetch()) == (2, 0)
    job_store.put_bytes("tensorboard/a", b"12")
    job_store.put_bytes("tensorboard/c", b"4")
    assert events.files.fetch() == 2
    assert events.fetched == ["tensorboard/a", "tensorboard/eval/b", "tensorboard/a", "tensorboard/c"]
    assert {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == {
        "a": b"12",
        "b": b"2",
        "c": b"4",
    }


def test_a_file_that_could_not_be_fetched_is_fetched_the_next_time(job_store: Store, tmp_path: Path) -> None:
    job_store.put_bytes("tensorboard/a", b"1")
    listed = list(job_store.objects("tensorboard"))
    events = EventFiles(tmp_path, lambda _: listed, job_store.get_growth)
    job_store.delete(["tensorboard/a"])
    with pytest.raises(NoSuchKey):
        events.fetch()
    job_store.put_bytes("tensorboard/a", b"1")
    assert (events.fetch(), (tmp_path / "a").read_bytes()) == (1, b"1")


def test_a_key_that_leads_out_of_the_folder_is_left_out(job_store: Store, tmp_path: Path) -> None:
    job_store.put_bytes("tensorboard/b", b"2")
    evil = StoredObject("tensorboard/../../x", 1, "e")
    events = EventFiles(
        tmp_path / "events", lambda folder: [evil, *job_store.objects(folder)], job_store.get_growth
    )
    assert (events.fetch(), events.fetch()) == (1, 0)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["b"]


def test_what_an_object_has_grown_by_is_appended_for_who_has_the_file_open(
    job_store: Store, tmp_path: Path
) -> None:
    file, begin = tmp_path / "a", b"x" * 1000
    job_store.put_bytes("a", begin)
    job_store.get_growth("a", file)
    with file.open("rb") as reader:
        assert reader.read() == begin
        job_store.put_bytes("a", begin + b" and on")
        job_store.get_growth("a", file)
        assert reader.read() == b" and on"
    job_store.get_growth("a", file)
    assert file.read_bytes() == begin + b" and on"


@pytest.mark.parametrize("content", [b"anew", b"something else " * 100, b""])
def test_an_object_that_is_another_one_replaces_the_file(
    job_store: Store, tmp_path: Path, content: bytes
) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"what was there " * 10)
    job_store.put_bytes("a", content)
    job_store.get_growth("a", file)
    assert file.read_bytes() == content


# --- the image's program ----------------------------------------------------------------------------------


@pytest.fixture
def port() -> int:
    return free_ports(1)[0]


@pytest.fixture
def serve(job_uri: str, port: int, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """The program as the pod runs it, on the real object store."""
    environment = {
        **os.environ,
        contract.ENV_ARTIFACTS_URI: job_uri,
        contract.ENV_ROOT: str(tmp_path / "dtj"),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "dtj_trainer.tensorboard_pod", str(port)],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.wait()


def shown(port: int, host: str = "127.0.0.1") -> dict[int, float] | None:
    """Values by step as TensorBoard answers a browser; None while there are none."""
    url = f"http://{host}:{port}/data/plugin/scalars/scalars?tag=loss&run=."
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=10) as answer:
            return {point[1]: point[2] for point in json.load(answer)}
    except OSError:
        return None


def wait_until_shown(port: int, expected: dict[int, float], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 50 * PATIENCE
    while (found := shown(port)) != pytest.approx(expected):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, found
        time.sleep(0.2)


def upload(store: Store, folder: Path) -> None:
    for path in folder.iterdir():
        store.put_file(f"tensorboard/{path.name}", path)


@pytest.mark.torch
def test_events_of_the_bucket_are_shown_as_they_come_and_a_retry_replaces_what_was_lost(
    serve: subprocess.Popen[str], port: int, job_store: Store, tmp_path: Path
) -> None:
    folder = tmp_path / "written"
    first = ScalarWriter(folder)
    first.add(1, {"loss": 1.0})
    upload(job_store, folder)
    wait_until_shown(port, {1: 1.0}, serve)
    # The same part, grown.
    for step in range(2, 8):
        first.add(step, {"loss": 1.0})
    first.close()
    upload(job_store, folder)
    wait_until_shown(port, dict.fromkeys(range(1, 8), 1.0), serve)
    second = ScalarWriter(folder, first_step=4)
    second.add(5, {"loss": 2.0})
    second.close()
    upload(job_store, folder)
    wait_until_shown(port, {**dict.fromkeys(range(1, 5), 1.0), 5: 2.0}, serve)
    if has_ipv6():
        assert shown(port, "[::1]") == shown(port)

    serve.send_signal(signal.SIGTERM)
    assert serve.wait(20 * PATIENCE) == 0
    assert shown(port) is None


@pytest.mark.torch
def test_one_event_file_that_grows_for_long_is_shown_as_its_segments_come(
    serve: subprocess.Popen[str],
    port: int,
    job_store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a writer that knows of no parts, as torch's and TensorFlow's."""
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 400)
    folder = tmp_path / "written"
    writer = ScalarWriter(folder)
    source = UploadSource(folder, "tensorboard", replace(EVENTS, interval=0.0), takes=is_event_file)
    uploader = FileUploader(job_store, [source])
    for last in (10, 100):
        for step in range(1 if last == 10 else 11, last + 1):
            writer.add(step, {"loss": float(step)})
            uploader.upload_pass(ended=False, died_ns=None)
        uploader.upload_pass(ended=True, died_ns=None)
        wait_until_shown(port, {step: float(step) for step in range(1, last + 1)}, serve)
    (file,) = folder.iterdir()
    assert len(list(job_store.named(f"tensorboard/{file.name}."))) >= 8


def test_it_outlives_a_bucket_that_is_away_and_says_so_once(
    object_store: ObjectStore, serve: subprocess.Popen[str], job_store: Store, tmp_path: Path
) -> None:
    object_store.kill()
    assert serve.stderr
    lines = iter(serve.stderr.readline, "")
    assert "can't be reached" in next(line for line in lines if "retrying every" in line)
    object_store.start()
    assert any("the bucket is available again" in line for line in lines)


@pytest.mark.parametrize("uri", ["", "gs://bucket/job"])
def test_without_a_usable_prefix_it_says_so_and_ends(uri: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "dtj_trainer.tensorboard_pod"],
        env={**os.environ, contract.ENV_ARTIFACTS_URI: uri},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == contract.EXIT_CONFIG
    assert contract.ENV_ARTIFACTS_URI in ended.stderr


def test_the_end_of_tensorboard_ends_it_with_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, caplog: Any, job_store: Store, tmp_path: Path
) -> None:
    monkeypatch.setattr(tensorboard_pod, "FETCH_SECONDS", 0.1)
    events = EventFiles(tmp_path, job_store.objects, job_store.get_growth)
    with caplog.at_level(logging.ERROR), subprocess.Popen(["sh", "-c", "exit 3"]) as process:
        assert tensorboard_pod._follow(events, process, threading.Event()) == 3
    assert "exit code 3" in caplog.text
