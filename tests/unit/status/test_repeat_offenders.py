"""Nodes with repeated losses are avoided, and the backoff grows only while nothing trains.

* which losses count against a node
* node affinity after repeated losses
* backoff after an attempt that trained
"""

from __future__ import annotations

from typing import Any

import pytest

from dtj.api.job import Manifest, read_status
from dtj.plan.job import plan_job
from dtj.status.events import happenings
from dtj.status.restart_policy import GOOD_RUN_SECONDS, MOST_NODES, counted, describe_avoided
from tests.unit.support.jobs import job
from tests.unit.support.kubelet import Ending
from tests.unit.support.pods import (
    LAUNCHER,
    WORKER_0,
    WORKER_1,
    Life,
    condition,
    deleting,
    ended,
    evicted,
    healthy,
    running,
)
from tests.unit.support.world import World

BAD = "node-of-mnist-worker-1"
CRASHED = {"class": "ApplicationError", "message": "CUDA error", "rank": 1, "host": WORKER_1, "exitCode": 1}
CUT_OFF = {"class": "ConnectionLost", "message": "connection lost", "exitCode": 255}
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def crash(attempt: int, seconds: float = 0) -> list[Manifest]:
    """A rank in worker 1 fails, as the launcher tells."""
    crashed = ended(LAUNCHER, 1, CRASHED, attempt=attempt, seconds=seconds)
    return [running(WORKER_0, attempt=attempt), running(WORKER_1, attempt=attempt), crashed]


def silent(name: str) -> Manifest:
    pod = running(name, ready=False)
    pod["status"]["conditions"].append({"type": "ContainersReady", "status": "True"})
    return pod


def preferences(life_or_job: Any) -> list[Any]:
    """Of every pod of the plan."""
    plan = life_or_job.plan if isinstance(life_or_job, Life) else plan_job(life_or_job)
    return [pod["spec"].get("affinity", {}).get("nodeAffinity", {}).get(PREFERRED, []) for pod in plan.pods]


def elsewhere(*nodes: str) -> Manifest:
    expression = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [*nodes]}
    return {"weight": 100, "preference": {"matchExpressions": [expression]}}


# Reasons of DisruptionTarget, which Kubernetes sets before it deletes the pod.
MADE_ROOM = ("EvictionByEvictionAPI", "DeletionByTaintManager", "PreemptionByScheduler")


def disrupted(reason: str) -> Manifest:
    made = running(WORKER_1)
    made["status"]["conditions"].append({"type": "DisruptionTarget", "status": "True", "reason": reason})
    return made


# --- which losses count -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pods", "nodes"),
    [
        (crash(1), {BAD: 1}),
        ([running(WORKER_0), evicted(WORKER_1), running(LAUNCHER)], {BAD: 1}),
        ([running(WORKER_0), ended(WORKER_1, 137, reason="OOMKilled"), running(LAUNCHER)], {BAD: 1}),
        ([running(WORKER_0), deleting(silent(WORKER_1)), running(LAUNCHER)], {BAD: 1}),
        (
            [silent(WORKER_0), silent(WORKER_1), ended(LAUNCHER, 255, CUT_OFF)],
            {BAD: 1, "node-of-mnist-worker-0": 1},
        ),
        ([running(WORKER_0), deleting(running(WORKER_1)), running(LAUNCHER)], None),
        ([running(WORKER_0), running(LAUNCHER)], None),
        ([running(WORKER_0), ended(WORKER_1, 255, reason="Unknown"), running(LAUNCHER)], {BAD: 1}),
        *([[running(WORKER_0), disrupted(reason), running(LAUNCHER)], None] for reason in MADE_ROOM),
        ([running(WORKER_0), disrupted("DeletionByPodGC"), running(LAUNCHER)], {BAD: 1}),
    ],
    ids=[
        *(
            "crash",
            "eviction",
            "out of memory",
            "silent and given up",
            "two silent",
            "drain",
            "gone",
            "reboot",
        ),
        *MADE_ROOM,
        "DeletionByPodGC",
    ],
)
def test_a_loss_is_counted_against_the_node_that_may_be_at_fault(
    pods: list[Manifest], nodes: dict[str, int] | None
) -> None:
    life = Life()
    life.see(*healthy())

    assert life.see(*pods, seconds=100).get("nodeFailures") == nodes


def test_a_preemption_by_the_kubelet_speaks_against_no_node() -> None:
    life = Life()
    life.see(*healthy())
    preempted = evicted(WORKER_1)
    preempted["status"]["reason"] = "Preempting"

    assert "nodeFailures" not in life.see(running(WORKER_0), preempted, running(LAUNCHER))


@pytest.mark.bound(
    "operator",
    "A cluster whose nodes fail",
    "Nodes in `status.nodeFailures`",
    "32; the worst stay",
)
def test_a_status_remembers_a_bounded_number_of_nodes_and_the_worst_of_them() -> None:
    known: dict[str, int] | None = {"worst": 9}
    for number in range(100):
        known = counted(known, [f"node-{number:03}"])

    assert known is not None
    assert len(known) == MOST_NODES
    assert known["worst"] == 9
    assert known["node-099"] == 1
    assert counted(None, []) is None


# --- what follows ---------------------------------------------------------------------------------------


def test_after_two_losses_the_next_attempt_avoids_the_node_and_says_so() -> None:
    life = Life(runPolicy={"backoffLimit": 9})
    life.see(*healthy())

    status = life.see(*crash(1))
    assert preferences(life) == [[], [], []]
    assert "avoids" not in condition(status, "Restarting")["message"]
    before = life.job.status
    status = life.see(*crash(2))

    assert status["nodeFailures"] == {BAD: 2}
    assert preferences(life) == [[elsewhere(BAD)]] * 3
    message = condition(status, "Restarting")["message"]
    assert message.endswith(f"CUDA error; new pods avoid {BAD}, where pods were lost before")
    assert [h.message for h in happenings(before, life.job.status)] == [message]


@pytest.mark.parametrize(("limit", "avoided"), [(0, False), (1, True), (2, True), (3, False)])
def test_how_many_losses_it_takes_is_the_jobs_choice(limit: int, avoided: bool) -> None:
    made = job(runPolicy={"avoidNodeAfterFailures": limit}, status={"attempt": 3, "nodeFailures": {BAD: 2}})

    assert preferences(made) == [[elsewhere(BAD)] if avoided else []] * 3


def test_the_affinity_of_a_template_stays() -> None:
    gpu_pool = {"weight": 7, "preference": {"matchExpressions": [{"key": "pool", "operator": "Exists"}]}}
    required = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]}
    own = {
        "podAffinity": {PREFERRED: []},
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required, PREFERRED: [gpu_pool]},
    }
    roles = {"worker": {"replicas": 1, "template": {"spec": {"affinity": own}}}}

    worker = plan_job(job(replicaSpecs=roles, status={"attempt": 3, "nodeFailures": {"b": 2, "a": 5}})).pods[
        0
    ]

    assert worker["spec"]["affinity"] == {
        "podAffinity": {PREFERRED: []},
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": required,
            PREFERRED: [gpu_pool, elsewhere("a", "b")],
        },
    }
    assert own["nodeAffinity"][PREFERRED] == [gpu_pool]


@pytest.mark.parametrize("affinity", [None, {"nodeAffinity": None}, {"nodeAffinity": {PREFERRED: None}}])
def test_an_affinity_that_says_nothing_is_in_no_ones_way(affinity: Any) -> None:
    roles = {"worker": {"replicas": 1, "template": {"spec": {"affinity": affinity}}}}

    made = job(replicaSpecs=roles, status={"attempt": 3, "nodeFailures": {"a": 2}})

    assert preferences(made) == [[elsewhere("a")]] * 2


def test_a_message_names_a_few_nodes() -> None:
    assert describe_avoided([]) == ""
    assert describe_avoided(["a", "b"]) == "; new pods avoid a, b, where pods were lost before"
    assert (
        describe_avoided(list("abcdef"))
        == "; new pods avoid a, b, c, d and 2 more, where pods were lost before"
    )


async def test_an_operator_that_is_started_again_still_avoids_it() -> None:
    world = World(runPolicy={"backoffLimit": 9})

    def program(pod: Manifest, ran: int) -> Ending | None:
        labels = pod["metadata"]["labels"]
        bad = labels["dtj.dev/role"] == "worker" and labels["dtj.dev/index"] == "1" and ran > 1
        return (1, "no such device") if bad and int(labels["dtj.dev/attempt"]) <= 2 else None

    world.kubelet.program = program
    await world.until(lambda: world.status.get("attempt") == 3)
    world.start_operator()
    await world.until(lambda: world.phase == "Running")

    assert world.status["nodeFailures"] == {"node-1": 2}
    for pod in world.cluster.of_kind("Pod"):
        assert pod["spec"]["affinity"]["nodeAffinity"][PREFERRED] == [elsewhere("node-1")]


def test_what_is_no_count_is_left_out_of_a_status() -> None:
    assert read_status({"attempt": 2, "nodeFailures": ["node-1"]}).node_failures is None


# --- pauses -----------------------------------------------------------------------------------------------


def paused(life: Life, seconds: float) -> float:
    """The pause that a pass without pods asks for."""
    life.see(seconds=seconds)
    assert life.decision is not None
    return life.decision.look_again or 0.0


def test_pauses_start_anew_after_an_attempt_that_trained_for_long() -> None:
    life = Life(runPolicy={"backoffLimit": 99})
    now = 0.0
    for attempt in (1, 2, 3):
        life.see(*healthy(attempt), seconds=now)
        life.see(*crash(attempt), seconds=now + 5)
        now += 100
    assert life.job.status.restarts_in_a_row == 3

    life.see(*healthy(4), seconds=now)
    life.see(*crash(4), seconds=now + GOOD_RUN_SECONDS - 1)
    assert life.job.status.restarts_in_a_row == 4
    now += 1000
    life.see(*healthy(5), seconds=now)
    life.see(*crash(5), seconds=now + GOOD_RUN_SECONDS)

    assert life.job.status.restarts_in_a_row == 1
    assert paused(life, now + GOOD_RUN_SECONDS) == 0
    assert life.job.status.restarts.application == 5, "the limit counts all of them"


def test_time_in_which_an_attempt_only_waited_is_no_training() -> None:
    life = Life(runPolicy={"backoffLimit": 99})
    life.see(*healthy())
    life.see(*crash(1), seconds=10)

    life.see(running(WORKER_0, attempt=2), seconds=20)
    life.see(*crash(2), seconds=5000)

    assert life.job.status.restarts_in_a_row == 2
    assert paused(life, 5000) == 10


def test_a_replica_that_starts_alone_has_a_pause_only_while_it_fails_in_a_row() -> None:
    spec = {"strategy": "ParameterServer", "replicaSpecs": {"worker": {}, "ps": {}}}
    names = ("mnist-chief-0", "mnist-ps-0", WORKER_0)
    life = Life(runPolicy={"backoffLimit": 99}, **spec)
    now = 0.0
    life.see(*map(running, names), seconds=now)
    for attempt in (1, 2, 3):
        others = [running(name) for name in names[:2]]
        life.see(*others, ended(WORKER_0, 1, attempt=attempt), seconds=now + 10)
        now += 100
        life.see(*others, running(WORKER_0, attempt=attempt + 1), seconds=now)
    assert life.job.status.restarts_in_a_row == 3

    now += GOOD_RUN_SECONDS
    life.see(*others, ended(WORKER_0, 1, attempt=4), seconds=now)

    assert life.job.status.restarts_in_a_row == 1
