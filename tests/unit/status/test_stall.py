"""Stalled trainings: detection, consequences, and cases that are no stall.

* when a training counts as stalled, and when it does not
* operators that take over
* stallPolicy Report and Restart
* stacks of hung programs
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from dtj.api.job import Manifest
from dtj.api.status import ArtifactsStatus, ProgressStatus
from dtj.status.observed import ProgressReport, read_report
from dtj.status.progress import STACKS_SECONDS
from tests.unit.support.pods import ALL, LAUNCHER, Life, condition, ended, healthy, running

PS_SPEC: dict[str, Any] = {
    "strategy": "ParameterServer",
    "replicaSpecs": {"worker": {"replicas": 2}, "ps": {}, "evaluator": {}},
}
PS_PODS = ["mnist-chief-0", "mnist-evaluator-0", "mnist-ps-0", "mnist-worker-0", "mnist-worker-1"]
TORCH_SPEC: dict[str, Any] = {"strategy": "TorchDistributed"}
WORKERS = ["mnist-worker-0", "mnist-worker-1"]
STRATEGIES = pytest.mark.parametrize(
    ("spec", "asked"),
    [({}, WORKERS), (PS_SPEC, PS_PODS), (TORCH_SPEC, WORKERS)],
    ids=["Horovod", "PS", "TorchDistributed"],
)
ARTIFACTS = {"uri": "s3://bucket/jobs"}


def policy(**fields: Any) -> dict[str, Any]:
    return {"runPolicy": {"stallTimeoutSeconds": 100, **fields}}


def at_step(step: int | None) -> dict[str, Any]:
    """What is observed of a pod that answers."""
    return {"progress": None if step is None else ProgressStatus(step=step), "answers": True}


def stalled(status: Manifest) -> tuple[str, str]:
    found = condition(status, "Stalled")
    return found.get("status", ""), found.get("reason", "")


def standing(**fields: Any) -> Life:
    """A job that stands still at step 7: so seen at 100 s."""
    life = Life(**policy(**fields), artifacts=ARTIFACTS)
    life.see(*healthy(), **at_step(7))
    life.see(*healthy(), seconds=100, **at_step(7))
    return life


def test_without_the_field_a_job_may_stand_as_long_as_it_likes() -> None:
    life = Life()
    life.see(*healthy(), **at_step(7))

    status = life.see(*healthy(), seconds=1e6, **at_step(7))

    assert stalled(status) == ("", "")
    assert "stepTime" not in status


def test_a_step_that_does_not_move_for_so_long_is_a_stall_however_often_it_is_reported() -> None:
    life = Life(**policy(), artifacts=ARTIFACTS)
    life.see(*healthy(), **at_step(6))
    life.see(*healthy(), seconds=50, **at_step(7))
    status = life.see(
        *healthy(),
        seconds=149,
        progress=ProgressStatus(step=7, loss=0.5, updated_time="2026-11-21T12:02:29Z"),
        answers=True,
    )
    assert stalled(status) == ("", "")
    assert life.decision is not None
    assert life.decision.look_again == 1
    assert life.decision.stalled_since is None

    status = life.see(*healthy(), seconds=150, **at_step(7))

    assert stalled(status) == ("True", "NoProgress")
    assert status["phase"] == "Running"
    assert condition(status, "Running")["status"] == "True"
    message = condition(status, "Stalled")["message"]
    assert "the step has stayed at 7 for 100 s" in message
    assert "s3://bucket/jobs/ml/mnist-5b6a1f0e/logs/attempt-1/stacks-*.txt" in message


def test_a_job_that_never_reports_a_step_stalls_so_long_after_all_ran() -> None:
    life = Life(**policy())
    life.see(*healthy()[:2], seconds=0)
    life.see(*healthy(), seconds=90, **at_step(None))
    assert stalled(life.see(*healthy(), seconds=189, **at_step(None))) == ("", "")

    status = life.see(*healthy(), seconds=190, **at_step(None))

    assert stalled(status) == ("True", "NoProgress")
    message = condition(status, "Stalled")["message"]
    assert "no step was reported for 100 s" in message
    assert "/dtj/logs/stacks-*.txt of each replica" in message
    assert "a program reports its steps by dtj_trainer.progress.report" in message


def test_a_deadline_of_a_stalled_job_names_the_stacks() -> None:
    life = Life(**policy(activeDeadlineSeconds=300))
    life.see(*healthy(), seconds=0, **at_step(7))
    assert stalled(life.see(*healthy(), seconds=150, **at_step(7))) == ("True", "NoProgress")

    failure = life.see(*healthy(), seconds=301, **at_step(7))["failure"]

    assert failure["class"] == "DeadlineExceeded"
    assert "all pods run, but the step has stayed at 7 for 100 s" in failure["message"]
    assert "/stacks-*.txt" in failure["message"]


def test_report_says_so_once_and_writes_nothing_more() -> None:
    life = standing()
    assert life.decision is not None
    assert life.decision.stalled_since == "2026-11-21T12:01:40Z"
    first = life.decision.status

    life.see(*healthy(), seconds=5000, **at_step(7))

    assert life.decision.status == first
    assert life.decision.look_again is None
    assert life.decision.stalled_since is None, (
        "stacks of long ago are not asked for by an operator that is new"
    )


def test_it_is_over_when_the_step_moves() -> None:
    life = standing()

    status = life.see(*healthy(), seconds=400, **at_step(8))

    assert stalled(status) == ("False", "ProgressResumed")
    assert stalled(life.see(*healthy(), seconds=499, **at_step(8))) == ("False", "ProgressResumed")
    assert stalled(life.see(*healthy(), seconds=500, **at_step(8))) == ("True", "NoProgress")


@pytest.mark.parametrize("missing", [LAUNCHER, "mnist-worker-1"])
def test_what_does_not_run_does_not_stall(missing: str) -> None:
    life = standing()
    others = [running(name) for name in ALL if name != missing]

    status = life.see(
        *others, ended(missing, 1, {"class": "ConnectionLost"}, seconds=110), seconds=111, **at_step(7)
    )

    assert condition(status, "Running")["reason"] == "RankLost"
    assert stalled(status) == ("False", "NotRunning")


def test_the_time_begins_anew_when_all_run_again() -> None:
    life = Life(**policy())
    life.see(*healthy(), **at_step(7))
    life.see(running(ALL[0]), running(ALL[1]), seconds=50)
    assert life.job.status.attempt == 2
    life.see(*healthy(attempt=2), seconds=90, **at_step(None))

    assert stalled(life.see(*healthy(attempt=2), seconds=189, **at_step(None))) == ("", "")
    assert stalled(life.see(*healthy(attempt=2), seconds=190, **at_step(None))) == ("True", "NoProgress")


def test_a_lower_step_of_a_new_attempt_is_progress() -> None:
    life = Life(**policy())
    life.see(*healthy(), **at_step(500))
    life.see(running(ALL[0]), running(ALL[1]), seconds=50)
    life.see(*healthy(attempt=2), seconds=90, **at_step(None))
    life.see(*healthy(attempt=2), seconds=180, **at_step(450))

    assert stalled(life.see(*healthy(attempt=2), seconds=279, **at_step(450))) == ("", "")


def test_an_operator_that_takes_over_waits_for_an_answer() -> None:
    """The step moved while nobody asked: what the one before had stored is old."""
    life = Life(**policy(stallPolicy="Restart"))
    life.see(*healthy(), **at_step(7))

    assert stalled(life.see(*healthy(), seconds=3600)) == ("", "")
    status = life.see(*healthy(), seconds=3605, **at_step(900))

    assert stalled(status) == ("", "")
    assert life.job.status.step_time == "2026-11-21T13:00:05Z"


def test_an_operator_that_takes_over_knows_of_the_stall_and_since_when() -> None:
    life = standing(stallPolicy="Restart")
    told = life.job.status.conditions

    life.see(*healthy(), seconds=3600)
    assert life.job.status.conditions == told
    assert life.job.status.attempt == 1

    assert life.see(*healthy(), seconds=3605, **at_step(7))["attempt"] == 2


def test_a_pod_that_does_not_answer_is_no_stall_but_is_told() -> None:
    life = Life(**policy(stallPolicy="Restart"))
    life.see(*healthy(), answers=False)
    assert stalled(life.see(*healthy(), seconds=99, answers=False)) == ("", "")

    status = life.see(*healthy(), seconds=5000, answers=False)

    assert stalled(status) == ("Unknown", "NoAnswer")
    assert "mnist-worker-0 does not answer on port 8474" in condition(status, "Stalled")["message"]
    assert status["attempt"] == 1
    assert stalled(life.see(*healthy(), seconds=5001, **at_step(7))) == ("False", "ProgressResumed")


def test_a_stall_is_not_forgotten_when_the_pod_answers_no_more() -> None:
    life = standing()

    assert stalled(life.see(*healthy(), seconds=200, answers=False)) == ("True", "NoProgress")


def test_the_upload_after_the_programs_end_is_no_stall() -> None:
    life = Life(**policy())
    life.see(*healthy(), **at_step(7))

    assert stalled(life.see(*healthy(), seconds=500, program_ended=True, **at_step(7))) == ("", "")


@STRATEGIES
def test_an_export_of_minutes_after_the_last_step_is_no_stall_and_loses_no_pod(
    spec: dict[str, Any], asked: list[str]
) -> None:
    """Rank 0, or the chief, exports the model; pods that only had to train may end before it."""
    life = Life(**policy(stallPolicy="Restart"), artifacts=ARTIFACTS, **spec)
    pods = {name: running(name) for name in ({*asked, LAUNCHER} if not spec else asked)}
    life.see(*pods.values(), **at_step(7))
    if spec is TORCH_SPEC:
        pods[WORKERS[1]] = ended(WORKERS[1], seconds=20)
    said = json.dumps({"progress": {"step": 7, "exporting": True}, "phases": {}})
    report, dropped = read_report(said)
    assert report is not None
    assert (report.program_ended, dropped) == (True, 0)

    for seconds in (30, 200, 800):
        status = life.see(
            *pods.values(), seconds=seconds, progress=report.progress, answers=True, program_ended=True
        )
        assert (status["phase"], status["attempt"], stalled(status)) == ("Running", 1, ("", ""))
        assert "failure" not in status


def test_restart_follows_once_the_stacks_had_their_time() -> None:
    life = standing(stallPolicy="Restart", backoffLimit=1)
    assert life.decision is not None
    assert life.decision.look_again == STACKS_SECONDS
    assert life.job.status.phase == "Running"
    assert life.see(*healthy(), seconds=129, **at_step(7))["attempt"] == 1

    status = life.see(*healthy(), seconds=130, **at_step(7))

    assert (status["attempt"], status["phase"]) == (2, "Restarting")
    assert status["restarts"] == {"application": 1, "infrastructure": 0}
    assert status["failure"]["class"] == "Stalled"
    assert "the step has stayed at 7 for 130 s though all pods ran" in status["failure"]["message"]
    assert "nodeFailures" not in status
    assert condition(status, "Restarting")["reason"] == "ApplicationFailure"
    assert stalled(status) == ("False", "NotRunning")


def test_a_step_in_the_last_moment_saves_the_attempt() -> None:
    life = standing(stallPolicy="Restart")

    status = life.see(*healthy(), seconds=130, **at_step(8))

    assert (status["attempt"], status["phase"]) == (1, "Running")
    assert stalled(status) == ("False", "ProgressResumed")


def test_out_of_restarts_the_job_has_failed() -> None:
    life = standing(stallPolicy="Restart", backoffLimit=0)

    status = life.see(*healthy(), seconds=130, **at_step(7))

    assert status["phase"] == "Failed"
    assert condition(status, "Failed")["reason"] == "BackoffLimitExceeded"
    assert "the step has stayed at 7" in condition(status, "Failed")["message"]
    assert status["failure"]["class"] == "Stalled"
    assert stalled(status) == ("False", "NotRunning")


def test_a_stall_ends_with_the_training_and_when_nobody_asks_any_more() -> None:
    over = standing()
    done = ended(LAUNCHER, 0, {"exitCode": 0}, seconds=110)
    assert stalled(over.see(*healthy()[:2], done, seconds=110, **at_step(7))) == ("False", "NotRunning")

    unasked = standing()
    unasked.spec["runPolicy"] = {}
    unasked.job = replace(unasked.job, spec=Life().job.spec)
    status = unasked.see(*healthy(), seconds=110, **at_step(7))
    assert stalled(status) == ("False", "NotWatched")
    assert "stepTime" not in status


@pytest.mark.parametrize(
    ("names", "told"),
    [(WORKERS[:1], "mnist-worker-0"), (WORKERS[1:], "mnist-worker-1")],
    ids=["rank 0", "another"],
)
def test_workers_that_wait_for_one_that_ended_early_stand_still(names: list[str], told: str) -> None:
    life = Life(**policy(stallPolicy="Restart"), **TORCH_SPEC)
    life.see(*map(running, WORKERS), **at_step(7))
    early = [ended(name, 0, seconds=5) for name in names]
    waits = [running(name) for name in WORKERS if name not in names]
    # Nobody answers for rank 0 any more when its pod has ended.
    observed: dict[str, Any] = {} if names == WORKERS[:1] else at_step(7)

    status = life.see(*early, *waits, seconds=100, **observed)
    assert stalled(status) == ("True", "NoProgress")
    status = life.see(*early, *waits, seconds=130, **observed)

    assert status["failure"]["class"] == "Stalled"
    assert status["failure"]["message"].startswith(
        f"{told} ended with exit code 0, and the step has stayed at 7 for 130 s"
    )


def report(step: int) -> ProgressReport:
    return ProgressReport(progress=ProgressStatus(step=step), artifacts=ArtifactsStatus())


# --- steps that dtj reads where the program reports none -------------------------------------------------


def read(step: int | None, source: str, **more: Any) -> dict[str, Any]:
    return {"progress": ProgressStatus(step=step, source=source, **more), "answers": True}


@pytest.mark.parametrize(
    ("source", "restarts"), [("Output", False), ("TrustedOutput", True), ("TensorBoard", True)]
)
def test_a_stall_of_steps_from_the_output_restarts_a_job_only_where_they_are_trusted(
    source: str, restarts: bool
) -> None:
    life = Life(**policy(stallPolicy="Restart"))
    life.see(*healthy(), **read(7, source))
    status = life.see(*healthy(), seconds=100, **read(7, source))
    assert stalled(status) == ("True", "NoProgress")
    assert ("DTJ_READ_OUTPUT is trusted" in condition(status, "Stalled")["message"]) != restarts
    status = life.see(*healthy(), seconds=100 + STACKS_SECONDS, **read(7, source))
    assert (status["attempt"] == 2) == restarts


def test_figures_without_steps_are_progress_as_they_change() -> None:
    life = Life(**policy())

    def at(seconds: float, minute: int) -> str:
        time = f"2026-11-21T12:0{minute}:00Z"
        return stalled(
            life.see(*healthy(), seconds=seconds, **read(None, "Output", epoch=1, updated_time=time))
        )[0]

    assert [at(0, 0), at(50, 1), at(149, 1), at(150, 1), at(160, 2)] == ["", "", "", "True", "False"]
