"""Restarts in place: the operator counts what pods report, and asks for nothing.

* whatever a pod reports, and wherever the operator dies, each restart counts once
* the cause, its node, the event, the metrics
* the termination message, before backoffLimit is compared
* an operator of another version
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtj.api.identity import KIND, LABEL_ROUNDS
from dtj.api.job import Manifest
from dtj.reconcile.metrics import OperatorMetrics
from dtj.status.observed import ProgressReport, read_report
from dtj.status.pods import read_rounds
from dtj_trainer.contract import Rounds
from tests.unit.support.kubelet import Ending
from tests.unit.support.world import KEY, World

LIMIT = 3
IN_PLACE: Manifest = {"restartStrategy": "InPlaceRestart", "backoffLimit": LIMIT}
KILLED: Manifest = {
    "class": "Signal",
    "message": "rank 1 was killed by SIGKILL",
    "role": "worker",
    "index": 1,
    "rank": 1,
    "exitCode": 137,
    "signal": 9,
}
RAISED: Manifest = {"class": "ApplicationError", "message": "ValueError", "exitCode": 1}
JOB = (KIND, *KEY)


def told(count: Any, failure: Any = KILLED) -> ProgressReport:
    """The report of a pod."""
    report, _ = read_report(json.dumps({"restarts": {"count": count, "failure": failure}}))
    assert report is not None
    return report


def message(count: int, failure: Manifest = RAISED) -> str:
    """The termination message of a pod that restarted so often in place, and then failed; empty: it succeeded."""
    return json.dumps({**failure, "restarts": {"count": count, "failure": KILLED}})


class Training(World):
    """A job whose pods run until their `ends` say how they end."""

    def __init__(self, strategy: str = "TorchDistributed", **policy: Any) -> None:
        super().__init__(strategy=strategy, runPolicy=IN_PLACE | policy)
        self.ends: dict[str, Ending] = {}
        self.kubelet.program = lambda pod, ran: self.ends.get(pod["metadata"]["name"])

    async def see(self, report: ProgressReport, steps: int = 3) -> None:
        """Make passes with this report of the pod that reports."""
        for _ in range(steps):
            self.progress.reports[KEY] = report
            await self.step()

    @property
    def restarts(self) -> tuple[int, int]:
        """How many restarts count against the limit, and how many of them were in place."""
        counts = self.status["restarts"]
        return counts["application"], counts.get("inPlace", 0)

    @property
    def uids(self) -> dict[str, str]:
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in self.cluster.of_kind("Pod")}


async def training(strategy: str = "TorchDistributed", **policy: Any) -> Training:
    world = Training(strategy, **policy)
    await world.until(lambda: world.phase == "Running")
    return world


COUNTS = st.integers(-2, LIMIT + 2) | st.integers() | st.sampled_from(["2", 2.0, True, None, [], {}, 10**400])
FAILURES = st.sampled_from([KILLED, RAISED, None, {}, "killed", {"class": 7, "message": ["a"], "index": -1}])
DEATHS = st.none() | st.tuples(st.integers(1, 3), st.sampled_from(["before", "after"]))


@pytest.mark.bound(
    "operator",
    "A program, by what it reports",
    "Restarts in place that count",
    "`backoffLimit`; a write of the status and an event for each",
)
@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(COUNTS, FAILURES, DEATHS), max_size=6))
def test_each_restart_counts_once_whatever_a_pod_says_and_wherever_the_operator_dies(story: Any) -> None:
    asyncio.run(_play(story))


async def _play(story: list[tuple[Any, Any, tuple[int, Any] | None]]) -> None:
    world = await training()
    pods, most, increases, before = world.uids, 0, 0, len(world.cluster.writes)
    for count, failure, death in story:
        readable = type(count) is int and 0 <= count <= 10**15 and not isinstance(failure, str)
        known = max(most, min(count, LIMIT)) if readable else most
        increases += known > most
        most = known
        if death is not None:
            world.cluster.die_at, world.cluster.die_when = death
        await world.see(told(count, failure))
        world.cluster.die_at = None

        assert world.restarts == (most, most)
        assert (world.phase, world.status["attempt"], world.uids) == ("Running", 1, pods)
    writes = Counter((call.verb, call.kind) for call in world.cluster.writes[before:])
    assert writes[("patch", KIND)] <= increases + world.deaths
    assert writes[("create", "Event")] <= increases + world.deaths
    assert writes.keys() <= {("patch", KIND), ("create", "Event")}
    assert world.events().count("RestartedInPlace") <= increases


async def test_a_restart_costs_a_write_of_the_status_and_an_event() -> None:
    world = await training()
    before = len(world.cluster.calls)

    await world.see(told(1), steps=10)

    assert Counter((call.verb, call.kind) for call in world.cluster.calls[before:]) == {
        ("patch", KIND): 1,
        ("create", "Event"): 1,
    }


async def test_the_cause_its_node_the_event_and_the_metrics_tell_it() -> None:
    metrics = OperatorMetrics()
    world = await training()
    world.new_metrics = lambda: metrics  # type: ignore[method-assign]
    world.start_operator()

    await world.see(told(1))

    failure = world.status["failure"]
    assert failure == {
        "attempt": 1,
        "pod": "mnist-worker-1",
        "node": "node-1",
        **KILLED,
    }
    assert world.status["nodeFailures"] == {"node-1": 1}
    (event,) = (each for each in world.cluster.of_kind("Event") if each["reason"] == "RestartedInPlace")
    assert event["type"] == "Warning"
    assert event["message"] == (
        "attempt 1: rank 1 in mnist-worker-1: rank 1 was killed by SIGKILL; the ranks started again in their pods"
    )
    whose = {"job_namespace": "ml", "strategy": "TorchDistributed"}
    value = metrics.registry.get_sample_value
    counted = {
        cause: value("dtj_job_restarts_total", whose | {"cause": cause})
        for cause in ("application", "in_place", "infrastructure")
    }
    assert counted == {"application": 0, "in_place": 1, "infrastructure": 0}
    assert value("dtj_job_failures_total", whose | {"failure_class": "Signal"}) == 1

    await world.see(told(3, RAISED))

    assert world.restarts == (3, 3)
    assert world.status["failure"]["pod"] == "mnist-worker-0", (
        "the pod that reports, where the report names none"
    )
    assert "2 times since the last report" in world.cluster.of_kind("Event")[-1]["message"]


async def test_the_next_pods_avoid_a_node_whose_rank_died_in_place_before() -> None:
    world = await training(avoidNodeAfterFailures=2, backoffLimit=9)
    await world.see(told(1))
    await world.see(told(2))
    world.ends = dict.fromkeys(world.uids, (1, message(2)))
    await world.until(lambda: world.status["attempt"] == 2)
    world.ends = {}
    await world.until(lambda: world.phase == "Running")

    assert world.status["nodeFailures"]["node-1"] >= 2
    assert "node-1" in json.dumps(world.cluster.pod("mnist-worker-0")["spec"]["affinity"])


@pytest.mark.parametrize("strategy", ["TorchDistributed", "Horovod"])
async def test_a_termination_message_counts_before_the_limit_is_compared(strategy: str) -> None:
    world = await training(strategy)
    teller = "mnist-worker-0" if strategy == "TorchDistributed" else "mnist-launcher-0"
    world.ends[teller] = 1, message(LIMIT)

    await world.until(lambda: world.phase == "Failed")

    assert world.restarts == (LIMIT, LIMIT)
    assert world.condition("Failed")["reason"] == "BackoffLimitExceeded"
    assert world.status["failure"]["class"] == "ApplicationError"
    assert world.events().count("RestartedInPlace") == 1


async def test_new_pods_know_the_restarts_of_both_kinds() -> None:
    world = await training()
    world.ends = dict.fromkeys(world.uids, (1, message(1)))
    await world.until(lambda: world.status["attempt"] == 2)
    world.ends = {}
    await world.until(lambda: world.phase == "Running")

    assert world.restarts == (2, 1)
    assert {pod["metadata"]["labels"][LABEL_ROUNDS] for pod in world.cluster.of_kind("Pod")} == {"2-3"}

    await world.see(told(1))

    assert world.restarts == (3, 2), "counted from the birth of these pods"
    assert world.status["attempt"] == 2


@pytest.mark.parametrize(("reporter_ends", "counted"), [(True, (2, 1)), (False, (1, 0))])
async def test_a_failure_waits_for_the_count_of_the_reporting_pod(
    reporter_ends: bool, counted: tuple[int, int]
) -> None:
    world = await training()
    world.ends["mnist-worker-1"] = 1, json.dumps(RAISED)
    for _ in range(3):
        await world.step()
    assert (world.status["attempt"], world.condition("Running")["reason"]) == (1, "RankLost")
    if reporter_ends:
        world.ends["mnist-worker-0"] = 1, message(1)

    await world.until(lambda: world.status["attempt"] == 2, 8)

    assert world.restarts == counted


async def test_a_pod_that_is_told_to_end_is_not_waited_for() -> None:
    world = await training()
    world.cluster.remove(("Pod", "ml", "mnist-worker-1"))

    await world.until(lambda: world.status["attempt"] == 2, 2)

    assert world.status["restarts"]["infrastructure"] == 1


async def test_a_success_tells_its_restarts_too() -> None:
    world = await training()
    world.ends = dict.fromkeys(world.uids, (0, message(2, {})))

    await world.until(lambda: world.phase == "Succeeded")

    assert world.restarts == (2, 2)
    assert world.events()[-2:] == ["RestartedInPlace", "JobSucceeded"]


async def test_a_pod_that_goes_as_a_restart_is_told_is_missed() -> None:
    world = await training()
    world.cluster.remove(("Pod", "ml", "mnist-worker-1"))

    await world.see(told(1), steps=2)

    assert world.restarts == (1, 1)
    assert world.status["restarts"]["infrastructure"] == 1


async def test_an_operator_that_does_not_know_the_field_makes_nothing_count_twice() -> None:
    world = await training()
    await world.see(told(2))
    world.cluster.change(JOB, lambda job: job["status"]["restarts"].pop("inPlace"))
    world.start_operator()

    await world.see(told(2))
    assert world.restarts == (2, 2)

    await world.see(told(3))
    assert world.restarts == (3, 3)


async def test_pods_without_rounds_count_no_restart_in_place() -> None:
    world = Training(restartStrategy="Recreate")
    await world.until(lambda: world.phase == "Running")

    await world.see(told(2))
    world.ends["mnist-worker-0"] = 1, message(2)
    await world.until(lambda: world.status["attempt"] == 2, 3)

    assert world.restarts == (1, 0)


@pytest.mark.parametrize(
    ("label", "rounds"),
    [
        ("0-3", Rounds(0, 3)),
        ("7-10000", Rounds(7, 10000)),
        ("", None),
        ("3", None),
        ("a-b", None),
        ("-1-3", None),
    ],
)
def test_the_label_says_what_the_pods_began_with(label: str, rounds: Rounds | None) -> None:
    assert read_rounds({LABEL_ROUNDS: label}) == rounds
    assert read_rounds({}) is None
