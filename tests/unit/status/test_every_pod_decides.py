"""Jobs whose every worker decides (TorchDistributed): the job succeeds when all of them have.

* workers that succeed while others run
* the first own failure, whichever is seen first; followers, drained pods, silent nodes
* a worker that leaves early with exit code 0
* a port that is taken
* images without dtj_trainer
* pods that did not come
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from dtj.api.job import Manifest
from dtj.api.status import ArtifactsStatus
from dtj.status.times import written_time
from tests.unit.support.pods import Life, at, condition, ended, evicted, running, scheduled, waiting
from tests.unit.support.world import World

NAMES = [f"mnist-worker-{index}" for index in range(3)]
W0, W1, W2 = NAMES
SPEC: dict[str, Any] = {"strategy": "TorchDistributed", "replicaSpecs": {"worker": {"replicas": 3}}}
ARTIFACTS = {"uri": "s3://bucket/jobs"}
CUT_OFF = {"class": "ConnectionLost", "message": "Connection closed by peer", "exitCode": 1}
NO_PEERS = {"class": "PeersUnreachable", "message": "worker 1 did not come", "exitCode": 69}
TOLD = {"class": "Signal", "message": "the program was killed by SIGTERM", "exitCode": 143, "signal": 15}
OWN = {"class": "ApplicationError", "message": "ValueError: no label", "rank": 1, "exitCode": 1}
TAKEN = {"class": "PortInUse", "message": "MASTER_PORT is in use", "exitCode": 1}
ONE_RESTART = {"application": 1, "infrastructure": 0}
ONE_LOSS = {"application": 0, "infrastructure": 1}


def ran(**spec: Any) -> Life:
    """A job of three workers, all of which run."""
    life = Life(**SPEC | spec)
    assert life.see(*map(running, NAMES))["phase"] == "Running"
    return life


def seen(life: Life, *pods: Manifest, seconds: float, **observed: Any) -> Manifest:
    """See these pods, and the other workers running."""
    names = {pod["metadata"]["name"] for pod in pods}
    others = [running(name) for name in NAMES if name not in names]
    return life.see(*pods, *others, seconds=seconds, **observed)


# --- workers that succeed -----------------------------------------------------------------------------


def test_a_worker_that_succeeded_counts_as_running_while_others_run() -> None:
    life = ran()

    status = seen(life, ended(W1, seconds=10), seconds=10)

    assert status["phase"] == "Running"
    assert condition(status, "Running")["status"] == "True"
    assert condition(status, "Running")["message"] == "2 of 3 pods run, the others ended with exit code 0"
    assert status["replicaStatuses"]["worker"] == {
        "desired": 3, "active": 2, "ready": 2, "succeeded": 1, "failed": 0
    }  # fmt: skip
    assert "failure" not in status
    assert life.decision is not None
    assert life.decision.pods.end == frozenset()


def test_workers_that_succeed_before_the_last_one_runs_have_run() -> None:
    life = Life(**SPEC)
    life.see(running(W0), running(W1), scheduled(W2))

    status = life.see(ended(W0, seconds=5), running(W1), scheduled(W2), seconds=6)
    assert (status["phase"], status["restarts"]) == ("Starting", {"application": 0, "infrastructure": 0})
    status = life.see(ended(W0, seconds=5), ended(W1, seconds=6), running(W2), seconds=7)

    assert status["phase"] == "Running"


@pytest.mark.parametrize(
    ("names", "message"),
    [(NAMES, "all 3 workers ended with exit code 0"), ([W0], "mnist-worker-0 ended with exit code 0")],
)
def test_the_job_succeeds_when_all_have(names: list[str], message: str) -> None:
    life = Life(strategy="TorchDistributed", replicaSpecs={"worker": {"replicas": len(names)}})
    life.see(*map(running, names))
    status = life.see(*(ended(name, seconds=9) for name in names), seconds=10)

    assert status["phase"] == "Succeeded"
    assert condition(status, "Succeeded")["message"] == message
    assert condition(status, "Running")["status"] == "False"


def test_what_rank_0_says_at_its_end_is_the_jobs_progress_and_its_artifacts() -> None:
    life = ran(artifacts=ARTIFACTS)
    said = {"exitCode": 0, "progress": {"step": 50}, "artifacts": {"checkpoint": {"step": 50}}}
    other = {"exitCode": 0, "progress": {"step": 7}, "artifacts": {}}
    of_0 = ended(W0, 0, said, seconds=10)

    status = seen(life, of_0, ended(W1, 0, other, seconds=9), seconds=10)
    assert (status["progress"]["step"], status["artifacts"]["checkpoint"]["step"]) == (50, 50)
    status = life.see(of_0, ended(W1, 0, other), ended(W2, 0, other), seconds=12)

    assert (status["phase"], status["progress"]["step"]) == ("Succeeded", 50)
    assert "nothingKept" not in status


def test_that_nothing_is_kept_is_told_by_rank_0() -> None:
    life = ran(artifacts=ARTIFACTS)
    nothing = {"exitCode": 0, "artifacts": {"uri": "s3://bucket/jobs/ml/x"}}

    status = life.see(*(ended(name, 0, nothing, seconds=9) for name in NAMES), seconds=10)

    assert condition(status, "Succeeded")["message"] == (
        "all 3 workers ended with exit code 0; the program left neither a checkpoint nor a model below /dtj"
    )


# --- whose failure it was -----------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["own", "follower"])
@pytest.mark.parametrize("follower", [CUT_OFF, NO_PEERS, TOLD], ids=lambda said: said["class"])
def test_an_own_failure_ends_the_attempt_at_once_whichever_is_seen_first(
    follower: Manifest, first: str
) -> None:
    life = ran()
    # The clock of a node may be behind.
    own, led = ended(W1, 1, OWN, seconds=11), ended(W0, 1, follower, seconds=10)

    if first == "follower":
        status = seen(life, led, seconds=11)
        assert (status["phase"], condition(status, "Running")["reason"]) == ("Running", "RankLost")
        status = seen(life, led, own, seconds=12)
    else:
        status = seen(life, own, seconds=12)

    assert (status["phase"], status["attempt"], status["restarts"]) == ("Restarting", 2, ONE_RESTART)
    assert status["failure"]["pod"] == W1
    assert (status["failure"]["class"], status["failure"]["rank"]) == ("ApplicationError", 1)


def test_time_decides_only_within_a_class() -> None:
    life = ran()
    later = {**OWN, "message": "KeyError: 3"}

    status = seen(
        life, ended(W0, 1, CUT_OFF, seconds=8), ended(W1, 1, later, seconds=10), ended(W2, 1, OWN, seconds=9),
        seconds=12,
    )  # fmt: skip

    assert status["failure"]["message"] == "ValueError: no label"


def test_followers_alone_wait_for_a_node_that_falls_silent() -> None:
    life = ran()
    led = ended(W0, 1, CUT_OFF, seconds=10)
    assert seen(life, led, ended(W1, 1, CUT_OFF, seconds=10), seconds=40)["attempt"] == 1
    silent = running(W2, ready=False)
    silent["status"]["conditions"].append({"type": "ContainersReady", "status": "True"})

    status = seen(life, led, ended(W1, 1, CUT_OFF, seconds=10), silent, seconds=50)

    assert (status["attempt"], status["restarts"]) == (2, ONE_LOSS)
    assert status["failure"]["pod"] == W2


def test_followers_whose_cause_never_shows_are_counted_after_a_minute() -> None:
    life = ran()

    status = seen(life, ended(W0, 1, CUT_OFF, seconds=10), seconds=71)

    assert (status["attempt"], status["restarts"]) == (2, ONE_RESTART)
    assert status["failure"]["class"] == "ConnectionLost"


@pytest.mark.parametrize("follower", [TOLD, CUT_OFF | {"exitCode": 143}, ""], ids=["said", "led", "unsaid"])
@pytest.mark.parametrize("drained", ["deleted", "gone", "evicted"])
def test_workers_that_leave_with_a_drained_pod_are_no_failure(drained: str, follower: Any) -> None:
    life = ran(runPolicy={"backoffLimit": 0})
    led = [ended(W0, 143, follower, seconds=100), ended(W2, 143, follower, seconds=100)]
    assert seen(life, *led, seconds=101)["attempt"] == 1, "nobody was told to end yet"
    told = running(W1)
    told["metadata"] |= {"deletionTimestamp": written_time(at(220)), "deletionGracePeriodSeconds": 120}
    pods = {"deleted": [told], "gone": [], "evicted": [evicted(W1)]}[drained]

    status = life.see(*led, *pods, seconds=103)

    assert (status["phase"], status["restarts"]) == ("Restarting", ONE_LOSS)
    assert status["failure"]["pod"] == W1


def test_code_0_of_a_worker_that_was_told_to_end_is_no_success() -> None:
    life = ran()
    told = ended(W1, 0, seconds=103)
    told["metadata"] |= {"deletionTimestamp": written_time(at(220)), "deletionGracePeriodSeconds": 120}

    status = life.see(ended(W0, seconds=103), told, ended(W2, seconds=103), seconds=104)

    assert (status["phase"], status["restarts"]) == ("Restarting", ONE_LOSS)


# --- a worker that leaves early -----------------------------------------------------------------------


@pytest.mark.parametrize("others", [1, 2])
def test_of_workers_that_lost_one_that_ended_early_the_early_one_is_named(others: int) -> None:
    life = ran()
    early = ended(W2, 0, {"exitCode": 0}, seconds=10)
    seen(life, early, seconds=10)
    led = [ended(name, 1, CUT_OFF, seconds=11) for name in NAMES[:others]]
    assert seen(life, early, *led, seconds=12)["attempt"] == 1, "another's own failure may show"

    status = seen(life, early, *led, seconds=17)

    assert (status["attempt"], status["restarts"]) == (2, ONE_RESTART)
    assert (status["failure"]["pod"], status["failure"]["exitCode"]) == (W2, 0)
    assert status["failure"]["message"] == (
        "worker 2 ended with exit code 0 while the other pods still needed it; then mnist-worker-0: "
        "Connection closed by peer"
    )


def test_the_first_of_those_that_ended_early_is_named() -> None:
    life = ran()

    status = seen(
        life,
        ended(W0, 0, seconds=12),
        ended(W2, 0, seconds=10),
        ended(W1, 1, CUT_OFF, seconds=11),
        seconds=20,
    )

    assert status["failure"]["pod"] == W2


def test_an_own_failure_goes_before_an_early_end() -> None:
    life = ran()

    status = seen(
        life,
        ended(W0, 0, seconds=9),
        ended(W2, 1, CUT_OFF, seconds=10),
        ended(W1, 1, OWN, seconds=11),
        seconds=12,
    )

    assert status["failure"]["pod"] == W1


def test_a_silent_node_goes_before_an_early_end() -> None:
    life = ran()
    silent = running(W1, ready=False)
    silent["status"]["conditions"].append({"type": "ContainersReady", "status": "True"})

    status = seen(life, ended(W0, 0, seconds=9), ended(W2, 1, CUT_OFF, seconds=10), silent, seconds=12)

    assert (status["failure"]["pod"], status["restarts"]) == (W1, ONE_LOSS)


# --- a port that is taken -----------------------------------------------------------------------------


async def test_a_taken_port_is_no_use_of_the_backoff_limit_and_the_next_attempt_has_another() -> None:
    world = World(**SPEC, runPolicy={"backoffLimit": 0})

    def program(pod: Manifest, ran: int) -> tuple[int, str] | None:
        labels = pod["metadata"]["labels"]
        if labels["dtj.dev/attempt"] != "1":
            return (0, "") if ran > 2 else None
        return (1, json.dumps(TAKEN)) if labels["dtj.dev/index"] == "0" else (1, json.dumps(CUT_OFF))

    world.kubelet.program = program
    await world.until(lambda: bool(world.pod_names()))
    first = _environment(world)["MASTER_PORT"]
    await world.until(lambda: world.phase == "Running")

    assert world.status["restarts"] == ONE_LOSS
    assert world.status["failure"]["class"] == "PortInUse"
    assert _environment(world)["MASTER_PORT"] != first
    await world.until(lambda: world.phase == "Succeeded")


def _environment(world: World) -> dict[str, str]:
    container = world.cluster.pod(W2)["spec"]["containers"][0]
    return {variable["name"]: variable.get("value", "") for variable in container["env"]}


def test_a_program_that_finds_each_port_taken_is_at_fault_itself() -> None:
    life = ran(runPolicy={"backoffLimit": 0})
    status = seen(life, ended(W0, 1, TAKEN, seconds=10), seconds=10)
    assert (status["phase"], status["restarts"]) == ("Restarting", ONE_LOSS)
    life.see(*(running(name, attempt=2) for name in NAMES), seconds=20)

    status = life.see(
        ended(W0, 1, TAKEN, seconds=30, attempt=2),
        *(running(name, attempt=2) for name in NAMES[1:]),
        seconds=30,
    )

    assert (status["phase"], condition(status, "Failed")["reason"]) == ("Failed", "BackoffLimitExceeded")


# --- images without dtj_trainer -------------------------------------------------------------------------

TRACE = "Traceback (most recent call last):\n"
GLOO = (
    "[rank0]:     work.wait()\n[rank0]: RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] "
    "Connection closed by peer [127.0.0.1]:43672. This is typically caused by a remote worker crashing."
)
STORE = TRACE + (
    "[rank1]: torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed. "
    "Did the remote server shutdown or crash?"
)
ABSENT = (
    TRACE
    + "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined."
)
PORT = TRACE + (
    "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
    "port: 29501, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
)
# gloo's threads end the process by SIGABRT after an exception.
RAISED = TRACE + "[rank1]: ValueError: own failure\nterminate called without an active exception"


@pytest.mark.parametrize("said", [GLOO, STORE, ABSENT], ids=["gloo", "store", "absent"])
@pytest.mark.parametrize(
    ("code", "lines", "reason", "kind"),
    [
        (134, RAISED, "", "ApplicationError"),
        (1, "KeyError: 'label'", "", "ApplicationError"),
        (137, "", "OOMKilled", "OOMKilled"),
        (139, "", "", "Signal"),
        (127, "", "", "CommandNotFound"),
    ],
)
def test_the_last_lines_tell_a_follower_from_the_rank_that_failed(
    code: int, lines: str, reason: str, kind: str, said: str
) -> None:
    life = ran()
    led = [ended(name, 1, said, seconds=10) for name in (W0, W2)]
    seen(life, *led, seconds=11)

    status = seen(life, *led, ended(W1, code, lines, reason=reason, seconds=11), seconds=16)

    assert (status["attempt"], status["failure"]["class"], status["failure"]["pod"]) == (2, kind, W1)


def test_a_follower_says_so() -> None:
    life = ran()

    status = seen(life, ended(W0, 1, GLOO, seconds=10), seconds=71)

    assert status["failure"]["class"] == "ConnectionLost"
    assert status["failure"]["message"].startswith(
        "worker 0 lost another pod: RuntimeError: [/pytorch/third_party"
    )
    assert status["failure"]["lastLogLines"][0] == "[rank0]:     work.wait()"


def test_without_a_message_the_first_end_is_the_cause_once_all_can_be_known() -> None:
    life = ran()
    late, early = ended(W0, 1, "boom", seconds=11), ended(W1, 1, "bang", seconds=10)
    assert seen(life, late, seconds=11)["attempt"] == 1

    status = seen(life, late, early, seconds=16)

    assert (status["failure"]["pod"], status["restarts"]) == (W1, ONE_RESTART)


def test_the_line_of_a_taken_port_is_enough() -> None:
    life = ran(runPolicy={"backoffLimit": 0})

    status = seen(life, ended(W0, 1, PORT, seconds=10), seconds=10)

    assert (status["phase"], status["restarts"]) == ("Restarting", ONE_LOSS)
    assert status["failure"]["class"] == "PortInUse"


def test_a_worker_without_others_has_nobody_to_follow() -> None:
    life = Life(strategy="TorchDistributed", replicaSpecs={"worker": {"replicas": 1}})
    life.see(running(W0))

    status = life.see(ended(W0, 1, GLOO, seconds=10), seconds=16)

    assert status["failure"]["class"] == "ApplicationError"


# --- pods that did not come -----------------------------------------------------------------------------


@pytest.mark.parametrize("absent", [scheduled(W2), waiting(W2, "ImagePullBackOff", "no such image")])
def test_who_waits_in_vain_for_a_pod_that_can_not_start_is_not_at_fault(absent: Manifest) -> None:
    life = Life(**SPEC, runPolicy={"backoffLimit": 0})
    life.see(running(W0), running(W1), absent)

    status = life.see(ended(W0, 69, NO_PEERS, seconds=300), running(W1), absent, seconds=301)

    assert (status["phase"], status["restarts"]) == ("Restarting", ONE_LOSS)
    assert (status["failure"]["class"], status["failure"]["pod"]) == ("PeersUnreachable", W2)
    assert "nodeFailures" not in status


def test_what_is_known_of_the_bucket_stays_when_rank_0s_pod_ends() -> None:
    life = ran(artifacts=ARTIFACTS)
    seen(life, seconds=5, artifacts=ArtifactsStatus(model="s3://bucket/jobs/ml/x/model"))

    status = seen(life, ended(W0, 0, seconds=10), seconds=10)

    assert status["artifacts"]["model"] == "s3://bucket/jobs/ml/x/model"
