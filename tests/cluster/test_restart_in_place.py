"""Ranks that are killed start again in their pods, in jobs of scripts that know nothing of dtj.

The rules of a restart in place are tested with agents on loopback: tests/trainer/test_restart_in_place.py.
"""

from __future__ import annotations

import pytest

from tests.cluster.jobs import Namespace
from tests.cluster.restarted import (
    SAVES_EVERY,
    STRATEGIES,
    begun,
    bring_script,
    job_of,
    kill_rank,
    wait_for_step,
)

pytestmark = pytest.mark.cluster


def test_killed_ranks_train_again_in_their_pods(namespace: Namespace) -> None:
    bring_script(namespace)
    jobs = [namespace.apply(job_of(strategy)) for strategy in STRATEGIES]
    born = {}
    for job in jobs:
        wait_for_step(job)
        born[job.name] = job.uids()
        kill_rank(job)
    for job in jobs:
        status = job.wait(240)
        first, again = begun(job)
        assert begun(job, rank=1) == [first, again]
        assert first == 0 < again
        assert again % SAVES_EVERY == 0, "the step of a checkpoint"
        assert status["restarts"] == {"application": 1, "inPlace": 1, "infrastructure": 0}
        assert status["attempt"] == 1
        assert job.uids() == born[job.name]
        (event,) = job.wait_for_event("RestartedInPlace")
        assert "rank 1" in event["message"]
        assert "SIGKILL" in event["message"]
