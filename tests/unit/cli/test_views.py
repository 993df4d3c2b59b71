"""The tables of jobs and the views of `dtj status` and `dtj top`, as text of a fixed width.

* durations and ages
* the table of jobs
* the status: running, ended, not yet seen, of another controller, on a narrow terminal
* events and `dtj top`
* log lines: sources, colours, progress bars
"""

from __future__ import annotations

import io
import re
from datetime import timedelta
from typing import Any

import pytest
from rich.console import RenderableType

from dtj.cli.job_table import COLUMNS, WIDE_COLUMNS, event_table, job_table
from dtj.cli.logs import LinePainter
from dtj.cli.options import seconds_of
from dtj.cli.status_view import one_line, status_view
from dtj.cli.terminal import VisibleConsole
from dtj.cli.top import NO_METRICS, top_view
from dtj.client import DistributedTrainingJob, JobEvent, LogLine, Pod, PodUsage
from dtj.client.objects import pod_of
from dtj.status.times import written_time
from dtj.views.figures import brief
from dtj.views.replicas import replica_state
from tests.unit.support.jobs import manifest
from tests.unit.support.pods import (
    START,
    WORKER_0,
    WORKER_1,
    at,
    deleting,
    ended,
    evicted,
    healthy,
    pod,
    running,
    scheduled,
    unschedulable,
    waiting,
)

RUNNING = {
    "phase": "Running",
    "attempt": 2,
    "startTime": written_time(START),
    "restarts": {"application": 1, "infrastructure": 0},
    "conditions": [
        {
            "type": "Running",
            "status": "True",
            "reason": "AllPodsRunning",
            "message": "all 3 pods run",
            "lastTransitionTime": written_time(at(10)),
        }
    ],
    "replicaStatuses": {"worker": {"desired": 2, "active": 2, "ready": 2, "succeeded": 0, "failed": 0}},
    "progress": {
        "step": 226,
        "totalSteps": 469,
        "epoch": 1,
        "percent": 48.19,
        "examplesPerSecond": 4689.3,
        "loss": 0.39161,
        "accuracy": 0.8685,
        "etaSeconds": 13.4,
    },
    "artifacts": {
        "checkpoint": {"step": 200, "time": written_time(at(55)), "uri": "s3://b/j/checkpoints/200"}
    },
    "failure": {
        "attempt": 1,
        "role": "worker",
        "index": 1,
        "rank": 1,
        "pod": "mnist-worker-1",
        "node": "node-b",
        "exitCode": 3,
        "class": "ApplicationError",
        "message": "ended with exit code 3",
        "lastLogLines": ["Traceback", "ValueError: [no] markup"],
    },
}


def job(status: dict[str, Any] | None = None, **spec: Any) -> DistributedTrainingJob:
    made = manifest(**spec)
    made["metadata"]["creationTimestamp"] = written_time(START)
    return DistributedTrainingJob.from_cluster(made | ({"status": status} if status else {}))


def views(*pods: dict[str, Any]) -> list[Pod]:
    return [pod_of(pod) for pod in pods]


def rendered(view: RenderableType, width: int = 110) -> list[str]:
    console = VisibleConsole(file=io.StringIO(), width=width)
    with console.capture() as captured:
        console.print(view, soft_wrap=False)
    return [line.rstrip() for line in captured.get().splitlines()]


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("10m", 600), ("1h", 3600), ("1h30m", 5400), ("1.5m", 90)]
)
def test_durations_are_read_with_units_or_as_seconds(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "10 m", "-5", "5x", "m"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(Exception, match="is not a duration"):
        seconds_of(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0s"), (119, "119s"), (120, "2m"), (750, "12m30s"), (11100, "3h5m"), (2 * 86400 + 3600, "2d1h")],
)
def test_ages_are_told_in_two_units(seconds: float, text: str) -> None:
    assert brief(seconds) == text


def test_a_list_has_a_line_for_each_job() -> None:
    steps = {**RUNNING, "progress": {"step": 7, "stepsPerSecond": 9.917}}
    jobs = [job(RUNNING), job(steps), job()]
    assert rendered(job_table(jobs, at(90))) == [
        "NAME    STATE     PROGRESS           EX/S   GPUS   AGE",
        "mnist   Running      48.2%          4,689      -   90s",
        "mnist   Running          -   9.917 step/s      -   90s",
        "mnist   -                -              -      -   90s",
    ]


def test_a_list_names_the_trouble_of_a_job_and_why() -> None:
    stored = {**RUNNING, "state": "Stalled", "message": "the step has stayed at 7", "gpus": 64}
    condition = {**RUNNING["conditions"][0], "type": "CheckpointDelayed", "message": "a.pt is missing"}
    # Of an earlier operator, which stores no state.
    unstored = {**RUNNING, "conditions": [*RUNNING["conditions"], condition]}
    jobs = [job(stored), job(unstored), job({**unstored, "phase": "Succeeded"})]
    heading, *lines = (
        re.split(r" {2,}", line) for line in rendered(job_table(jobs, at(90), wide=True), width=200)
    )
    assert heading == [*COLUMNS, *WIDE_COLUMNS]
    assert {len(line) for line in lines} == {len(heading)}
    assert dict(zip(heading, lines[0], strict=True)) == {
        **{
            "NAME": "mnist",
            "STATE": "Stalled",
            "PROGRESS": "48.2%",
            "EX/S": "4,689",
            "GPUS": "64",
            "AGE": "90s",
        },
        **{"STRATEGY": "Horovod", "WORKERS": "2", "ATTEMPT": "2"},
        **{"APP-RESTARTS": "1", "IN-PLACE": "-", "INFRA-RESTARTS": "0", "REASON": "the step has stayed at 7"},
    }
    assert [(line[1], line[4], line[-1]) for line in lines] == [
        ("Stalled", "64", "the step has stayed at 7"),
        ("CheckpointDelayed", "-", "a.pt is missing"),
        ("Succeeded", "-", "a.pt is missing"),
    ]


def test_the_status_says_from_which_checkpoints_the_job_goes_on() -> None:
    prefix = "s3://bucket/jobs/ml/mnist-0a1b/checkpoints"
    status = {
        **RUNNING,
        "artifacts": {"uri": "s3://bucket/jobs/ml/mnist-0a1b"},
        "resumedFrom": {"uri": f"{prefix}/20/", "attempt": 3},
        "skippedCheckpoints": [f"{prefix}/30-3", f"{prefix}/25-3"],
        "podCheckpoint": {"claim": 3, "number": 35},
    }
    shown = rendered(status_view(job(status), views(*healthy(2)), [], at(60)), width=200)
    facts = {line[:12].strip(): line[12:] for line in shown}
    assert facts["Went back"] == f"to {prefix}/20, for attempt 3"
    assert facts["Skipped"] == f"{prefix}/30-3, {prefix}/25-3: no attempt that restored them has made a step"
    assert facts["In the pod"] == "checkpoint 35 is complete in the pod; the bucket has none yet"


def test_a_list_of_all_namespaces_names_them() -> None:
    heading, line = rendered(job_table([job(RUNNING)], at(90), namespaces=True))
    assert heading.startswith("NAMESPACE   NAME")
    assert line.startswith("ml          mnist")


def test_the_status_of_a_running_job_tells_everything() -> None:
    events = [
        JobEvent(
            at(n), "Warning" if n == 5 else "Normal", f"Reason{n}", "what happened", 1 + (n == 5), "Pod/x"
        )
        for n in range(7)
    ]
    shown = rendered(status_view(job(RUNNING), views(*healthy(2)), events, at(60)))
    text = "\n".join(shown)
    assert shown[0] == "mnist in ml: Running, Horovod, attempt 2, 60s old"
    assert "48.2%  step 226/469  epoch 1  ETA 13s" in text
    assert "4,689 examples/s   loss 0.3916   accuracy 0.8685" in text
    assert any(line.split() == ["worker-1", "1", "node-of-mnist-worker-1", "Running", "2"] for line in shown)
    assert any(line.split()[:3] == ["launcher-0", "-", "node-of-mnist-launcher-0"] for line in shown)
    assert any(line.split()[:4] == ["Running", "True", "50s", "AllPodsRunning"] for line in shown)
    assert "Restarts    1 application" in shown
    assert "Checkpoint  step 200, 5s ago: s3://b/j/checkpoints/200" in shown
    assert (
        "Failure of attempt 1: ApplicationError: rank 1 in mnist-worker-1 on node-b: ended with exit code 3"
        in shown
    )
    assert "  ValueError: [no] markup" in shown
    assert [line.split()[2 if "x2" not in line else 3] for line in shown if "what happened" in line] == [
        f"Reason{n}" for n in range(2, 7)
    ]


def test_ranks_are_counted_by_slots() -> None:
    shown = rendered(status_view(job(RUNNING, horovod={"slotsPerWorker": 4}), views(*healthy(2)), [], at(60)))
    assert any(line.split()[:2] == ["worker-1", "4-7"] for line in shown)


def test_of_many_replicas_only_the_first_are_shown() -> None:
    pods = views(*(running(f"mnist-worker-{n}") for n in range(20)))
    shown = rendered(status_view(job(RUNNING), pods, [], at(60), most_replicas=6))
    assert "and 14 more" in shown
    assert not any("worker-6 " in line for line in shown)


def test_without_pods_the_roles_are_counted() -> None:
    shown = rendered(status_view(job(RUNNING), [], [], at(60), note="no process carries out this run"))
    assert shown[1] == "no process carries out this run"
    assert ["worker", "2", "2", "2", "0", "0"] in [line.split() for line in shown]


def test_a_success_has_no_eta_and_no_failure() -> None:
    done = {"type": "Succeeded", "status": "True", "reason": "JobSucceeded", "message": ""}
    done["lastTransitionTime"] = written_time(at(50))
    status = RUNNING | {"phase": "Succeeded", "conditions": [done], "completionTime": written_time(at(50))}
    text = "\n".join(rendered(status_view(job(status), [], [], at(60))))
    assert "ETA" not in text
    assert "ApplicationError" not in text
    assert "Took        50s" in text


def test_a_job_that_no_operator_has_seen_is_shown_too() -> None:
    assert rendered(status_view(job(), [], [], at(1)))[0] == "mnist in ml: -, Horovod, 1s old"


def test_a_job_of_another_controller_is_shown_as_such() -> None:
    theirs = job(runPolicy={"managedBy": "kueue.x-k8s.io/multikueue"})
    assert "Managed by  kueue.x-k8s.io/multikueue: dtj's operator does not touch the job" in rendered(
        status_view(theirs, [], [], at(5))
    )
    ours = job(runPolicy={"managedBy": "dtj.dev/operator"})
    assert "Managed by" not in "\n".join(rendered(status_view(ours, [], [], at(5))))


def test_a_failed_export_has_a_line_beside_the_model() -> None:
    failed = RUNNING | {"progress": RUNNING["progress"] | {"exportError": "no room"}}
    assert "Export      failed: no room" in [
        line.strip() for line in rendered(status_view(job(failed), [], [], at(5)))
    ]
    assert "Export " not in "\n".join(rendered(status_view(job(RUNNING), [], [], at(5))))


def test_one_line_tells_how_far_a_job_is() -> None:
    told = "mnist, Running, attempt 2, step 226/469, 4,689 examples/s, loss 0.3916, accuracy 0.8685"
    assert one_line(job(RUNNING)) == told
    again = RUNNING | {"progress": RUNNING["progress"] | {"appliedTwice": 4}}
    assert one_line(job(again)) == f"{told}, 4 batches applied twice"


def test_a_status_fits_a_narrow_terminal() -> None:
    assert all(
        len(line) <= 60 for line in rendered(status_view(job(RUNNING), views(*healthy()), [], at(9)), 60)
    )


@pytest.mark.parametrize(
    ("made", "state"),
    [
        (pod(WORKER_0), "Waits for a node"),
        (scheduled(WORKER_0), "Starting"),
        (running(WORKER_0), "Running"),
        (running(WORKER_0, ready=False), "Running, not ready"),
        (deleting(running(WORKER_0)), "Ending"),
        (ended(WORKER_0), "Succeeded"),
        (ended(WORKER_0, 3), "Failed (exit code 3)"),
        (ended(WORKER_0, 137, reason="OOMKilled"), "OOMKilled (signal 9)"),
        (evicted(WORKER_0), "Evicted"),
        (waiting(WORKER_0, "ImagePullBackOff"), "ImagePullBackOff"),
        (unschedulable(WORKER_0, "0/3 nodes"), "Unschedulable"),
    ],
)
def test_the_state_of_a_replica_is_told_in_a_few_words(made: dict[str, Any], state: str) -> None:
    assert replica_state(pod_of(made)).words == state


def test_a_pod_says_why_it_waits_or_ended() -> None:
    running_pod, waits, killed, gone = views(
        running(WORKER_0),
        unschedulable(WORKER_0, "0/3 nodes"),
        ended(WORKER_0, 137, reason="OOMKilled"),
        evicted(WORKER_0),
    )
    assert [pod.running for pod in (running_pod, waits, killed, gone)] == [True, False, False, False]
    assert (running_pod.node, running_pod.reason, running_pod.exit_code) == (f"node-of-{WORKER_0}", "", None)
    assert (waits.node, waits.reason, waits.message) == (None, "Unschedulable", "0/3 nodes")
    assert (killed.exit_code, killed.signal, killed.reason) == (137, 9, "OOMKilled")
    assert (gone.disrupted, gone.reason) == (True, "Evicted")


def test_events_without_a_time_are_shown_too() -> None:
    event = JobEvent(None, "Normal", "Scheduled", "assigned [red]x[/]", 1, "Pod/x")
    assert rendered(event_table([event], START + timedelta(1)))[1].split() == [
        "-", "Normal", "Scheduled", "Pod/x", "assigned", "[red]x[/]",
    ]  # fmt: skip


def test_top_shows_use_beside_limits() -> None:
    resources = {"requests": {"cpu": "500m"}, "limits": {"memory": "2Gi"}}
    asked = job(RUNNING, replicaSpecs={"worker": {"replicas": 2, "gpus": 1, "resources": resources}})
    shown = rendered(top_view(asked, views(*healthy()), {WORKER_0: PodUsage("1234567890n", "524288Ki")}))
    assert shown[0] == "mnist: Running, 4,689 examples/s over all ranks"
    assert ["worker-0", "0", f"node-of-{WORKER_0}", "Running", "1.23", "0.50", "512Mi", "2048Mi", "1"] in [
        line.split() for line in shown
    ]
    assert any(line.split()[4:] == ["-", "0.50", "-", "2048Mi", "1"] for line in shown)


def test_workers_that_run_several_ranks_each_show_them_and_how_they_ended() -> None:
    asked = job(RUNNING, strategy="TorchDistributed", torch={"procsPerWorker": 4})
    pods = views(ended(WORKER_0, 0), running(WORKER_1))

    for shown in (rendered(status_view(asked, pods, [], at(60))), rendered(top_view(asked, pods, {}))):
        lines = [line.split()[:4] for line in shown]
        assert ["worker-0", "0-3", f"node-of-{WORKER_0}", "Succeeded"] in lines
        assert ["worker-1", "4-7", f"node-of-{WORKER_1}", "Running"] in lines


def test_top_says_what_is_missing_where_nothing_measures() -> None:
    shown = rendered(top_view(job(RUNNING), views(*healthy()), None), 200)
    assert shown[-1] == NO_METRICS


def test_lines_of_a_log_begin_with_who_printed_them() -> None:
    painter = LinePainter(timestamps=True)
    assert painter.painted(LogLine("rank 0", "a [b]")).plain == "[rank 0] a [b]"
    assert painter.painted(LogLine("rank 1", "x", at(1))).plain == "2026-11-21T12:00:01.000000Z [rank 1] x"
    assert LinePainter(prefix=False).painted(LogLine("rank 1", "x")).plain == "x"


def test_each_source_keeps_its_colour_and_a_programs_own_colours_stay() -> None:
    painter = LinePainter()
    styles = [str(painter.painted(LogLine(source, "x")).spans[0].style) for source in ("a", "b", "a")]
    assert styles[0] == styles[2] != styles[1]
    shown = painter.painted(LogLine("a", "\x1b[31mred\x1b[0m"))
    assert shown.plain == "[a] red"
    assert "color(1)" in [str(span.style) for span in shown.spans]


def test_what_a_progress_bar_overwrote_is_not_shown() -> None:
    assert LinePainter().painted(LogLine("a", "10%\r50%\r100%\r")).plain == "[a] 100%"


def test_a_programs_own_colours_stay_in_a_log_and_no_other_command_to_the_terminal() -> None:
    said = "\x1b[31mred\x1b[0m\x1b[2K \x1b]0;title\x07\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\ \x9b2J\x1bc"
    line = LinePainter(prefix=False).painted(LogLine("rank 0", said))

    assert line.plain == "red link \ufffd2J\x1bc"
    assert [(span.start, span.end, str(span.style)) for span in line.spans] == [(0, 3, "color(1)")]
