"""TensorFlow jobs whose workers train in step, without ps and chief (MultiWorkerMirroredStrategy).

* whose failure it was: the workers that only lost their connection follow
* the same without dtj-launch's message
* workers of a job with ps that lost their connection
"""

from __future__ import annotations

from typing import Any

import pytest

from dtj.api.job import Manifest
from dtj.status.times import written_time
from tests.unit.support.pods import Life, at, condition, ended, evicted, running

NAMES = [f"mnist-worker-{index}" for index in range(3)]
W0, W1, W2 = NAMES
SPEC: dict[str, Any] = {
    "strategy": "ParameterServer",
    "replicaSpecs": {"chief": {"replicas": 0}, "worker": {"replicas": 3}},
}
LOG = """tensorflow.python.framework.errors_impl.UnavailableError: Graph execution error:
Detected at node CollectiveReduceV2 defined at (most recent call last):
Collective ops is aborted by: Socket closed
Additional GRPC error information from remote target /job:worker/replica:0/task:0 while calling RecvBuf:
"""
CUT_OFF = {"class": "ConnectionLost", "message": "the connection to another pod was lost", "exitCode": 1}
FOLLOWERS = pytest.mark.parametrize("follower", [CUT_OFF, LOG], ids=["said", "log"])
KILLED = {"class": "Signal", "message": "the program was killed by SIGKILL", "exitCode": 137, "signal": 9}
ONE_RESTART, ONE_LOSS = {"application": 1, "infrastructure": 0}, {"application": 0, "infrastructure": 1}


def ran(**spec: Any) -> Life:
    life = Life(**SPEC | spec)
    assert life.see(*map(running, NAMES))["phase"] == "Running"
    return life


def seen(life: Life, *pods: Manifest, seconds: float) -> Manifest:
    """See these pods, and the other workers running."""
    names = {pod["metadata"]["name"] for pod in pods}
    return life.see(*pods, *(running(name) for name in NAMES if name not in names), seconds=seconds)


@FOLLOWERS
@pytest.mark.parametrize("cause", [KILLED, ""], ids=["said", "unsaid"])
@pytest.mark.parametrize("first", ["cause", "follower"])
def test_the_killed_worker_is_named_whichever_is_seen_first(follower: Any, cause: Any, first: str) -> None:
    life = ran()
    killed, led = ended(W0, 137, cause, seconds=10), ended(W1, 1, follower, seconds=11)
    assert seen(life, killed if first == "cause" else led, seconds=11)["attempt"] == 1

    status = seen(life, killed, led, seconds=16)

    assert (status["attempt"], status["restarts"], status["failure"]["pod"]) == (2, ONE_RESTART, W0)
    assert status["failure"]["class"] == "Signal"


@FOLLOWERS
def test_workers_that_a_lost_worker_ended_cost_no_failure(follower: Any) -> None:
    life = ran(runPolicy={"backoffLimit": 0})
    led = [ended(name, 1, follower, seconds=10) for name in (W1, W2)]
    status = seen(life, *led, seconds=40)
    assert (status["phase"], condition(status, "Running")["reason"]) == ("Running", "RankLost")

    status = life.see(evicted(W0), *led, seconds=50)

    assert (status["phase"], status["restarts"]) == ("Restarting", ONE_LOSS)
    assert status["failure"]["pod"] == W0


@FOLLOWERS
def test_a_silent_node_is_named(follower: Any) -> None:
    life = ran()
    silent = running(W0, ready=False)
    silent["status"]["conditions"].append({"type": "ContainersReady", "status": "True"})

    status = seen(life, silent, ended(W1, 1, follower, seconds=10), seconds=50)

    assert (status["restarts"], status["failure"]["pod"]) == (ONE_LOSS, W0)


@FOLLOWERS
def test_a_worker_that_left_early_is_named(follower: Any) -> None:
    life = ran()

    status = seen(life, ended(W1, seconds=9), ended(W2, 1, follower, seconds=10), seconds=16)

    assert (status["restarts"], status["failure"]["pod"]) == (ONE_RESTART, W1)
    assert "ended with exit code 0 while the other pods still needed it" in status["failure"]["message"]


@FOLLOWERS
def test_followers_whose_cause_never_shows_are_counted_after_a_minute(follower: Any) -> None:
    life = ran()
    assert seen(life, ended(W1, 1, follower, seconds=10), seconds=69)["attempt"] == 1

    status = seen(life, ended(W1, 1, follower, seconds=10), seconds=71)

    assert (status["restarts"], status["failure"]["class"]) == (ONE_RESTART, "ConnectionLost")


def test_an_own_failure_is_judged_at_once() -> None:
    life = ran()
    own = {"class": "ApplicationError", "message": "ValueError: no label", "exitCode": 1}

    status = seen(life, ended(W1, 1, own, seconds=12), ended(W0, 1, CUT_OFF, seconds=11), seconds=12)

    assert (status["restarts"], status["failure"]["pod"]) == (ONE_RESTART, W1)


def test_a_bare_exit_code_waits_for_a_signal_of_another() -> None:
    life = ran()
    bare = ended(W1, 1, "bye", seconds=10)
    assert seen(life, bare, seconds=11)["attempt"] == 1

    status = seen(life, bare, evicted(W2), seconds=12)

    assert (status["restarts"], status["failure"]["pod"]) == (ONE_LOSS, W2)


# --- jobs with ps -----------------------------------------------------------------------------------

PS, CHIEF = "mnist-ps-0", "mnist-chief-0"
WITH_PS: dict[str, Any] = {
    "strategy": "ParameterServer",
    "replicaSpecs": {"ps": {"replicas": 1}, "worker": {"replicas": 2}},
}


def with_ps(**spec: Any) -> Life:
    life = Life(**WITH_PS | spec)
    assert life.see(*map(running, (CHIEF, PS, W0, W1)))["phase"] == "Running"
    return life


def test_a_worker_that_lost_its_parameter_server_is_not_counted_beside_it() -> None:
    life = with_ps()
    lost = ended(PS, 137, reason="OOMKilled", seconds=10)
    led = ended(W0, 1, CUT_OFF, seconds=11)

    status = life.see(lost, running(CHIEF), running(W0), running(W1), seconds=10)
    assert (status["restarts"]["application"], status["replicaAttempts"]) == (1, {"chief-0": 2, "ps-0": 2})
    again = [running(CHIEF, attempt=2), running(PS, attempt=2)]
    assert life.see(*again, led, running(W1), seconds=12)["attempt"] == 2
    status = life.see(*again, led, running(W1), seconds=17)

    assert status["restarts"]["application"] == 1
    assert status["replicaAttempts"] == {"chief-0": 2, "ps-0": 2, "worker-0": 3}
    assert "that restart is counted" in condition(status, "Restarting")["message"]


def test_workers_do_not_excuse_each_other_without_end() -> None:
    life = with_ps()
    life.see(ended(PS, 137, reason="OOMKilled", seconds=10), *map(running, (CHIEF, W0, W1)), seconds=10)
    seconds, counted = 20.0, []
    for _ in range(6):
        attempts = {name: life.shape.attempts[name] for name in (CHIEF, PS, W0, W1)}
        least = min((W0, W1, CHIEF), key=lambda name: attempts[name])
        pods = [running(name, attempt=attempts[name]) for name in attempts if name != least]
        led = ended(least, 1, CUT_OFF, seconds=seconds, attempt=attempts[least])
        status = life.see(led, *pods, seconds=seconds + 61)
        counted.append(status["restarts"]["application"])
        seconds += 62
        if status["phase"] == "Failed":
            break

    assert counted[-1] > 2, counted


# --- clocks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("behind", [0, 6, 3600])
@pytest.mark.parametrize("code", [143, 137])
@pytest.mark.parametrize("said", ["", {"class": "Signal", "message": "x", "exitCode": 143}], ids=["", "said"])
def test_a_deleted_pod_that_a_signal_ended_is_never_the_programs_failure(
    behind: int, code: int, said: Any
) -> None:
    life = ran(runPolicy={"backoffLimit": 0})
    told = ended(W1, code, said, seconds=100 - behind)
    told["metadata"] |= {"deletionTimestamp": written_time(at(220)), "deletionGracePeriodSeconds": 120}

    status = seen(life, told, seconds=101)

    assert (status["restarts"], status["failure"]["class"]) == (ONE_LOSS, "PodLost")
    assert "nodeFailures" not in status


@pytest.mark.parametrize(
    "said", ["", {"class": "OOMKilled", "message": "x", "exitCode": 137}], ids=["", "said"]
)
def test_a_program_without_memory_fails_also_in_a_pod_that_is_deleted_then(said: Any) -> None:
    life = ran()
    told = ended(W1, 137, said, seconds=90, reason="" if said else "OOMKilled")
    told["metadata"] |= {"deletionTimestamp": written_time(at(220)), "deletionGracePeriodSeconds": 120}

    status = seen(life, told, seconds=101)

    assert (status["restarts"], status["failure"]["class"]) == (ONE_RESTART, "OOMKilled")
