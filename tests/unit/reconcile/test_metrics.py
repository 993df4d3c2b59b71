"""The Prometheus metrics of jobs.

* phases, starts, losses and recoveries
* steps, checkpoints and stalls
* GPUs that are held, and GPUs that are idle
* names, labels, and the number of series
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dtj.api.status import JobStatus, Phase
from dtj.reconcile import job_series
from dtj.reconcile.metrics import OperatorMetrics, event_loop_lag, process_registry
from dtj.status.observed import Observed
from dtj.status.times import read_time
from tests.unit.support.jobs import job, manifest
from tests.unit.support.kubelet import Ending
from tests.unit.support.measured import GPUS, MeasuredWorld, endless, trained
from tests.unit.support.world import KEY

GOLDEN = Path(__file__).parents[1] / "support/metrics.txt"
PS_GPUS: dict[str, Any] = {
    "strategy": "ParameterServer",
    "replicaSpecs": {"worker": {"replicas": 2, "gpus": 4}, "ps": {}},
}


def seconds_between(world: MeasuredWorld, begin: str, end: str) -> float:
    return (read_time(world.status[end]) - read_time(world.status[begin])).total_seconds()


async def test_jobs_are_counted_by_phase_and_a_deleted_one_no_more() -> None:
    world = MeasuredWorld()
    await world.step()
    assert world.value("dtj_jobs", phase="Pending") == 1.0
    assert world.value("dtj_jobs", phase="Running") == 0.0

    await world.rest()
    assert world.value("dtj_jobs", phase="Succeeded") == 1.0
    assert world.value("dtj_jobs", phase="Pending") == 0.0

    world.cluster.remove(("DistributedTrainingJob", *KEY))
    await world.rest()
    assert world.value("dtj_jobs", phase="Succeeded") is None


async def test_a_start_is_observed_once_from_its_start_until_all_pods_run() -> None:
    world = MeasuredWorld()
    world.kubelet.program = endless
    world.kubelet.hold = {"mnist-worker-1"}
    for _ in range(30):
        await world.step()
    assert world.value("dtj_job_time_to_running_seconds_count") == 0.0

    world.kubelet.hold = set()
    await world.until(lambda: world.phase == "Running")
    await world.step()

    took = seconds_between(world, "startTime", "allRunningTime")
    assert took > 30
    assert world.value("dtj_job_time_to_running_seconds_count") == 1.0
    assert world.value("dtj_job_time_to_running_seconds_sum") == took
    assert world.value("dtj_job_queue_wait_seconds_count") == 1.0
    queued = world.value("dtj_job_queue_wait_seconds_sum")
    assert queued is not None
    assert queued < 5, "the pods had their nodes at once"


async def test_an_operator_that_takes_over_counts_nothing_twice_and_tells_of_the_job_at_once() -> None:
    world = await trained()
    before = world.job_series()
    world.start_operator()
    assert world.job_series() == set()

    await world.step()

    used = {"dtj_job_cpu_cores", "dtj_job_memory_bytes", "dtj_job_gpu_utilisation_ratio"}
    assert world.job_series() == before - used, "the status has no such figures: a pod has to say them"
    world.report()
    await world.step()
    assert world.job_series() == before
    assert world.value("dtj_job_time_to_running_seconds_count") == 0.0
    assert world.value("dtj_job_recovery_seconds_count") == 0.0
    assert world.value("dtj_job_restarts_total", cause="infrastructure") == 0.0
    assert world.value("dtj_job_failures_total", failure_class="PodLost") is None


async def test_a_loss_is_counted_by_cause_and_class_and_its_recovery_observed() -> None:
    world = await trained()

    assert world.value("dtj_job_restarts_total", cause="infrastructure") == 1.0
    assert world.value("dtj_job_restarts_total", cause="application") == 0.0
    assert world.value("dtj_job_failures_total", failure_class="PodLost") == 1.0
    assert world.value("dtj_job_recovery_seconds_count") == 1.0
    lost = world.condition("Restarting")
    again = world.condition("Running")
    assert lost["status"] == "False"
    # The time of the loss is that of the condition's begin, which its end has written over.
    whole = (read_time(again["lastTransitionTime"]) - read_time(world.status["startTime"])).total_seconds()
    recovery = world.value("dtj_job_recovery_seconds_sum")
    assert recovery is not None
    assert 0 < recovery < whole
    assert world.value("dtj_job_time_to_running_seconds_count") == 1.0, "a recovery is no start"


async def test_the_evaluators_restarts_are_counted_apart() -> None:
    roles = {"worker": {"replicas": 2}, "ps": {}, "evaluator": {}}
    world = MeasuredWorld(strategy="ParameterServer", replicaSpecs=roles)
    world.kubelet.program = endless
    await world.until(lambda: world.phase == "Running")
    for _ in range(3):
        await world.step()

    world.cluster.end_pod(world.cluster.pod("mnist-evaluator-0"))
    await world.until(lambda: world.status["restarts"].get("evaluator") == 1)
    await world.step()

    assert world.value("dtj_job_restarts_total", cause="evaluator") == 1.0
    assert world.value("dtj_job_restarts_total", cause="infrastructure") == 0.0


@pytest.mark.parametrize(
    ("said", "told"), [("DataCorrupt", "DataCorrupt"), ("whatever-9f31", "Other")], ids=["known", "invented"]
)
async def test_a_programs_own_words_make_no_series(said: str, told: str) -> None:
    def fails(pod: Any, ran: int) -> Ending | None:
        launcher = pod["metadata"]["labels"]["dtj.dev/role"] == "launcher"
        return (1, f'{{"class": "{said}", "exitCode": 1, "message": "x"}}') if launcher and ran > 1 else None

    world = MeasuredWorld(runPolicy={"backoffLimit": 0})
    world.kubelet.program = fails
    await world.until(lambda: world.phase == "Failed")
    await world.step()

    assert world.value("dtj_job_failures_total", failure_class=told) == 1.0
    ended = {"result": "failed", "reason": "BackoffLimitExceeded"}
    assert world.value("dtj_jobs_finished_total", **ended) == 1.0
    assert world.job_series() == set(), "it has ended"


async def test_a_running_job_tells_its_steps_and_its_checkpoint() -> None:
    world = await trained()

    assert world.job_value("dtj_job_phase", phase="Running") == 1.0
    assert world.job_value("dtj_job_steps") == 120.0
    assert world.job_value("dtj_job_planned_steps") == 500.0
    assert world.job_value("dtj_job_examples_per_second") == 1234.0, "four digits, as in the status"
    assert world.job_value("dtj_job_stalled") == 0.0
    checkpoint = read_time("2026-11-21T12:00:08Z").timestamp()
    assert world.job_value("dtj_job_checkpoint_timestamp_seconds") == checkpoint


async def test_what_a_job_may_lose_counts_from_its_checkpoint_or_from_when_it_runs_again() -> None:
    world = await trained()
    runs = read_time(world.condition("Running")["lastTransitionTime"]).timestamp()
    assert (world.job_value("dtj_job_checkpoint_timestamp_seconds") or 0.0) < runs
    assert world.job_value("dtj_job_unsaved_timestamp_seconds") == runs

    world.report('{"artifacts": {"checkpoint": {"step": 200, "time": "2026-11-21T13:00:00Z"}}}')
    await world.step()

    later = read_time("2026-11-21T13:00:00Z").timestamp()
    assert world.job_value("dtj_job_unsaved_timestamp_seconds") == later


async def test_a_job_without_a_bucket_has_no_stale_checkpoint_and_one_that_is_not_watched_no_stall() -> None:
    world = MeasuredWorld()
    world.kubelet.program = endless
    await world.until(lambda: world.phase == "Running")
    await world.step()

    told = {"dtj_job_phase", "dtj_job_gpus", "dtj_job_idle_gpus"}
    assert world.job_series() == told


async def test_a_job_that_stands_still_says_so_and_its_gpus_are_idle() -> None:
    world = MeasuredWorld(replicaSpecs=GPUS, runPolicy={"stallTimeoutSeconds": 60})
    world.kubelet.program = endless
    await world.until(lambda: world.phase == "Running")
    world.report('{"progress": {"step": 7}}')
    await world.step()
    assert world.job_value("dtj_job_stalled") == 0.0
    assert world.job_value("dtj_job_idle_gpus") == 0.0

    await world.until(lambda: world.condition("Stalled").get("status") == "True")

    assert world.job_value("dtj_job_stalled") == 1.0
    assert world.job_value("dtj_job_idle_gpus") == world.job_value("dtj_job_gpus") == 8.0


async def test_gpus_count_from_a_pods_node_to_its_end_and_are_idle_until_all_pods_run() -> None:
    world = MeasuredWorld(replicaSpecs=GPUS)
    world.kubelet.program = endless
    world.kubelet.hold = {"mnist-worker-1"}
    await world.until(lambda: world.job_value("dtj_job_gpus") == 8.0)
    held, idle = world.value("dtj_gpu_held_seconds_total"), world.value("dtj_gpu_idle_seconds_total")
    assert held == idle

    begin = world.cluster.now
    for _ in range(20):
        await world.step()
    waited = (world.cluster.now - begin).total_seconds()
    assert world.value("dtj_gpu_held_seconds_total") == (held or 0) + 8 * waited
    assert world.value("dtj_gpu_idle_seconds_total") == (idle or 0) + 8 * waited

    world.kubelet.hold = set()
    await world.until(lambda: world.job_value("dtj_job_idle_gpus") == 0.0)
    held, idle = world.value("dtj_gpu_held_seconds_total"), world.value("dtj_gpu_idle_seconds_total")
    begin = world.cluster.now
    for _ in range(20):
        await world.step()
    trained_for = (world.cluster.now - begin).total_seconds()
    assert world.value("dtj_gpu_held_seconds_total") == (held or 0) + 8 * trained_for
    assert world.value("dtj_gpu_idle_seconds_total") == idle


async def test_gpus_go_on_to_count_between_passes_whenever_prometheus_asks() -> None:
    world = await trained()
    held = world.value("dtj_gpu_held_seconds_total") or 0.0

    for seconds in (10, 20):
        world.cluster.now += read_time("2026-01-01T00:00:10Z") - read_time("2026-01-01T00:00:00Z")
        assert world.value("dtj_gpu_held_seconds_total") == held + 8 * seconds


async def test_nothing_is_held_by_a_job_that_has_ended_or_is_suspended() -> None:
    world = MeasuredWorld(replicaSpecs=GPUS)
    world.kubelet.program = endless
    await world.until(lambda: world.phase == "Running")

    world.patch(runPolicy={"suspend": True})
    await world.until(lambda: world.phase == "Suspended")
    await world.rest()
    assert world.job_value("dtj_job_gpus") == 0.0
    held = world.value("dtj_gpu_held_seconds_total")
    world.cluster.now += read_time("2026-01-02T00:00:00Z") - read_time("2026-01-01T00:00:00Z")
    assert world.value("dtj_gpu_held_seconds_total") == held

    world.patch(runPolicy={"suspend": False})
    await world.until(lambda: world.phase == "Running")
    assert world.value("dtj_job_time_to_running_seconds_count") == 2.0, "it waited for its pods again"
    slowest = world.value("dtj_job_time_to_running_seconds_bucket", le="60.0")
    assert slowest == 2.0, "the day that it was suspended does not count"


async def test_parameter_server_workers_that_go_on_are_not_idle_while_one_is_replaced() -> None:
    world = MeasuredWorld(**PS_GPUS)
    world.kubelet.program = endless
    await world.until(lambda: world.phase == "Running")
    for _ in range(3):
        await world.step()
    world.kubelet.hold = {"mnist-worker-1"}
    world.cluster.end_pod(world.cluster.pod("mnist-worker-1"))

    await world.until(lambda: world.phase == "Restarting" and world.job_value("dtj_job_gpus") == 8.0)
    for _ in range(3):
        await world.step()

    assert world.job_value("dtj_job_idle_gpus") == 4.0, "those of the worker that starts"


@pytest.mark.parametrize("how", ["deleted", "handed over", "made anew"])
async def test_a_jobs_series_end_with_it(how: str) -> None:
    world = await trained()
    assert "dtj_job_steps" in world.job_series()

    if how == "handed over":
        world.patch(runPolicy={"managedBy": "example.com/other"})
    else:
        world.cluster.remove(("DistributedTrainingJob", *KEY))
    if how == "made anew":
        world.apply(manifest())
    world.view.deliver()
    await world.turn()

    assert world.job_series() == (
        {"dtj_job_phase", "dtj_job_gpus", "dtj_job_idle_gpus"} if how == "made anew" else set()
    )


async def test_what_rank_0s_pod_uses_is_in_the_metrics_and_costs_no_write() -> None:
    world = MeasuredWorld()
    world.kubelet.program = endless
    await world.until(lambda: world.phase == "Running")
    for _ in range(3):
        await world.step()
    status, writes = world.status, len(world.cluster.writes)
    for gpus in (0.25, 0.97):
        used = {"cpuCores": 3.456, "memoryBytes": 2 * 10**9, "gpuUtilisation": gpus, "more": 1}
        world.report(json.dumps({"utilisation": used}))
        await world.step()
        assert world.job_value("dtj_job_gpu_utilisation_ratio") == gpus
    assert world.job_value("dtj_job_cpu_cores") == 3.456
    assert world.job_value("dtj_job_memory_bytes") == 2e9
    assert world.status == status
    assert len(world.cluster.writes) == writes


async def test_the_text_that_prometheus_reads_is_as_it_was() -> None:
    """After a change that is meant: `python -m tests.unit.reconcile.test_metrics`, and read the difference."""
    assert await golden() == GOLDEN.read_text()


async def golden() -> str:
    """All but the buckets of a job's life."""
    world = await trained()
    lines = prometheus_client.generate_latest(world.registry).decode().splitlines(keepends=True)
    return "".join(line for line in lines if "_bucket{" not in line)


# Prometheus' conventions, as `promtool check metrics` holds them: https://prometheus.io/docs/practices/naming/
UNITS = ("seconds", "bytes", "info", "timestamp_seconds", "seconds_total")
NO_UNIT = {"minutes", "milliseconds", "ms", "hours", "days", "percent", "kilobytes", "megabytes"}
LABELS = {
    *("job_namespace", "job_name", "strategy", "phase", "result", "reason", "cause", "failure_class"),
    *("verb", "kind", "code", "version"),
}


async def test_names_units_and_labels_follow_prometheus_conventions() -> None:
    registry = process_registry(lambda: True, event_loop_lag())
    await trained(registry)
    text = prometheus_client.generate_latest(registry).decode()
    ours = [family for family in text_string_to_metric_families(text) if family.name.startswith("dtj_")]
    assert len(ours) > 20
    for family in ours:
        words = set(family.name.split("_"))
        assert re.fullmatch(r"[a-z][a-z0-9_]*[a-z0-9]", family.name), family.name
        assert family.documentation.endswith("."), family.name
        assert not words & (NO_UNIT | {"gauge", "counter", "histogram", "total", "count", "sum", "bucket"})
        assert family.type in ("gauge", "counter", "histogram"), family.name
        if family.type == "histogram":
            assert family.name.endswith("_seconds"), family.name
        for sample in family.samples:
            labels = sample.labels.keys() - {"le"}
            assert labels <= LABELS, sample
            if family.type == "counter":
                assert sample.name == f"{family.name}_total"
            if "job_name" in labels:
                assert family.type == "gauge", "a counter of a job would outlive it"
                assert {"job_namespace", "strategy"} <= labels


async def test_how_many_series_there_are_depends_on_the_jobs_that_are_there_not_on_those_that_were() -> None:
    world = MeasuredWorld()
    await world.rest()

    def series() -> int:
        return sum(len(family.samples) for family in world.registry.collect())

    before = series()
    for number in range(5):
        world.cluster.remove(("DistributedTrainingJob", *KEY))
        await world.rest()
        world.apply(manifest(args=[f"--seed={number}"]))
        await world.rest()

    assert series() == before
    assert world.value("dtj_jobs", phase=Phase.SUCCEEDED) == 1.0


@pytest.mark.bound(
    "operator",
    "Who may create namespaces and jobs in them",
    "Series of namespaces without jobs",
    "Those of the 1,000 that had jobs last",
)
def test_the_series_of_namespaces_whose_jobs_went_long_ago_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_series, "MOST_WITHOUT_JOBS", 5)
    metrics = OperatorMetrics(clock=lambda: 0.0)

    def see(namespace: str) -> None:
        metrics.see((namespace, "a"), replace(job("a"), namespace=namespace), JobStatus(), Observed())

    def namespaces() -> set[str]:
        samples = (sample for family in metrics.registry.collect() for sample in family.samples)
        return {sample.labels["job_namespace"] for sample in samples if "job_namespace" in sample.labels}

    see("stays")
    for number in range(20):
        see(f"n{number}")
        see(f"n{number}")
        metrics.jobs.forget((f"n{number}", "a"))
        metrics.jobs.forget((f"n{number}", "a"))
    assert namespaces() == {"stays", *(f"n{number}" for number in range(15, 20))}
    see("n0")
    see("n17")
    for number in range(20, 25):
        see(f"n{number}")
        metrics.jobs.forget((f"n{number}", "a"))
    assert namespaces() == {"stays", "n0", "n17", *(f"n{number}" for number in range(20, 25))}


if __name__ == "__main__":
    import asyncio

    GOLDEN.write_text(asyncio.run(golden()))
