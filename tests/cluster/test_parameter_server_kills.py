"""Whichever process of a parameter server job is killed: only who has to starts again, from the newest checkpoint."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.cluster.jobs import Job, Manifest, Namespace, until
from tests.cluster.test_parameter_server import MODES_IN_TURN, by_name, example, wait_for_checkpoint

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
# Who is killed, and who starts again then.
KILLS = {"worker-1": {"worker-1"}, "ps-0": {"ps-0", "chief-0"}, "chief-0": {"ps-0", "chief-0"}}
# Ends, from within a container, the process that trains there: not dtj-launch, which has its words as arguments too.
KILL = """
import os, signal
for pid in filter(str.isdecimal, os.listdir("/proc")):
    words = open(f"/proc/{pid}/cmdline").read().split("\\0")
    if words[0].endswith("python") and "dtj_trainer.programs.ps_image_classification" in words[1:3]:
        os.kill(int(pid), signal.SIGKILL)
        print("killed", pid)
"""


@pytest.mark.parametrize("updates", MODES_IN_TURN)
def test_whatever_is_killed_comes_back_and_nothing_is_lost(namespace: Namespace, updates: str) -> None:
    job = namespace.apply(
        example(f"hit-{updates[:5].lower()}", updates, "--epochs=3", "--checkpoint-seconds=3")
    )
    attempts: dict[str, int] = {}
    running = None
    for number, (victim, again) in enumerate(KILLS.items(), 1):
        wait_for_checkpoint(job, running)
        before = uids(job)
        kill(job, victim)
        status = attempt(job, number + 1)
        attempts |= dict.fromkeys(again, number + 1)
        assert status["replicaAttempts"] == attempts
        assert status["failure"]["pod"] == f"{job.name}-{victim}"
        assert (status["failure"]["class"], status["failure"]["signal"]) == ("Signal", 9)
        back(job, before, again)
        running = datetime.now(UTC)
    status = job.wait(420)

    assert status["restarts"] == {"application": 3, "infrastructure": 0}
    assert status["progress"]["accuracy"] >= 0.85
    rows = [row for row in job.artifacts().metrics() if row["kind"] == "train"]
    first = {
        attempt: min(r["step"] for r in rows if r["attempt"] == attempt)
        for attempt in {r["attempt"] for r in rows}
    }
    # The chief ran as attempts 1, 3 and 4: it began each time where a checkpoint was.
    assert sorted(first) == [1, 3, 4]
    assert first[1] < first[3] <= first[4]
    told = [event["message"] for event in job.events() if event["reason"] == "JobRestarting"]
    for victim in KILLS:
        assert any(f"{job.name}-{victim}: " in m and "SIGKILL" in m and "again" in m for m in told), told


def kill(job: Job, replica: str) -> None:
    said = job.namespace.kubectl("exec", f"{job.name}-{replica}", "--", "python", "-c", KILL)
    assert said.startswith("killed"), said


def uids(job: Job) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in by_name(job).items()}


def attempt(job: Job, number: int) -> Manifest:
    """The status once that attempt has begun."""

    def begun() -> Manifest | None:
        status = job.status
        return status if status["attempt"] == number else None

    return until(f"attempt {number}", begun, 60)


def back(job: Job, before: dict[str, str], again: set[str]) -> None:
    """Wait until all replicas run, these and only these other ones than before."""

    def all_run() -> bool:
        pods = by_name(job).values()
        return len(pods) == len(before) and all(pod["status"]["phase"] == "Running" for pod in pods)

    until(f"{', '.join(again)} to be back", all_run, 120)
    now = uids(job)
    assert {name for name in before if now[name] != before[name]} == again
