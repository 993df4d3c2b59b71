"""The pure parts of the benchmarks: figures from measurements.

* percentiles, slopes, tables and verdicts
* targets of control plane, big jobs, neighbours and checkpoints
* hostile reports, and rate limits of a client
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import inf

import pytest
from prometheus_client.samples import Sample

from dtj.api.job import Fault, Manifest
from dtj.api.manifest_check import check
from dtj.status.observed import read_report
from tests.bench import big_jobs, neighbours, soak
from tests.bench.big_jobs import LARGEST, Size, largest
from tests.bench.comparisons import Bucket
from tests.bench.control import BIG, TARGETS, big_lines, conclusion, growth_of
from tests.bench.figures import percentile, shown, slope, table
from tests.bench.jobs import STRATEGIES, decisive, job, objects, sized
from tests.bench.nonsense import MESSAGES, REPORTS
from tests.bench.operator_process import longest
from tests.bench.targets import Target, verdicts


def test_a_percentile_is_one_of_the_values() -> None:
    values = [float(number) for number in range(100, 0, -1)]

    assert percentile(values, 0.5) == 50
    assert percentile(values, 0.99) == 99
    assert percentile(values, 1) == 100
    assert percentile([7.0], 0.01) == 7


def test_of_nothing_there_is_no_percentile() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


def test_a_slope_is_the_power_by_which_a_time_grows() -> None:
    assert slope([1000, 100], [20, 2]) == pytest.approx(1)
    assert slope([10, 20], [1, 4]) == pytest.approx(2)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (inf, "inf"),
        (0.01234, "0.0123"),
        (0.5, "0.500"),
        (12.34, "12.3"),
        (1234.5, "1234"),
        (100000, "100000"),
    ],
)
def test_figures_are_shown_with_the_digits_that_count(value: float, text: str) -> None:
    assert shown(value) == text


def test_a_table_has_a_row_for_every_figure_of_any_run() -> None:
    text = table({"1 job": {"a": 1, "long name": 22.2}, "10 jobs": {"a": 3, "c": 4}})

    assert text.splitlines() == [
        "|           | 1 job | 10 jobs |",
        "| --------- | ----: | ------: |",
        "| a         |  1.00 |    3.00 |",
        "| long name |  22.2 |       – |",
        "| c         |     – |    4.00 |",
    ]


@pytest.mark.parametrize(
    ("target", "value", "line"),
    [
        (Target("time/5s", "x", 5), 4, "time/5s 0.800 ≤1 met"),
        (Target("time/5s", "x", 5), 6, "time/5s 1.20 ≤1 missed"),
        (Target("rate/40", "x", 40, at_least=True), 40, "rate/40 1.00 ≥1 met"),
        (Target("rate/40", "x", 40, at_least=True), 30, "rate/40 0.750 ≥1 missed"),
        (Target("a/b", "x", 0.6, at_least=True, of_a_ratio=True), 0.5, "a/b 0.500 ≥0.6 missed"),
        (Target("memory", "x", lambda run: 2 * run["jobs"]), 10, "memory 0.500 ≤1 met"),
    ],
)
def test_a_verdict_is_name_ratio_target_and_whether_it_is_met(
    target: Target, value: float, line: str
) -> None:
    assert target.verdict({"x": value, "jobs": 10}) == line


def test_the_longest_lag_is_a_gauge_s_value_or_the_bound_of_a_histogram_s_last_bucket() -> None:
    gauge = [Sample("lag", {}, 0.25)]
    counts = {"0.1": 5.0, "0.5": 7.0, "1.0": 7.0, "+Inf": 7.0}
    histogram = [Sample("lag_bucket", {"le": bound}, count) for bound, count in counts.items()]

    assert longest(gauge) == 0.25
    assert longest([*histogram, Sample("lag_count", {}, 7.0), Sample("lag_sum", {}, 9.0)]) == 0.5


def test_what_was_not_measured_has_no_verdict() -> None:
    assert verdicts([Target("a", "x", 1), Target("b", "y", 1)], {"y": 1}) == ["b 1.00 ≤1 met"]


@pytest.mark.parametrize(
    "targets",
    [TARGETS, [*big_jobs.TARGETS, big_jobs.GROWTH], neighbours.TARGETS],
    ids=["jobs", "big", "others"],
)
def test_every_target_judges_another_figure(targets: Sequence[Target]) -> None:
    assert (
        len({target.figure for target in targets}) == len({target.name for target in targets}) == len(targets)
    )


def test_the_last_line_names_the_targets_that_were_missed() -> None:
    assert conclusion(["a 1.00 ≤1 met", "b 2.00 ≤3 met"]) == "All 2 targets are met."
    assert conclusion(["a 1.00 ≤1 met", "b 2.00 ≤1 missed"]) == "1 of 2 targets are MISSED: b"


def test_the_growth_of_a_big_job_is_judged_where_both_sizes_were_measured() -> None:
    cpu = "operator: CPU, s"
    small, large = {cpu: 2.0}, {cpu: 12.0}

    assert big_lines({Size("Horovod", 1000): small}) == []
    assert big_lines({Size("Horovod", 1000): small, Size("Horovod", 5000): large}) == [
        "big-job/cpu-5000/cpu-1000 6.00 ≤5.5 missed"
    ]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_largest_job_is_accepted_and_one_worker_more_is_not(strategy: str) -> None:
    workers = largest(strategy)

    assert Size.read(f"{strategy}:largest") in {*BIG, Size("Horovod", LARGEST)}
    assert Size(strategy, LARGEST).found() == Size(strategy, workers)
    for kind in ("warm", "made", "bare"):
        place = Size(strategy, workers).place(kind)
        assert faults(sized("big", place, strategy, workers)) == []
        assert faults(sized("big", place, strategy, workers + 1)) != []


@pytest.mark.parametrize("number", [1, neighbours.LONG_EVERY])
def test_the_hostile_tenant_s_jobs_are_refused(number: int) -> None:
    assert len(faults(neighbours.refused(f"refused-{number}", "hostile"))) == 1


@pytest.mark.parametrize("said", REPORTS)
def test_nonsense_in_a_report_is_dropped_or_cut_to_a_line(said: bytes) -> None:
    report, dropped = read_report(said)

    assert dropped > 0 or (report and report.bottleneck and report.bottleneck[1].isprintable())


def test_nonsense_in_a_termination_message_is_sent_as_json() -> None:
    assert [json.loads(json.dumps(message)) for message in MESSAGES] == list(MESSAGES)


def test_growth_is_judged_between_runs_that_are_long_enough() -> None:
    run = "all run after, s"

    assert growth_of([{"jobs": 10, run: 1}, {"jobs": 100, run: 2}]) == []
    assert growth_of([{"jobs": 100, run: 2}, {"jobs": 1000, run: 20}]) == ["growth/linear 1.00 ≤1.1 met"]
    assert growth_of([{"jobs": 100, run: 1}, {"jobs": 1000, run: 20}]) == ["growth/linear 1.30 ≤1.1 missed"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_measured_jobs_are_valid_and_end_with_one_of_their_pods(strategy: str) -> None:
    manifest = job("one", "ml", strategy)
    manifest["metadata"]["uid"] = "0-0"

    assert check(manifest)[1] == []
    names = [made["metadata"]["name"] for made in objects("one", "ml", strategy) if made["kind"] == "Pod"]
    assert decisive("one", strategy) in names


def test_a_limited_client_uses_its_burst_up_and_then_waits_for_each_request() -> None:
    now = 0.0
    bucket = Bucket(5, 2, lambda: now)
    waits = []
    for _ in range(4):
        waits.append(bucket.wait())
        now += waits[-1]

    assert waits == pytest.approx([0, 0, 0.2, 0.2])


def faults(manifest: Manifest) -> list[Fault]:
    manifest["metadata"]["uid"] = "0-0"
    return check(manifest)[1]


def held(**others: float) -> soak.Sample:
    names = ("jobs that came", "jobs that went", "memory, MB", "open files", "tasks", "objects", "queued")
    return dict.fromkeys(names, 10.0) | {name.replace("_", " "): value for name, value in others.items()}


def test_what_an_operator_kept_of_jobs_that_went_is_told() -> None:
    samples = [held() for _ in range(2 + soak.SAMPLES)] + [held(objects=3.0, queued=0.0, tasks=12.0)]

    verdict = soak.told(samples).split("\n\n")[1].splitlines()

    assert verdict == [
        "soak/memory-at-the-end/after-warm-up 1.00 ≤1.1 met",
        "soak/open-files-at-the-end/before 1.00 ≤1 met",
        "soak/tasks-at-the-end/before 1.20 ≤1 missed",
        "soak/objects-left 3.00 ≤0 missed",
        "soak/jobs-queued-at-the-end 0 ≤0 met",
        "soak/jobs-that-did-not-succeed 0 ≤0 met",
    ]
