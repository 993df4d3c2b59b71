"""A checkpoint from which a program fails before its first step is skipped by the next attempt."""

from __future__ import annotations

from typing import Any

import pytest

from dtj.api.job import Manifest
from dtj.api.status import ArtifactsStatus, ProgressStatus
from dtj.plan.job import PlanCache, plan_job
from tests.unit.support.pods import LAUNCHER, WORKER_0, WORKER_1, Life, condition, ended, healthy, running

PREFIX = "s3://bucket/jobs/ml/mnist-0a1b/checkpoints"
FAILS = {"class": "ApplicationError", "message": "KeyError: 'w'", "rank": 1, "exitCode": 1}


def artifacts(attempt: int, restored: str | None, newest: str | None = None, **more: int) -> ArtifactsStatus:
    content: Manifest = {"checkpoint": {"uri": f"{PREFIX}/{newest or restored}"}}
    if restored:
        content["restored"] = {"attempt": attempt, "uri": f"{PREFIX}/{restored}", **more}
    return ArtifactsStatus.model_validate(content)


def lost(
    life: Life,
    attempt: int,
    restored: str | None,
    newest: str | None = None,
    *,
    said: Manifest = FAILS,
    lasted: float = 0,
    first_step: int | None = None,
    progress: ProgressStatus | None = None,
) -> Manifest:
    """The status after the failure of an attempt that restored a checkpoint."""
    more = {} if first_step is None else {"firstStep": first_step}
    seen = artifacts(attempt, restored, newest, **more)
    begin = 5000.0 * attempt
    life.see(*healthy(attempt), artifacts=seen, progress=progress, seconds=begin)
    pods = [running(WORKER_0, attempt=attempt), running(WORKER_1, attempt=attempt)]
    failed = ended(LAUNCHER, 1, said, attempt=attempt, seconds=begin + lasted)
    return life.see(*pods, failed, artifacts=seen, progress=progress, seconds=begin + lasted + 10)


def skips(life: Life) -> list[str]:
    """What the pods of the next attempt are told."""
    plan = PlanCache(plan_job)(life.job)
    pod = plan.pod(plan.shape.stages[0][0])
    env = {each["name"]: each.get("value", "") for each in pod["spec"]["containers"][0]["env"]}
    return env.get("DTJ_RESUME_SKIP", "").split()


@pytest.fixture
def life() -> Life:
    """A job in its second attempt; the first one saved checkpoint 30."""
    made = Life(artifacts={"uri": "s3://bucket/jobs"}, runPolicy={"backoffLimit": 10})
    lost(made, 1, None, "30")
    assert skips(made) == []
    return made


def test_the_next_attempts_restore_others_and_then_the_newest_again(life: Life) -> None:
    status = lost(life, 2, "30")
    assert skips(life) == ["30"]
    assert status["skippedCheckpoints"] == [f"{PREFIX}/30"]
    assert (
        f"the attempt had restored {PREFIX}/30 and failed before its first step: the next attempt "
        "restores another checkpoint, if there is one" in condition(status, "Restarting")["message"]
    )
    lost(life, 3, "20", "30")
    assert skips(life) == ["30", "20"]
    status = lost(life, 4, "10", "30")
    assert skips(life) == []
    assert (
        f"the attempt had restored {PREFIX}/10 and failed before its first step, like the attempts from "
        f"{PREFIX}/30 and {PREFIX}/20: the next attempt restores the newest checkpoint again"
        in condition(status, "Restarting")["message"]
    )
    status = lost(life, 5, "30")
    assert "made no step" not in condition(status, "Restarting")["message"]


@pytest.mark.parametrize(
    "how",
    [
        {"first_step": 31},
        {"newest": "40"},
        {"said": {**FAILS, "class": "ArtifactsUnavailable"}},
        {"said": {**FAILS, "class": "OOMKilled"}, "lasted": 1800},
        {"restored": None},
    ],
    ids=["it trained", "it saved", "not the program", "out of memory half an hour later", "nothing restored"],
)
def test_another_failure_does_not_speak_against_the_checkpoint(life: Life, how: dict[str, Any]) -> None:
    status = lost(life, 2, **{"restored": "30", **how})
    assert skips(life) == []
    assert "skippedCheckpoints" not in status


def test_a_program_that_reports_steps_may_take_its_time_to_the_first(life: Life) -> None:
    lost(life, 2, "30", lasted=1800, progress=ProgressStatus(step=30))
    assert skips(life) == ["30"]


def test_a_report_of_the_attempt_before_does_not_count(life: Life) -> None:
    life.see(*healthy(2), artifacts=artifacts(2, "30"), progress=ProgressStatus(step=30))
    lost(life, 2, "30", first_step=31)
    status = lost(life, 3, None, "30")
    assert status["artifacts"]["restored"]["attempt"] == 2
    assert skips(life) == []


def test_infrastructure_never_counts(life: Life) -> None:
    life.see(*healthy(2), artifacts=artifacts(2, "30"), seconds=10000)
    status = life.see(*healthy(2)[1:], artifacts=artifacts(2, "30"), seconds=10010)
    assert status["restarts"]["infrastructure"] == 1
    assert skips(life) == []


def test_a_newer_checkpoint_ends_it(life: Life) -> None:
    lost(life, 2, "30")
    life.see(*healthy(3), artifacts=artifacts(3, "20", "30"))
    assert skips(life) == ["30"]
    status = life.see(*healthy(3), artifacts=artifacts(3, "20", "21-3"))
    assert skips(life) == []
    assert "skippedCheckpoints" not in status


def test_a_resume_ends_it(life: Life) -> None:
    lost(life, 2, "30")
    for suspend in (True, False):
        assert skips(life) == ["30"]
        life.spec["runPolicy"] = {"suspend": suspend}
        for _ in range(3):  # Life takes a changed spec into account in the second pass.
            life.see()
    assert skips(life) == []


def test_where_a_worker_starts_again_alone_the_chief_has_restored_nothing() -> None:
    roles = {"chief": {"replicas": 1}, "worker": {"replicas": 1}, "ps": {"replicas": 1}}
    life = Life(strategy="ParameterServer", artifacts={"uri": "s3://bucket/jobs"}, replicaSpecs=roles)
    names = [replica.name for stage in life.plan.shape.stages for replica in stage]
    life.see(*(running(name) for name in names), artifacts=artifacts(1, "30"))
    worker = "mnist-worker-0"
    pods = [running(name) for name in names if name != worker]
    status = life.see(*pods, ended(worker, 1, FAILS, seconds=5), artifacts=artifacts(1, "30"), seconds=20)
    assert status["restarts"]["application"] == 1
    assert "skippedCheckpoints" not in status
