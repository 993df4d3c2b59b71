"""A job's history in the bucket: run.json, end.json and the index, by the job's pods and by the record pod.

- keys of the index: the newest first, parsed back, and other keys refused
- what a pod is told comes back from JSON, and what can't be read is named
- each attempt is noted once, and a later end is never replaced
- pods of each strategy, failures, and attempts that a later one has overtaken
- stores that refuse: told once, and without harm
- the record pod: jobs that never ran, wrong settings, refusals
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.trainer.conftest import BUCKET, Workspace, has, keys
from tests.trainer.memory_store import Bucket, Gate, MemoryStore

from dtj_trainer import contract, record_pod
from dtj_trainer.artifacts.fence import Fence
from dtj_trainer.artifacts.history import HistoryWriter
from dtj_trainer.artifacts.s3 import S3Error
from dtj_trainer.artifacts.store import open_store
from dtj_trainer.contract.history import (
    NOTHING_KEPT,
    History,
    IndexEntry,
    end_record,
    index_key,
    parsed_index_key,
    replaces,
    run_record,
    success_record,
)

UID = "0a1b2c3d-0000-4000-8000-000000000000"
CREATED = datetime(2026, 11, 25, 10, 0, tzinfo=UTC)
HISTORY = History(
    namespace="ml",
    name="mnist",
    uid=UID,
    created="2026-11-25T10:00:00Z",
    spec_digest="ab" * 32,
    strategy="Horovod",
    world=4,
    restarts={"application": 1, "infrastructure": 0, "evaluator": 0},
)
INDEX_KEY = f"_index/8204399199_ml_mnist_{UID}"
PREFIX = "jobs/ml/mnist-0a1b2c3d"
names = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True)
REPORT = {"progress": {"step": 5}, "artifacts": {"uri": "s3://training/jobs/ml/mnist-0a1b2c3d"}}


# --- keys --------------------------------------------------------------------------------------------


@given(st.integers(0, 7_258_118_400), names, names, names)
def test_a_job_comes_back_from_its_key(seconds: int, namespace: str, name: str, uid: str) -> None:
    entry = IndexEntry(datetime.fromtimestamp(seconds, UTC), namespace, name, uid)
    assert parsed_index_key(index_key(*entry)) == entry


def test_a_listing_begins_with_the_newest() -> None:
    times = [CREATED + timedelta(days=days) for days in (400, 30, 1, 0)]
    keys_by_age = [index_key(time, "ml", "mnist", UID) for time in times]
    assert keys_by_age == sorted(keys_by_age)
    assert HISTORY.index_key == INDEX_KEY
    found = parsed_index_key(INDEX_KEY)
    assert found
    assert found.prefix == "ml/mnist-0a1b2c3d" == HISTORY.prefix


@pytest.mark.parametrize(
    "key", ["", "_index/", "8204399199_ml_a_b", "_index/1_ml_a_b", "_index/8204399199_ml_a", f"{INDEX_KEY}/x"]
)
def test_other_keys_are_none_of_the_index(key: str) -> None:
    assert parsed_index_key(key) is None


# --- what the pods are told --------------------------------------------------------------------------


def test_a_history_comes_back_and_later_fields_are_ignored() -> None:
    assert History.from_json(HISTORY.to_json()) == HISTORY
    later = json.loads(HISTORY.to_json()) | {"ofALaterRelease": [1]}
    assert History.from_json(json.dumps(later)) == HISTORY


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"uid": None}, "uid must be a string, not null"),
        ({"specDigest": 1}, "specDigest must be a string, not 1"),
        ({"world": True}, "world must be a whole number of at least 0, not true"),
        ({"workers": -1}, "workers must be a whole number of at least 0, not -1"),
        ({"deciders": ""}, 'deciders must be a string, not ""'),
        ({"start": 7}, "start must be a string, not 7"),
        ({"restarts": [1]}, r"restarts must be an object of whole numbers, not \[1\]"),
        ({"created": "today"}, 'created must be a time with a zone, not "today"'),
        ({"created": "2026-11-25T10:00:00"}, "created must be a time with a zone"),
    ],
)
def test_what_can_not_be_read_is_named(change: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        History.from_json(json.dumps(json.loads(HISTORY.to_json()) | change))


def test_a_wrong_variable_ends_the_pod_with_its_name(workspace: Workspace) -> None:
    run = workspace.python(
        "print('runs')", DTJ_ROLE="chief", DTJ_STRATEGY="ParameterServer", DTJ_HISTORY="[]"
    )
    assert run.ended() == contract.EXIT_CONFIG
    assert "DTJ_HISTORY can't be read: not a JSON object" in run.output


# --- which record stays ------------------------------------------------------------------------------


def record(by: str, attempt: int, phase: str, uid: str = UID) -> Any:
    return end_record(
        replace(HISTORY, uid=uid), by, "2026-11-25T11:00:00Z", [], {"phase": phase, "attempt": attempt}
    )


@pytest.mark.parametrize(
    ("stored", "new", "replaced"),
    [
        ({}, record("chief-0", 1, "Succeeded"), True),
        ({"status": []}, record("chief-0", 1, "Succeeded"), True),
        (record("record", 2, "Suspended"), record("chief-0", 2, "Succeeded"), True),
        (record("record", 1, "Failed"), record("chief-0", 1, "Succeeded"), False),
        (record("record", 2, "Failed"), record("chief-0", 1, "Succeeded"), False),
        (record("chief-0", 1, "Succeeded"), record("record", 1, "Failed"), True),
        (record("chief-0", 2, "Succeeded"), record("record", 2, "Suspended"), False),
        (record("record", 2, "Suspended"), record("record", 3, "Suspended"), True),
        (record("worker-0", 1, "Succeeded"), record("worker-0", 2, "Succeeded"), True),
        (record("record", 9, "Failed", uid="another"), record("chief-0", 1, "Succeeded"), True),
    ],
)
def test_a_later_end_stays(stored: dict[str, Any], new: Any, replaced: bool) -> None:
    assert replaces(stored, new) is replaced


def test_each_attempt_is_noted_once() -> None:
    first = run_record(HISTORY, {}, 1, "10:01")
    again = run_record(HISTORY, first, 1, "10:02")
    second = run_record(HISTORY, again, 2, "10:03")
    assert second["attempts"] == [{"attempt": 1, "time": "10:01"}, {"attempt": 2, "time": "10:03"}]
    assert run_record(HISTORY, {"attempts": ["x", {"attempt": "1"}]}, None, "10:04")["attempts"] == []
    code = {"digest": "sha256:5", "git": {"commit": "1a", "modified": True}}
    assert run_record(replace(HISTORY, code=code), first, 2, "10:03") == {**second, "code": code}


# --- the writer --------------------------------------------------------------------------------------


def opened(bucket: Bucket, before: Callable[[str], None] = lambda _: None) -> MemoryStore:
    return MemoryStore(bucket, Gate(before), PREFIX)


def begun(
    bucket: Bucket, attempt: int = 1, before: Callable[[str], None] = lambda _: None
) -> tuple[Any, Fence]:
    store = opened(bucket, before)
    fence, writer = Fence(store, contract.CLAIM_FILE, attempt), HistoryWriter(store, HISTORY)
    fence.hold()
    writer.begin(fence)
    return writer, fence


@pytest.mark.parametrize("conditions", ["heeded", "only IfNoneMatch", "ignored", "refused"])
def test_two_attempts_leave_one_history(conditions: str) -> None:
    bucket = Bucket(conditions=conditions)
    begun(bucket)
    writer, fence = begun(bucket, 2)
    assert writer.end("chief-0", 2, REPORT, fence)

    assert sorted(bucket.objects) == [
        f"jobs/{INDEX_KEY}",
        *(f"{PREFIX}/{key}" for key in ("attempt.json", "end.json", "run.json")),
    ]
    assert bucket.objects[f"jobs/{INDEX_KEY}"] == b""
    run = json.loads(bucket.objects[f"{PREFIX}/run.json"])
    assert [each["attempt"] for each in run.pop("attempts")] == [1, 2]
    assert run == {
        "version": 1, "namespace": "ml", "name": "mnist", "uid": UID, "created": "2026-11-25T10:00:00Z",
        "specDigest": "ab" * 32, "strategy": "Horovod", "world": 4,
    }  # fmt: skip
    end = json.loads(bucket.objects[f"{PREFIX}/end.json"])
    assert (end["version"], end["uid"], end["by"], end["pods"]) == (1, UID, "chief-0", [])
    assert (end["strategy"], end["world"]) == ("Horovod", 4)
    status = end["status"]
    assert (status["phase"], status["attempt"], status["restarts"]) == (
        "Succeeded",
        2,
        dict(HISTORY.restarts),
    )
    assert status["progress"] == {"step": 5}
    times = [
        datetime.strptime(status[name], "%Y-%m-%dT%H:%M:%S%z") for name in ("startTime", "completionTime")
    ]
    assert CREATED < times[0] <= times[1] <= datetime.fromisoformat(end["time"])
    assert status["conditions"][0]["reason"] == "JobSucceeded"


def test_a_success_says_what_the_operator_says_of_it() -> None:
    told = replace(HISTORY, workers=2, gpus=16, deciders="all 2 workers", start="2026-11-25T09:59:00Z")
    kept = {"artifacts": {"uri": "s3://b/p", "model": "s3://b/p/model"}}
    record = success_record(told, "worker-0", 2, "2026-11-25T10:00:00Z", "2026-11-25T11:00:00.5Z", kept)
    assert (record["workers"], record["status"]["gpus"]) == (2, 16)
    assert record["status"]["startTime"] == "2026-11-25T09:59:00Z"
    assert [(each["type"], each["message"]) for each in record["status"]["conditions"]] == [
        ("Succeeded", "all 2 workers ended with exit code 0"),
        ("Recorded", "mnist-worker-0 wrote end.json"),
    ]
    bare = success_record(HISTORY, "launcher-0", 1, None, "2026-11-25T11:00:00Z", REPORT)
    said = bare["status"]["conditions"][0]["message"]
    assert said == f"mnist-launcher-0 ended with exit code 0; {NOTHING_KEPT}"
    assert NOTHING_KEPT.endswith(f" {contract.ROOT}")
    assert "workers" not in bare
    assert "gpus" not in bare["status"]


@pytest.mark.parametrize(("phase", "stays"), [("Suspended", False), ("Failed", True)])
def test_the_next_attempt_ends_a_suspension(phase: str, stays: bool) -> None:
    bucket = Bucket()
    begun(bucket)
    late = HistoryWriter(opened(bucket), HISTORY)
    assert late.write_end(record("record", 2, phase))
    begun(bucket, 2)
    assert (f"{PREFIX}/end.json" in bucket.objects) is stays
    # A record pod that comes too late.
    assert late.write_end(record("record", 2, phase)) is stays


def test_a_pod_that_was_overtaken_records_nothing() -> None:
    bucket = Bucket()
    writer, fence = begun(bucket)
    begun(bucket, 2)
    assert not writer.end("chief-0", 1, REPORT, fence)
    # A launcher claims nothing itself.
    assert not HistoryWriter(opened(bucket), HISTORY).end("launcher-0", 1, REPORT, None)
    assert f"{PREFIX}/end.json" not in bucket.objects
    assert HistoryWriter(opened(bucket), HISTORY).end("launcher-0", 2, REPORT, None)


def test_what_a_store_refuses_is_told_once_and_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(request: str) -> None:
        if request == f"put {INDEX_KEY}" or request.endswith("end.json"):
            raise S3Error(f"access denied: {request}", transient=False)

    bucket = Bucket()
    with caplog.at_level(logging.WARNING):
        writer, fence = begun(bucket, before=refuse)
        assert not writer.end("chief-0", 1, REPORT, fence)
    assert caplog.messages == [f"the job's history is not written: access denied: put {INDEX_KEY}"]
    assert sorted(bucket.objects) == [f"{PREFIX}/attempt.json", f"{PREFIX}/run.json"]


# --- pods --------------------------------------------------------------------------------------------


@pytest.fixture
def uri(object_store: Any, tmp_path: Path) -> str:
    return f"s3://{BUCKET}/{tmp_path.name}/ml/mnist-0a1b2c3d"


CHIEF = {"DTJ_STRATEGY": "ParameterServer", "DTJ_ROLE": "chief", "DTJ_HISTORY": HISTORY.to_json()}
RANK_0 = {"DTJ_STRATEGY": "TorchDistributed", "DTJ_ROLE": "worker", "DTJ_HISTORY": HISTORY.to_json()}


@pytest.mark.parametrize(("pod", "by"), [(CHIEF, "chief-0"), (RANK_0, "worker-0")], ids=["chief", "rank 0"])
def test_the_pod_that_decides_records_the_success(
    make_workspace: Callable[..., Workspace], uri: str, pod: dict[str, str], by: str
) -> None:
    workspace = make_workspace("pod", DTJ_ARTIFACTS_URI=uri, **pod)
    program = "from dtj_trainer import progress; progress.report(step=7, total_steps=7)"
    run = workspace.python(program)
    assert run.ended() == 0, run.output

    assert workspace.termination["recorded"] is True
    store = open_store(uri.removesuffix("/ml/mnist-0a1b2c3d"))
    log = f"ml/mnist-0a1b2c3d/logs/attempt-1/{by}.log"
    kept = [key for key in keys(store) if key != log]
    assert kept == [
        INDEX_KEY,
        *(f"ml/mnist-0a1b2c3d/{key}" for key in ("attempt.json", "end.json", "metrics.jsonl", "run.json")),
    ]
    end = json.loads(open_store(uri).get_bytes("end.json"))
    assert (end["by"], end["status"]["phase"], end["status"]["progress"]["step"]) == (by, "Succeeded", 7)


def test_a_failure_leaves_the_record_to_the_operator(
    make_workspace: Callable[..., Workspace], uri: str
) -> None:
    workspace = make_workspace("pod", DTJ_ARTIFACTS_URI=uri, **CHIEF)
    run = workspace.python("raise SystemExit(3)")
    assert run.ended() == 3, run.output
    assert "recorded" not in workspace.termination
    assert has(open_store(uri), "run.json")
    assert not has(open_store(uri), "end.json")


# --- the record pod ----------------------------------------------------------------------------------


def handed(uri: str, config: Path, **changes: str) -> dict[str, str]:
    return {
        "DTJ_ARTIFACTS_URI": uri,
        "DTJ_HISTORY": HISTORY.to_json(),
        "DTJ_END": json.dumps(record("record", 1, "Failed")),
        "DTJ_CONFIG_DIR": str(config),
    } | changes


def test_a_job_that_never_ran_is_recorded(uri: str, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("kind: DistributedTrainingJob\n")
    (tmp_path / "archive").write_text("code")
    assert record_pod.record(handed(uri, tmp_path, DTJ_CODE_ARCHIVE=str(tmp_path / "archive")))
    assert keys(open_store(uri)) == ["code.tar.gz", "end.json", "job.yaml", "run.json"]
    assert json.loads(open_store(uri).get_bytes("run.json"))["attempts"] == []
    # Once more, as after a restart of the node.
    assert record_pod.record(handed(uri, tmp_path))


def test_what_the_jobs_pods_left_stays(
    make_workspace: Callable[..., Workspace], uri: str, tmp_path: Path
) -> None:
    assert make_workspace("pod", DTJ_ARTIFACTS_URI=uri, **CHIEF).python("raise SystemExit(3)").ended() == 3
    store = open_store(uri)
    run = store.get_bytes("run.json")
    assert record_pod.record(handed(uri, tmp_path))
    assert store.get_bytes("run.json") == run
    end = json.loads(store.get_bytes("end.json"))
    assert (end["by"], end["status"]["phase"]) == ("record", "Failed")


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"DTJ_ARTIFACTS_URI": ""}, "DTJ_ARTIFACTS_URI is not set"),
        ({"DTJ_ARTIFACTS_URI": "http://x"}, "DTJ_ARTIFACTS_URI: 'http://x' is not an S3 URI"),
        ({"DTJ_HISTORY": ""}, "DTJ_HISTORY can't be read"),
        ({"DTJ_END": "{"}, "DTJ_END can't be read"),
        ({"DTJ_END": "[]"}, "DTJ_END must be an object with uid and status"),
    ],
)
def test_a_wrong_setting_is_named(change: dict[str, str], fault: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=fault):
        record_pod.record(handed("s3://bucket/jobs", tmp_path, **change))


def test_a_refusal_is_the_termination_message(
    workspace: Workspace, object_store: Any, tmp_path: Path
) -> None:
    environment = handed("s3://no-such-bucket/jobs/ml/mnist-0a1b2c3d", tmp_path)
    run = workspace.run(sys.executable, "-m", "dtj_trainer.record_pod", **environment)
    assert run.ended() == contract.EXIT_UNAVAILABLE
    assert "no-such-bucket" in workspace.termination_log.read_text()


@pytest.mark.parametrize(
    ("said", "restarts"),
    [
        ({"count": 2, "failure": {"class": "Signal"}}, {"application": 3, "infrastructure": 1, "inPlace": 3}),
        ({"count": 0}, {"application": 1, "infrastructure": 1, "inPlace": 1}),
        ({"count": "2"}, {"application": 1, "infrastructure": 1, "inPlace": 1}),
        (None, {"application": 1, "infrastructure": 1, "inPlace": 1}),
    ],
)
def test_a_success_counts_the_restarts_in_place_of_its_attempt(said: Any, restarts: dict[str, int]) -> None:
    told = replace(HISTORY, restarts={"application": 1, "infrastructure": 1, "inPlace": 1})
    report = REPORT | {"restarts": said}
    record = success_record(told, "worker-0", 2, None, "2026-11-25T11:00:00Z", report)
    assert record["status"]["restarts"] == restarts
