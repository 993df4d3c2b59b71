"""The pure parts of the benchmarks: what is made of their measurements."""

from __future__ import annotations

import pytest
from bench import soak
from bench.comparisons import Bucket
from bench.control import TARGETS, growth_of
from bench.figures import percentile, shown, slope, table
from bench.jobs import STRATEGIES, decisive, job, objects
from bench.targets import Target, verdicts

from dtj.api.checking import check


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
    [(0, "0"), (0.01234, "0.0123"), (0.5, "0.500"), (12.34, "12.3"), (1234.5, "1234"), (100000, "100000")],
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


def test_what_was_not_measured_has_no_verdict() -> None:
    assert verdicts([Target("a", "x", 1), Target("b", "y", 1)], {"y": 1}) == ["b 1.00 ≤1 met"]


def test_every_target_judges_another_figure() -> None:
    assert (
        len({target.figure for target in TARGETS}) == len({target.name for target in TARGETS}) == len(TARGETS)
    )


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
