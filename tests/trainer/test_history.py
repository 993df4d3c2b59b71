"""The history of a bucket: index, records of ended jobs, and the cache of the user.

* counts of requests over 300 jobs: cold, warm, filtered
* jobs without a recorded end, and records that can't be read
* records that are replaced, and an index that changes
* caches that are damaged, newer, shared by commands, or can't be written
* objects that the cluster still has
"""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.trainer.conftest import ObjectStore
from tests.unit.support.fake_client import FakeClient
from tests.unit.support.jobs import stored
from tests.unit.support.past_jobs import counted_requests, end, entry, names, put, put_many
from typer.testing import CliRunner

import dtj.client
from dtj.api.status import Phase
from dtj.cli.main import app
from dtj.client import DistributedTrainingJob, History, HistoryQuery, PastJob, SortBy, Unreachable, Unusable
from dtj.client.history_cache import cache_file
from dtj_trainer.artifacts.store import Store, open_store
from dtj_trainer.contract.history import index_key

COUNT = 300
FAILED = HistoryQuery(phases=[Phase.FAILED])


@pytest.fixture(scope="module")
def many(running_object_store: ObjectStore) -> str:
    """The `artifacts.uri` of 300 ended jobs."""
    uri = "s3://training/many-past-jobs"
    put_many(open_store(uri, running_object_store.environment), COUNT)
    return uri


@pytest.fixture(autouse=True)
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def jobs(uri: str, query: HistoryQuery | None = None, limit: int | None = 50) -> list[PastJob]:
    with History(uri) as history:
        return history.jobs(query, limit=limit)


def test_the_newest_jobs_cost_one_request_each(
    many: str, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with counted_requests(monkeypatch) as requests:
        found = jobs(many)
        assert names(found) == [f"mnist-{number}" for number in range(50)]
        assert len(requests) == 51
        first = found[1]
        assert (first.phase, first.strategy, first.workers) == (Phase.FAILED, "Horovod", 2)
        assert first.end is not None
        assert first.end.status.failure is not None
        assert first.end.status.failure.last_log_lines == [
            "Traceback (most recent call last):",
            "ValueError: loss is nan",
        ]
        assert first.uri == f"{many}/vision/mnist-1-00000001"
        requests.clear()
        assert jobs(many) == found
        assert len(requests) == 1, "only the index is asked: the records are final"


def test_a_query_reads_all_records_once(
    many: str, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int]] = []
    with counted_requests(monkeypatch) as requests:
        with History(many, on_progress=lambda done, total: seen.append((done, total))) as history:
            failed = history.jobs(FAILED, limit=None)
        assert names(failed) == [f"mnist-{number}" for number in range(1, COUNT, 4)]
        assert seen[-1] == (COUNT, COUNT)
        assert len(requests) == COUNT + 1
        assert all(request.startswith("GET ") for request in requests), "read-only keys suffice"
        requests.clear()
        slow = jobs(many, HistoryQuery(namespace="ml", sort_by=SortBy.DURATION), limit=3)
        assert names(slow) == ["mnist-0", "mnist-10", "mnist-20"], "those that were restarted"
        since = entry(5).created
        assert names(jobs(many, HistoryQuery(since=since, sort_by=SortBy.NAME))) == [
            f"mnist-{number}" for number in range(6)
        ]
        (one,) = jobs(many, HistoryQuery(name="mnist-7", uid="00000007"))
        assert one.uid == entry(7).uid
        assert len(requests) == 3, "each looks at the front of the index"


def test_the_progress_of_a_long_reading_is_told(
    many: str, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dtj.client, "Client", FakeClient)
    FakeClient.jobs, FakeClient.calls = {}, []
    words = ["list", "--past", "--from", many, "--phase", "Failed", "--limit", "0", "-o", "name"]
    result = CliRunner().invoke(app, words)
    assert len(result.stdout.split()) == COUNT // 4
    assert result.stderr.splitlines()[-1] == f"read {COUNT} of {COUNT} records of past jobs"
    assert CliRunner().invoke(app, words).stderr == ""


def test_the_index_alone_answers_by_namespace_and_time(
    many: str, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with counted_requests(monkeypatch) as requests:
        found = jobs(many, HistoryQuery(namespace="vision", since=entry(9).created))
        assert names(found) == ["mnist-1", "mnist-3", "mnist-5", "mnist-7", "mnist-9"]
        assert len(requests) == 1 + 5
        assert jobs(many, HistoryQuery(since=entry(-1).created)) == []


def test_a_job_without_a_recorded_end_has_its_last_sign(job_store: Store) -> None:
    silent, trained = entry(2), entry(1)
    put(job_store, silent, None)
    put(job_store, trained, None)
    metrics = b'{"time": "2026-11-01T11:30:00Z"}\n{"time": "2026-11-01T11:40:00Z"}\n{"ti'
    job_store.put_bytes(f"{trained.prefix}/metrics.jsonl", b'{"time": "2026-11-01T11:20:00Z"}\n')
    job_store.put_bytes(f"{trained.prefix}/metrics.jsonl.00002", metrics)
    job_store.put_bytes(
        f"{trained.prefix}/checkpoints/40/manifest.json", b'{"time": "2026-11-01T11:35:00+00:00"}'
    )
    first, second = jobs(job_store.location.uri)
    assert (first.phase, second.phase, second.last_sign) == (None, None, None)
    assert first.state == "no end recorded; last sign 2026-11-01T11:40:00Z"
    assert second.state == "no end recorded, and no sign of the training"
    assert jobs(job_store.location.uri, FAILED) == []
    put(job_store, entry(3), end(entry(3)))
    job_store.put_bytes(f"{trained.prefix}/end.json", json.dumps(end(trained, "Failed")).encode())
    assert [job.phase for job in jobs(job_store.location.uri)] == [Phase.FAILED, None, Phase.SUCCEEDED]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"{", "end.json can't be read: Expecting"),
        (b"[1]", "end.json can't be read: it is not a JSON object with a version"),
        (b'{"version": 2}', "end.json was written by a later release of dtj: upgrade dtj"),
        (b'{"version": 1, "uid": "other"}', "end.json belongs to another job, with uid other"),
        ({"status": 1}, "end.json can't be read: status must be an object"),
        ({"time": "yesterday"}, "end.json can't be read: time is not an RFC 3339 time"),
        (
            {"status": {"phase": "Failed", "completionTime": "2026-11-01"}},
            "end.json can't be read: status.completionTime is not an RFC 3339 time",
        ),
        (b"[" * 100_000, "end.json can't be read: "),
    ],
)
def test_a_record_that_can_not_be_read_says_why(
    job_store: Store, content: bytes | dict[str, object], fault: str
) -> None:
    put(job_store, entry(), content if isinstance(content, bytes) else end(entry()) | content)
    (job,) = jobs(job_store.location.uri)
    assert job.end is None
    assert job.state.startswith(fault)


def test_fields_of_a_later_release_are_ignored(job_store: Store) -> None:
    put(job_store, entry(), end(entry(), later={"a": 1}) | {"more": []})
    (job,) = jobs(job_store.location.uri)
    assert job.phase is Phase.SUCCEEDED
    with History(job_store.location.uri) as history:
        run = history.run(job.entry)
        assert run is not None
        assert (run.strategy, run.world, [number for number, _ in run.attempts]) == ("Horovod", 2, [1])
        assert history.run(entry(5)) is None
        assert history.read(job.entry) == job


def test_a_young_record_is_looked_at_again_and_an_old_one_is_not(job_store: Store) -> None:
    now = datetime.now(UTC)
    young, old = entry(1), entry(2)
    put(job_store, young, end(young) | {"time": now.isoformat()})
    put(job_store, old, end(old) | {"time": (now - timedelta(days=2)).isoformat()})
    uri = job_store.location.uri
    assert [job.phase for job in jobs(uri)] == [Phase.SUCCEEDED, Phase.SUCCEEDED]
    for job in (young, old):
        changed = end(job, "Failed") | {"time": now.isoformat()}
        job_store.put_bytes(f"{job.prefix}/end.json", json.dumps(changed).encode())
    assert [job.phase for job in jobs(uri)] == [Phase.FAILED, Phase.SUCCEEDED]
    job_store.delete([f"{young.prefix}/end.json"])
    assert [job.phase for job in jobs(uri)] == [None, Phase.SUCCEEDED]


def test_the_record_of_a_suspended_job_is_never_final(job_store: Store) -> None:
    put(job_store, entry(), end(entry(), "Suspended"))
    assert [job.phase for job in jobs(job_store.location.uri)] == [Phase.SUSPENDED]
    job_store.put_bytes(f"{entry().prefix}/end.json", json.dumps(end(entry())).encode())
    assert [job.phase for job in jobs(job_store.location.uri)] == [Phase.SUCCEEDED]


def test_the_index_is_looked_at_a_day_back_and_wholly_once_a_day(job_store: Store, cache_home: Path) -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    uri, by_name = job_store.location.uri, HistoryQuery(sort_by=SortBy.NAME)

    def job(name: str, hours: int):
        return entry(int((entry().created - now).total_seconds() // 3600) + hours, name, uid=f"{name}-1")

    for name, hours in (("a", 100), ("b", 200)):
        put(job_store, job(name, hours), end(job(name, hours)))
    assert names(jobs(uri, by_name)) == ["a", "b"]
    job_store.delete([index_key(*job("b", 200))])
    # A pod of "waited" started 20 hours after the job was created, a pod of "late" after more than a day.
    for name, hours in (("waited", 20), ("late", 48)):
        put(job_store, job(name, hours), end(job(name, hours)))
    assert names(jobs(uri, by_name)) == ["a", "b", "waited"]
    with sqlite3.connect(cache_file(uri, os.environ["AWS_ENDPOINT_URL_S3"])) as db:
        db.execute("UPDATE listings SET time = time - 90000")
    assert names(jobs(uri, by_name)) == ["a", "late", "waited"]


def test_options_cost_a_request_for_each_job_and_none_once_it_has_ended(
    job_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, lost, bare = entries = [entry(number) for number in range(3)]
    put(job_store, ended, end(ended))
    put(job_store, lost, None)
    put(job_store, bare, end(bare))
    hostile = "--note=" + "x" * 1000
    for each, args in ((ended, ["--lr=0.1", "--api-key=k"]), (lost, [hostile])):
        job_store.put_bytes(f"{each.prefix}/job.yaml", json.dumps({"spec": {"args": args}}).encode())
    jobs(job_store.location.uri)
    for first in (True, False):
        with counted_requests(monkeypatch) as requests, History(job_store.location.uri) as history:
            options = history.options(entries)
        assert options[ended.uid] == {"lr": "0.1", "api-key": "(hidden)"}
        assert options[lost.uid] == {"note": "x" * 500}
        assert options[bare.uid] == {}
        asked = [each.uid for each in entries if any(each.prefix in request for request in requests)]
        assert asked == ([each.uid for each in entries] if first else [lost.uid])


@pytest.mark.parametrize("content", [b"", b"- a", b"spec: 1", b"spec: {args: 3}", b"a: &a [*a]", b"\xff\x00"])
def test_a_job_file_that_can_not_be_read_has_no_options(job_store: Store, content: bytes) -> None:
    put(job_store, entry(), end(entry()))
    job_store.put_bytes(f"{entry().prefix}/job.yaml", content)
    with History(job_store.location.uri) as history:
        assert history.options([entry()]) == {entry().uid: {}}


def test_other_objects_in_the_index_are_left_out(job_store: Store) -> None:
    put(job_store, entry(), end(entry()))
    for key in ("_index/README", "_index/00_a_b_c", "_index/9999999999_.._a_b", "_index/9999999999_a_\x1b_b"):
        job_store.put_bytes(key, b"")
    assert names(jobs(job_store.location.uri)) == ["mnist-0"]
    with History(job_store.location.uri) as history:
        assert list(history.entries()) == [entry()]


def test_the_cache_is_for_the_user_alone_and_holds_no_key(
    many: str, object_store: ObjectStore, cache_home: Path
) -> None:
    jobs(many)
    file = cache_file(many, object_store.endpoint)
    assert file.parent == cache_home / "dtj"
    for each in file.parent.iterdir():
        assert stat.S_IMODE(each.stat().st_mode) == 0o600, each
    assert b"test-secret" not in file.read_bytes()


def _text(file: Path) -> None:
    file.write_bytes(b"no database at all" * 100)


def _zeros(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.seek(4096)
        opened.write(bytes(file.stat().st_size - 4096))


def _later(file: Path) -> None:
    with sqlite3.connect(file) as db:
        db.execute("PRAGMA user_version = 2")
        db.execute("DROP TABLE jobs")


def _other_tables(file: Path) -> None:
    with sqlite3.connect(file) as db:
        db.execute("DROP TABLE jobs")


@pytest.mark.parametrize("harm", [_text, _zeros, _later, _other_tables])
def test_a_damaged_or_newer_cache_is_set_aside(
    many: str, object_store: ObjectStore, harm: Callable[[Path], None]
) -> None:
    found = jobs(many, limit=9)
    file = cache_file(many, object_store.endpoint)
    harm(file)
    harmed = file.stat().st_ino
    assert jobs(many, limit=9) == found
    assert file.with_suffix(".aside").stat().st_ino == harmed
    assert jobs(many, limit=9) == found
    assert file.stat().st_ino != harmed


def test_a_cache_folder_that_can_not_be_written_costs_only_requests(
    many: str, object_store: ObjectStore, cache_home: Path
) -> None:
    (cache_home / "dtj").write_text("a file in the place of the folder")
    assert len(jobs(many)) == 50
    assert len(jobs(many, FAILED, limit=None)) == COUNT // 4


READER = """
import sys
from dtj.client import History, HistoryQuery, SortBy
with History(sys.argv[1]) as history:
    print(*(job.name for job in history.jobs(HistoryQuery(sort_by=SortBy.NAME), limit=None)))
"""


def test_commands_fill_the_cache_at_the_same_time(many: str, object_store: ObjectStore) -> None:
    command = [sys.executable, "-c", READER, many]
    readers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    printed = {reader.communicate()[0] for reader in readers}
    assert [reader.returncode for reader in readers] == [0, 0, 0]
    (text,) = printed
    assert len(text.split()) == COUNT


def test_an_object_of_the_same_uid_is_the_truth(job_store: Store) -> None:
    past, again = entry(1), entry(0)
    put(job_store, past, end(past))
    put(job_store, again, None)
    there = stored(again.name) | {"status": {"phase": "Running"}}
    there["metadata"] |= {"uid": again.uid, "namespace": "ml", "creationTimestamp": "2026-11-01T12:00:00Z"}
    object_ = DistributedTrainingJob.from_cluster(there)
    with History(job_store.location.uri) as history:
        found = history.jobs(present=[object_])
        assert [job.phase for job in found] == [Phase.RUNNING, Phase.SUCCEEDED]
        assert found[0].state == ""
        running = HistoryQuery(phases=[Phase.RUNNING])
        assert names(history.jobs(running, present=[object_])) == [again.name]
        assert history.jobs(running) == []
        other = object_.model_copy(update={"metadata": object_.metadata.model_copy(update={"uid": "x"})})
        assert [job.phase for job in history.jobs(present=[other])] == [None, Phase.SUCCEEDED]


def test_a_uri_without_a_history_and_a_store_that_is_away(job_uri: str) -> None:
    assert jobs(job_uri) == []
    with pytest.raises(Unusable, match="not an S3 URI"):
        History("training/jobs")
    away = {
        "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
    }
    with History(job_uri, away) as history, pytest.raises(Unreachable, match="can't be reached"):
        history.jobs()
