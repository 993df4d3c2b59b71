"""Kills of each process of a parameter server job: only the necessary pods restart, from the newest checkpoint."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.cluster.chaos.kill import is_training
from tests.cluster.chaos.kill import kill as kill_process
from tests.cluster.jobs import PS_EXAMPLE, Job, Manifest, Namespace, stub, until
from tests.cluster.parameter_server import MODES, by_name, example, wait_for_checkpoint

pytestmark = pytest.mark.cluster
# Who is killed, and who starts again then. The worker comes last: after its restart, the operator puts a connection
# that the chief loses down to the worker, unless the kubelet reports the end of ps-0 within 5 s.
KILLS = {"ps-0": {"ps-0", "chief-0"}, "chief-0": {"ps-0", "chief-0"}, "worker-1": {"worker-1"}}
STEPS = 6000
# The built-in program by its kinds of updates: the restore of real weights without a cluster is in
# tests/trainer/test_programs_ps.py.
PROGRAMS = ["stub", *(pytest.param(updates, marks=pytest.mark.chaos) for updates in MODES)]


@pytest.mark.parametrize("program", PROGRAMS)
def test_whatever_is_killed_comes_back_and_nothing_is_lost(namespace: Namespace, program: str) -> None:
    name = f"hit-{program[:5].lower()}"
    if program == "stub":
        made = stub(name, f"--steps={STEPS}", "--checkpoint-steps=20", file=PS_EXAMPLE)
    else:
        made = example(name, program, "--epochs=3", "--checkpoint-seconds=3")
    job = namespace.apply(made)
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
    if program == "stub":
        job.tell("chief-0", "hurry")
    status = job.wait(420)

    assert status["restarts"] == {"application": 3, "infrastructure": 0}
    if program == "stub":
        assert job.artifacts().stub_steps_are_complete(STEPS)
    else:
        assert status["progress"]["accuracy"] >= 0.85
    rows = [row for row in job.artifacts().metrics() if row["kind"] == "train"]
    first = {
        attempt: min(r["step"] for r in rows if r["attempt"] == attempt)
        for attempt in {r["attempt"] for r in rows}
    }
    # The chief ran as attempts 1, 2 and 3: it began each time where a checkpoint was.
    assert sorted(first) == [1, 2, 3]
    assert first[1] < first[2] <= first[3]
    told = [event["message"] for event in job.events() if event["reason"] == "JobRestarting"]
    for victim in KILLS:
        assert any(f"{job.name}-{victim}: " in m and "SIGKILL" in m and "again" in m for m in told), told


def kill(job: Job, replica: str) -> None:
    kill_process(uids(job)[replica], is_training)


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
