"""The commands on the jobs of a cluster, with a client in the place of the cluster.

* `list`, `status`, `events`, `logs`, `top` and `artifacts`
* `wait`, `suspend`, `resume`, `scale` and `delete`
* live views with and without a terminal
* control characters of a cluster or a bucket
* jobs that do not exist, and completion
"""

from __future__ import annotations

import json
import re
import threading
import unicodedata
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from dtj.api.errors import NotFound, Unreachable
from dtj.api.spec import RunPolicy
from dtj.cli import options, status
from dtj.cli.places import PlaceOptions
from dtj.cli.terminal import output
from dtj.client import DistributedTrainingJob, JobEvent, LogLine, LogQuery
from dtj.client.objects import pod_of
from tests.unit.support.fake_client import FakeArtifacts, FakeClient, call, job
from tests.unit.support.pods import START, WORKER_0, healthy

pytestmark = pytest.mark.usefixtures("client")


def test_list_is_a_table_as_wide_as_it_must_be(client: type[FakeClient]) -> None:
    client.jobs["a-job-with-a-long-name" * 4] = job("Running", "a-job-with-a-long-name" * 4)
    result = call("list", "-A")
    heading, *lines = result.stdout.splitlines()
    assert heading.split()[:3] == ["NAMESPACE", "NAME", "STATE"]
    assert [line.split()[2] for line in lines] == ["Succeeded", "Running"]
    assert not any(line.endswith(" ") for line in lines)
    assert ("list", True) in client.calls


def test_list_prints_names_or_more_columns(client: type[FakeClient]) -> None:
    assert call("list", "-o", "name").stdout == "mnist\n"
    heading, row = call("list", "-o", "wide").stdout.splitlines()
    assert heading.split()[-2:] == ["INFRA-RESTARTS", "REASON"]
    assert row.split()[-2:] == ["0", "-"]


def test_list_says_where_there_are_no_jobs(client: type[FakeClient]) -> None:
    client.jobs = {}
    result = call("list")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "no jobs in namespace ml\n")
    assert json.loads(call("list", "-o", "json").stdout) == []


def test_namespace_and_context_reach_the_client(client: type[FakeClient]) -> None:
    call("list", "--namespace", "team", "--context", "prod")
    assert client.calls[0] == ("connect", "team", "prod")


def test_wait_takes_a_condition_and_a_timeout(client: type[FakeClient]) -> None:
    result = call("wait", "mnist", "--timeout", "10m")
    assert (result.exit_code, result.stdout) == (0, "mnist, Succeeded, attempt 1\n")
    assert call("wait", "mnist", "--for", "ended").exit_code == 0
    assert client.calls[1] == ("wait_for", "mnist", "Succeeded", 600)
    assert client.calls[-1] == ("wait", "mnist", None)


def test_wait_ends_with_1_or_5_where_it_does_not_come_about() -> None:
    assert getattr(call("wait", "mnist", "--for=Failed").exception, "exit_code", 0) == 1
    assert getattr(call("wait", "mnist", "--for=Running").exception, "exit_code", 0) == 5
    assert call("wait", "mnist", "--for=Lunch").exit_code == 2


def test_suspend_resume_delete(client: type[FakeClient]) -> None:
    assert call("suspend", "mnist").exit_code == 0
    assert call("resume", "mnist").stdout == "mnist is being resumed\n"
    back = call("resume", "mnist", "--checkpoint", "938", "--endpoint=http://store").stdout
    assert back == "mnist is being resumed from checkpoint 938\n"
    client.jobs["mnist"] = job("Running")
    assert call("delete", "mnist", "--dry-run").stdout == "mnist in namespace ml would be deleted\n"
    assert (
        call("delete", "mnist", "other", "--wait", "--timeout", "30").stdout
        == "mnist deleted\nother deleted\n"
    )
    assert [c for c in client.calls if c[0] != "connect"] == [
        ("suspend", "mnist"),
        ("resume", "mnist", None, None),
        ("resume", "mnist", 938, "http://store"),
        ("delete", "mnist", True, 30),
        ("delete", "other", True, 30),
    ]


def test_scale_takes_workers_and_other_roles(client: type[FakeClient]) -> None:
    assert (
        call("scale", "mnist", "--workers", "4", "--replicas", "ps=2").stdout
        == "mnist now has ps=2, worker=4\n"
    )
    assert client.calls[-1] == ("scale", "mnist", {"ps": 2, "worker": 4}, None)


@pytest.mark.parametrize(
    "words", [[], ["--replicas", "ps"], ["--replicas", "ps=x"], ["--workers", "2", "--replicas", "worker=3"]]
)
def test_scale_refuses_what_it_cannot_mean(words: list[str]) -> None:
    assert getattr(call("scale", "mnist", *words).exception, "exit_code", 0) == 2


def test_events_are_printed_for_people_and_programs() -> None:
    assert "all 3 pods run" in call("events", "mnist").stdout
    assert yaml.safe_load(call("events", "mnist", "-o", "yaml").stdout)[0] == {
        "time": START.isoformat(),
        "type": "Normal",
        "reason": "JobRunning",
        "message": "all 3 pods run",
        "count": 1,
        "object": "DistributedTrainingJob/mnist",
    }


def test_status_shows_the_job_and_its_replicas() -> None:
    shown = call("status", "mnist").stdout
    assert shown.startswith("mnist in ml: Succeeded, Horovod")
    assert "worker-1" in shown
    assert json.loads(call("status", "mnist", "-o", "json").stdout)["status"]["phase"] == "Succeeded"


def test_watching_without_a_terminal_is_a_line_for_each_change(
    client: type[FakeClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    states = iter([job("Starting"), job("Running"), job("Running"), job("Succeeded")])
    monkeypatch.setattr(FakeClient, "get", lambda *_, **__: client.jobs["mnist"])
    client.jobs["mnist"] = next(states)

    def pass_time(_: float) -> None:
        client.jobs["mnist"] = next(states)

    monkeypatch.setattr(status.time, "sleep", pass_time)
    told = [line.split(" ", 1)[1] for line in call("status", "mnist", "--watch").stdout.splitlines()]
    assert told == [f"mnist, {phase}, attempt 1" for phase in ("Starting", "Running", "Succeeded")]


def test_a_job_that_goes_while_it_is_watched_is_told_with_its_ttl(
    client: type[FakeClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    running = job("Running")
    policy = RunPolicy(ttl_seconds_after_finished=0)
    client.jobs["mnist"] = running.model_copy(
        update={"spec": running.spec.model_copy(update={"run_policy": policy})}
    )
    monkeypatch.setattr(status.time, "sleep", lambda _: client.jobs.clear())
    result = call("status", "mnist", "--watch")
    assert isinstance(result.exception, NotFound)
    assert result.exception.message == "mnist was deleted while it was Running"
    assert result.exception.remedy == "the job may have ended: its runPolicy.ttlSecondsAfterFinished is 0"


def test_a_live_view_stays_while_the_cluster_is_away(
    client: type[FakeClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = PlaceOptions().find("mnist")
    client.jobs["mnist"] = job("Running")
    monkeypatch.setattr(status.time, "sleep", lambda _: None)
    views_shown = status._views(place)
    next(views_shown)

    def away(*_: object, **__: object) -> None:
        raise Unreachable("the cluster does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(FakeClient, "get", away)
        shown = status.output
        with shown.capture() as captured:
            shown.print(next(views_shown))
        assert captured.get().startswith("mnist in ml: Running")
        assert "the cluster does not answer" in captured.get()
    client.jobs["mnist"] = job("Succeeded")
    assert len(list(views_shown)) == 1


def test_logs_are_whole_lines_with_their_source(client: type[FakeClient]) -> None:
    result = call("logs", "mnist", "--rank", "1", "--tail", "5", "-f")
    assert result.stdout == f"[rank 0] step 1\n[rank 1] [bold]{'x' * 200}\n"
    assert ("logs", LogQuery(rank=1, tail=5, follow=True), None) in client.calls
    assert call("logs", "mnist", "--no-prefix").stdout.startswith("step 1\n")
    call("logs", "mnist", "--round", "2", "--attempt", "1")
    assert ("logs", LogQuery(attempt=1, round=2), None) in client.calls


# Clears the screen, writes the clipboard, moves the cursor by C1; and what is no markup of rich's.
HOSTILE = "a\x1b[2J\x1b]52;c;cm0=\x07b\x9b1A\x7f[/]"


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("command", ["status", "events", "logs", "top", "list -A", "artifacts ls"])
def test_no_text_of_a_cluster_or_a_bucket_commands_the_terminal(
    command: str, terminal: bool, client: type[FakeClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = job("Failed").to_manifest()
    made["metadata"]["namespace"] = HOSTILE
    for condition in made["status"]["conditions"]:
        condition |= {"reason": HOSTILE, "message": HOSTILE}
    made["status"]["failure"] = {"message": HOSTILE, "lastLogLines": [HOSTILE], "node": HOSTILE}
    made["status"]["artifacts"] = {"model": HOSTILE}
    client.jobs = {"mnist": DistributedTrainingJob.from_cluster(made)}
    event = JobEvent(START, "Warning", HOSTILE, HOSTILE, 1, f"Pod/{HOSTILE}")
    pods = [replace(pod_of(pod), node=HOSTILE, reason=HOSTILE) for pod in healthy()]
    monkeypatch.setattr(client, "events", lambda *_, **__: [event])
    monkeypatch.setattr(client, "pods", lambda *_, **__: pods)
    monkeypatch.setattr(client, "logs", lambda *_, **__: iter([LogLine(HOSTILE, HOSTILE)]))
    monkeypatch.setattr(FakeArtifacts, "ls", lambda *_: [SimpleNamespace(key=HOSTILE, size=1)])
    monkeypatch.setattr(output, "_force_terminal", terminal)

    result = call(*command.split(), *([] if command == "list -A" else ["mnist"]))

    assert result.exit_code == 0, result.exception
    # On a terminal dtj's own colours are left, and nothing else.
    told = re.sub(r"\x1b\[[0-9;]*m", "", result.output) if terminal else result.output
    assert {char for char in told if unicodedata.category(char) == "Cc"} == {"\n"}
    assert "\ufffd1A\u2421[/]" in told.replace("\n", "") or terminal


def test_top_prints_use_for_people_and_programs() -> None:
    assert "1.50" in call("top", "mnist").stdout
    assert json.loads(call("top", "mnist", "-o", "json").stdout) == {
        WORKER_0: {"cpu": "1500m", "memory": "1Gi"}
    }


def test_artifacts_are_listed_and_copied(client: type[FakeClient], tmp_path: Path) -> None:
    listed = call("artifacts", "ls", "mnist", "--endpoint", "http://s3:1")
    assert [line.split() for line in listed.stdout.splitlines()] == [
        ["SIZE", "KEY"], ["2.0", "KiB", "metrics.jsonl"], ["3.0", "MiB", "model/model.pt"],
    ]  # fmt: skip
    assert listed.stderr == "2 objects, 3.0 MiB, in s3://b/jobs/ml/mnist-1\n"
    assert ("artifacts", "http://s3:1") in client.calls
    assert json.loads(call("artifacts", "ls", "mnist", "model", "-o", "json").stdout)[0]["size"] == 3 << 20
    assert call("artifacts", "get", "mnist", "model").stdout == "mnist/model\n"
    assert call("artifacts", "get", "mnist", "model", tmp_path).stdout == f"{tmp_path}/model\n"
    assert call("artifacts", "cp", "mnist", "metrics.jsonl", "-").stdout == "content\n"
    assert call("artifacts", "cp", "mnist", "metrics.jsonl", "m").stdout == "m\n"


@pytest.mark.parametrize(
    "words", [["status"], ["logs"], ["events"], ["top"], ["artifacts", "ls"], ["tensorboard"]]
)
def test_a_job_that_is_not_there_is_told_by_every_command(words: list[str]) -> None:
    assert isinstance(call(*words, "nobody").exception, NotFound)


def test_completion_offers_names_and_keeps_silent_when_the_cluster_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shell: Any = SimpleNamespace(params={"namespace": "ml"})
    assert options.complete_name(shell, "m") == ["mnist"]
    assert options.complete_name(shell, "x") == []
    never = threading.Event()
    monkeypatch.setattr(options, "_COMPLETION_SECONDS", 0.05)
    monkeypatch.setattr(FakeClient, "list", lambda *_, **__: [str(never.wait(60))])
    assert options.complete_name(shell, "m") == []
    never.set()

    def away(*_: object, **__: object) -> None:
        raise Unreachable("no cluster")

    monkeypatch.setattr(FakeClient, "list", away)
    assert options.complete_name(shell, "m") == []
