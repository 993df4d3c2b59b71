"""The commands with `--local`, on the folder of a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from dtj.api.errors import NotFound, TimedOut
from dtj.cli.main import app
from dtj.client import LogQuery
from dtj.local import output
from dtj.local.processes import end_marked
from dtj.local.runs import ANNOTATION_S3, Run, Runs
from dtj.status.events import Happening, event
from dtj.status.times import written_time
from dtj.views import local_place
from dtj.views.local_place import LocalPlace
from tests.unit.support.jobs import job, manifest, stored
from tests.unit.support.pods import START

STATUS = {"phase": "Running", "attempt": 1, "progress": {"step": 3, "totalSteps": 4}}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run of two workers with a little output, which no process carries out."""
    monkeypatch.setenv("DTJ_HOME", str(tmp_path))
    found = Runs(tmp_path).run("mnist", "ml")
    for replica, text in {
        "launcher-0": "dtj: starts\n[rank 0] step 1\n[rank 1] step 1\n[rank 0] step 2\n",
        "worker-0": "ready\n",
    }.items():
        folder = found.folder / replica
        folder.mkdir(parents=True)
        (folder / "output.log").write_text(text)
    found.write(manifest() | {"status": STATUS})
    found.add_event(event(job(), Happening("Normal", "JobRunning", "all 3 pods run"), written_time(START)))
    return found


def call(*words: str) -> Result:
    return CliRunner().invoke(app, [*words, "--local"])


def lines(run: Run, **query: Any) -> list[tuple[str, str]]:
    place = LocalPlace(run, run.folder)
    return [(line.source, line.text) for line in place.logs(LogQuery(**query))]


def test_runs_are_listed_with_their_namespace(run: Run) -> None:
    assert call("list").stdout.splitlines()[1].split()[:4] == ["ml", "mnist", "Running", "-"]
    assert call("list", "-n", "other").stderr == "no jobs on this machine\n"


def test_a_run_that_nobody_carries_out_is_told_as_such(run: Run) -> None:
    shown = call("status", "mnist").stdout.splitlines()
    assert shown[0].startswith("mnist in ml: Running")
    assert (
        shown[1]
        == "no process carries out this run: `dtj run FILE --resume` continues from the newest checkpoint"
    )
    with run.locked():
        assert LocalPlace(run, run.folder).note() is None


def test_a_run_is_found_by_the_address_of_its_artifacts(run: Run, tmp_path: Path) -> None:
    def kept_in(store: str) -> None:
        job = manifest(artifacts={"uri": "s3://bucket/jobs"})
        job["metadata"]["annotations"] = {ANNOTATION_S3: store}
        run.write(job)

    runs, address = Runs(tmp_path), "s3://bucket/jobs/ml/mnist-5b6a1f0e"
    assert runs.at(address) is None, "the run keeps no artifacts"
    kept_in("embedded")
    assert runs.at(address) == runs.at(f"{address}/") == runs.at(f"{address}/model") == run
    assert runs.at(f"{address}0") is None
    assert runs.at("s3://bucket/jobs") is None
    kept_in("job")
    assert runs.at(address) is None, "the artifacts are in the job's own store"


def test_watching_a_run_ends_when_nobody_carries_it_out(run: Run) -> None:
    assert len(call("status", "mnist", "--watch").stdout.splitlines()) == 1


def test_events_of_a_run(run: Run) -> None:
    assert json.loads(call("events", "mnist", "-o", "json").stdout)[0]["reason"] == "JobRunning"


def test_the_launchers_lines_are_told_apart_by_rank(run: Run) -> None:
    assert lines(run) == [
        ("launcher-0", "dtj: starts"), ("rank 0", "step 1"), ("rank 1", "step 1"), ("rank 0", "step 2"),
    ]  # fmt: skip
    assert lines(run, rank=1) == [("rank 1", "step 1")]
    assert lines(run, rank=0, tail=1) == [("rank 0", "step 2")]
    assert lines(run, role="worker", index=0) == [
        ("rank 0", "step 1"), ("rank 0", "step 2"), ("worker-0", "ready"),
    ]  # fmt: skip


def test_following_ends_with_the_run_and_waits_for_whole_lines(run: Run) -> None:
    log = run.folder / "launcher-0" / "output.log"
    seen: list[str] = []
    arrived = threading.Event()

    def follow() -> Iterator[None]:
        for line in LocalPlace(run, run.folder).logs(LogQuery(follow=True, tail=1)):
            seen.append(line.text)
            arrived.set()
            yield

    with run.locked():
        following = threading.Thread(target=lambda: list(follow()))
        following.start()
        assert arrived.wait(60)
        with log.open("a") as file:
            file.write("[rank 1] st")
            file.flush()
            os.fsync(file.fileno())
            file.write("ep 2\n")
    following.join(60)
    assert seen == ["step 2", "step 2"]


ROUNDS = """[rank 0] step 1
[rank 1] step 1
dtj: round 1 begins, after the failure of worker-0: killed
[rank 0] dtj: round 1 begins
[rank 0] step 2
"""


def test_a_round_of_the_newest_attempt_is_chosen(run: Run) -> None:
    folder = run.folder / "launcher-0"
    with (folder / "output.log").open("a") as log:
        begin = log.tell()
        log.write(ROUNDS)
    (folder / "output.begin").write_text(f"2 {begin}")
    (run.folder / "worker-0" / "output.begin").write_text("1 0")

    assert lines(run, round=0) == [("rank 0", "step 1"), ("rank 1", "step 1")]
    assert call("logs", "mnist", "--round", "1", "--rank", "0", "--tail", "1").stdout == "[rank 0] step 2\n"
    assert lines(run, round=0, role="worker", index=0) == [("rank 0", "step 1")], "not those of attempt 1"
    missing = call("logs", "mnist", "--round", "2").exception
    assert isinstance(missing, NotFound)
    assert str(missing) == "the logs of the newest attempt of mnist have no round 2: they have rounds 0, 1"


@pytest.mark.parametrize(
    "over", ["dtj: round 2 begins, after the failure of worker-0: killed\n", "attempt 2"]
)
def test_a_round_is_followed_until_it_is_over(run: Run, over: str) -> None:
    folder = run.folder / "launcher-0"
    log = folder / "output.log"
    log.write_text(ROUNDS)
    (folder / "output.begin").write_text("1 0")
    with run.locked():
        followed = LocalPlace(run, run.folder).logs(LogQuery(follow=True, round=1, rank=0))
        assert [next(followed).text, next(followed).text] == ["dtj: round 1 begins", "step 2"]
        with log.open("a") as file:
            file.write("[rank 0] step 3\n")
            file.flush()
            if over == "attempt 2":
                (folder / "output.begin").write_text(f"2 {log.stat().st_size}")
            file.write(f"{over}\n[rank 0] step 4\n")
        assert [line.text for line in followed] == ["step 3"]


def test_lines_whose_space_was_released_are_skipped(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "ROTATE_BYTES", 1 << 16)
    monkeypatch.setattr(output, "MOST_BYTES", 2 << 16)
    log = run.folder / "worker-0" / "output.log"
    log.write_text("".join(f"step {number}\n" for number in range(30_000)))
    output.limit_space(log)
    shown = [text for _, text in lines(run, role="worker", index=0)][2:]
    assert 5_000 < len(shown) < 7_000
    assert shown == [f"step {number}" for number in range(30_000 - len(shown), 30_000)]


def test_a_run_without_artifacts_says_so(run: Run) -> None:
    with pytest.raises(NotFound, match="keeps no artifacts"), LocalPlace(run, run.folder).artifacts():
        pass


def test_artifacts_of_a_run_with_its_own_store_are_looked_for_there(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    artifacts = {"uri": "s3://bucket/jobs", "endpoint": "http://s3:8333"}
    env = [
        {"name": "DTJ_S3_REQUEST_PAYER", "value": "requester"},
        {"name": "DTJ_S3_SSE", "value": "AES256"},
        {"name": "PATH", "value": "/nowhere"},
    ]
    run.write(manifest(artifacts=artifacts, env=env) | {"status": STATUS})
    monkeypatch.setenv("DTJ_S3_SSE", "aws:kms")
    place = LocalPlace(run, run.folder)
    with place.artifacts() as found:
        assert found.uri == "s3://bucket/jobs/ml/mnist-5b6a1f0e"
        assert found.environment["AWS_ENDPOINT_URL_S3"] == "http://s3:8333"
        assert found.environment["DTJ_S3_REQUEST_PAYER"] == "requester"
        assert found.environment["DTJ_S3_SSE"] == "aws:kms", "what the user has set goes before"
        assert "PATH" not in found.environment
    with place.artifacts("http://other:1") as found:
        assert found.environment["AWS_ENDPOINT_URL_S3"] == "http://other:1"


BUSY = """
import subprocess, sys
loop = "import sys; print(flush=True)\\nwhile True: pass"
# A descendant in a session of its own, without the environment.
hidden = subprocess.Popen([sys.executable, "-c", loop], env={}, start_new_session=True, stdout=sys.stdout)
hidden.wait()
"""


@pytest.fixture
def busy(run: Run) -> Iterator[None]:
    """A process of worker-0, which keeps a processor busy."""
    mark = {
        "DTJ_LOCAL_RUN": str(run.folder),
        "DTJ_TERMINATION_LOG": f"{run.folder}/worker-0/termination.json",
    }
    with subprocess.Popen(
        [sys.executable, "-c", BUSY], env=mark, start_new_session=True, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        process.stdout.readline()
        yield
        end_marked("DTJ_LOCAL_RUN", str(run.folder), 0.0)


@pytest.mark.usefixtures("busy")
def test_top_measures_the_processes_of_a_run_beside_what_the_machine_has() -> None:
    used = json.loads(call("top", "mnist", "-o", "json").stdout)
    assert used.keys() == {"mnist-worker-0"}
    assert int(used["mnist-worker-0"]["cpu"].removesuffix("m")) > 0
    assert int(used["mnist-worker-0"]["memory"]) > 1 << 20
    shown = {line.split()[0]: line.split() for line in call("top", "mnist").stdout.splitlines()}
    assert shown["worker-0"][3] == "Running"
    assert shown["worker-0"][5] == f"{os.cpu_count():.2f}"
    assert shown["worker-1"][3:5] == ["Ended", "-"]


def test_waiting_for_a_run_ends_as_the_wait_for_a_job_does(run: Run) -> None:
    def told(*words: str, **status: Any) -> Result:
        run.write(manifest() | {"status": {**STATUS, **status}})
        return call("wait", "mnist", *words)

    since = {"reason": "x", "message": "x", "lastTransitionTime": written_time(START)}
    failed = {"phase": "Failed", "conditions": [{"type": "Failed", "status": "True", **since}]}
    assert told("--for=Failed", **failed).stdout.startswith("mnist, Failed")
    assert told("--for=ended", **failed).exit_code == 0
    assert str(told(**failed).exception) == "mnist is Failed and will never be Succeeded"
    assert "no process carries out this run" in str(told().exception)
    with run.locked():
        late = told("--timeout", "0.01").exception
        assert isinstance(late, TimedOut), late


def test_a_run_in_the_place_of_another_ends_the_wait(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def begin_anew(_: float) -> None:
        run.write(stored() | {"status": STATUS})

    monkeypatch.setattr(local_place.time, "sleep", begin_anew)
    with run.locked():
        assert str(call("wait", "mnist").exception) == (
            "another run of mnist has begun while waiting for its condition Succeeded"
        )
