"""The summary of one run, compared with figures computed by hand.

* rates, and time between attempts
* repeated steps and suspensions
* runs that go on
* real rows of both strategies
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from dtj.api.status import JobStatus
from dtj.report.run import Run, read_metrics
from dtj.report.summary import Spread, Summary, starts, summarise
from tests.unit.support.training_runs import content, even_run, line

REAL = Path(__file__).with_name("runs")


def of(*lines: dict[str, Any], **known: Any) -> Summary:
    return summarise(Run("run", read_metrics(content(list(lines))).rows, **known))


def real(name: str) -> Summary:
    evaluator = REAL / name / "metrics-evaluator.jsonl"
    rows = read_metrics((REAL / name / "metrics.jsonl").read_bytes()).rows
    return summarise(Run(name, rows, read_metrics(evaluator.read_bytes()).rows if evaluator.exists() else []))


def test_rows_share_the_names_of_their_values() -> None:
    first, second = read_metrics(content([line("train", 1, 1), line("train", 2, 2)])).rows
    assert all(mine is its for mine, its in zip(first.values, second.values, strict=True))


def test_rates_are_means_over_the_time_of_training_and_deviate_over_its_intervals() -> None:
    run = of(
        line("start", 0, 0, examples=0),
        line("train", 50, 1, examples=10),  # the framework compiles
        line("train", 60, 101, examples=1010),  # 10 steps/s for 10 s
        line("test", 100, 101, accuracy=0.5, examples=1010),  # 40 s of tests
        line("train", 110, 301, examples=3010),  # 20 steps/s for 10 s
        line("end", 111, 301),
    )
    assert run.steps_per_second == Spread(15.0, pytest.approx(math.sqrt(50)))
    assert run.examples_per_second == Spread(150.0, pytest.approx(10 * math.sqrt(50)))
    assert run.training_seconds == 111
    assert run.accuracy == 0.5
    assert (run.ended, run.steps, run.examples, run.restarts) == (True, 301, 3010, 0)


def test_a_short_interval_weighs_little() -> None:
    run = of(
        line("train", 0, 0, examples=0),
        line("train", 90, 90, examples=90),  # 1 a second
        line("train", 100, 120, examples=120),  # 3 a second, for a ninth of the time
    )
    assert run.steps_per_second is not None
    assert run.steps_per_second.mean == 1.2
    # (90 · 0.2² + 10 · 1.8²) / 100 · 2 / 1
    assert run.steps_per_second.deviation == pytest.approx(math.sqrt(0.72))


def test_steps_made_again_count_once_and_the_time_between_attempts_not_at_all() -> None:
    run = of(
        line("start", 0, 0, examples=0),
        line("train", 1, 1, examples=10, loss=3.0),
        line("train", 11, 101, examples=1010, loss=2.0),  # 10 steps/s
        line("train", 21, 201, examples=2010, loss=1.0),  # lost but for its first half
        line("start", 1000, 151, examples=1510, attempt=2),
        line("train", 1001, 152, examples=1520, loss=1.5, attempt=2),
        line("train", 1011, 352, examples=3520, loss=0.5, attempt=2),  # 20 steps/s
        line("end", 1012, 352, attempt=2),
    )
    # 100 steps in 10 s, 50 in 5 s, 200 in 10 s.
    assert run.steps_per_second is not None
    assert run.steps_per_second.mean == pytest.approx(350 / 25)
    assert sum(interval.steps for interval in run.intervals()) == 350
    assert run.training_seconds == 21 + 12
    assert (run.attempts, run.restarts) == (2, 1)
    assert [loss for start in run.starts for _, loss in start.losses()] == [3.0, 2.0, 1.5, 0.5]


def test_a_program_begun_anew_by_hand_is_another_start_though_it_counts_no_attempts() -> None:
    run = of(
        line("train", 0, 10, examplesPerSecond=5.0),
        line("train", 10, 30, examplesPerSecond=8.0),
        line("train", 500, 20, examplesPerSecond=8.0),
        line("train", 510, 50, examplesPerSecond=6.0),
    )
    assert run.restarts == 1
    assert run.steps_per_second is not None
    assert run.steps_per_second.mean == pytest.approx((10 + 30) / (5 + 10))
    assert run.examples_per_second is not None
    assert run.examples_per_second.mean == pytest.approx((8 * 5 + 6 * 10) / 15), "as the rows say it"


def test_the_total_time_is_the_jobs_and_counts_from_the_first_row_if_it_was_suspended() -> None:
    rows = (line("train", 100, 1), line("end", 200, 2))
    status = JobStatus(start_time="2026-11-21T10:00:00Z", completion_time="2026-11-21T10:05:00Z")
    assert of(*rows, status=status).total_seconds == 300
    assert of(*rows).total_seconds is None
    resumed = JobStatus(start_time="2026-11-21T10:03:00Z", completion_time="2026-11-21T10:05:00Z")
    assert of(*rows, status=resumed).total_seconds == 200


def test_the_time_of_a_run_that_goes_on_is_an_estimate() -> None:
    run = summarise(even_run("slow", 2.0, steps=1001, done=201, ended=False, accuracy=0.4))
    assert (run.ended, run.estimated) == (False, True)
    assert run.training_seconds == pytest.approx(10 + 100 + 400)
    assert run.seconds is None


def test_the_evaluators_last_test_is_the_accuracy() -> None:
    tests = read_metrics(content([line("test", 5, 1, accuracy=0.7), line("test", 9, 2, accuracy=0.0)])).rows
    assert of(line("train", 1, 1), evaluator_rows=tests).accuracy == 0.0


def test_lines_that_are_none_are_left_out() -> None:
    cut = b'{"kind": "tra\n\xff\n3\n{"kind": "train", "step": 3}\n' + content([line("train", 1, 1)])
    assert [row.step for row in read_metrics(cut).rows] == [1]


def test_what_was_trained_is_read_from_the_job_where_rows_do_not_say_it() -> None:
    job = {
        "spec": {
            "strategy": "Horovod",
            "args": ["--model=resnet18", "--batch-size", "32"],
            "replicaSpecs": {"worker": {"replicas": 2, "gpus": 4}},
            "data": {"uri": "s3://data/set"},
        }
    }
    run = of(line("train", 1, 1, worldSize=12), job=job, labels={"team": "vision"})
    wanted = {"strategy": "Horovod", "model": "resnet18", "batch": 32, "ranks": 12, "team": "vision"}
    assert wanted.items() <= run.facts.items()
    assert run.facts["workers"] == 3, "it went on with one worker more"

    newer = {"spec": {**job["spec"], "fieldOfALaterRelease": 1}}
    assert of(line("train", 1, 1, worldSize=12), job=newer).facts["workers"] == 3

    servers = {"strategy": "ParameterServer", "replicaSpecs": {"worker": {"replicas": 3}, "ps": {}}}
    torch = {"strategy": "TorchDistributed", "torch": {"procsPerWorker": 4}, "replicaSpecs": {"worker": {}}}
    facts = of(line("train", 1, 1, worldSize=8), job={"spec": torch}).facts
    assert (facts["strategy"], facts["workers"], facts["ranks"]) == ("TorchDistributed", 2, 8)
    facts = of(line("train", 1, 1, worldSize=3), job={"spec": servers}).facts
    assert (facts["workers"], facts["ps"], facts["updates"]) == (3, 1, "Asynchronous")


def test_real_rows_of_horovod() -> None:
    alone, killed = real("horovod-1"), real("horovod-killed")
    assert alone.ended
    assert (alone.steps, alone.examples, alone.facts["batch"], alone.facts["ranks"]) == (400, 25600, 64, 1)
    assert alone.accuracy == 0.8549
    assert (killed.restarts, killed.steps, killed.examples) == (1, 400, 51200)
    # Its checkpoint was of step 100: the first step of each start is not in the rates.
    assert sum(each.steps for each in killed.intervals()) == 99 + 299
    assert sum(each.examples or 0 for each in killed.intervals()) == pytest.approx((99 + 299) * 128)


@pytest.mark.parametrize(
    ("name", "updates"), [("ps-asynchronous", "Asynchronous"), ("ps-synchronous", "Synchronous")]
)
def test_real_rows_of_parameter_servers(name: str, updates: str) -> None:
    run = real(name)
    assert run.ended
    assert {
        "updates": updates,
        "strategy": "ParameterServer",
        "workers": 2,
        "ps": 1,
    }.items() <= run.facts.items()
    assert run.accuracy is not None
    assert run.steps_per_second is not None
    assert run.examples_per_second is not None
    batch = 128 if updates == "Synchronous" else 64
    assert run.examples_per_second.mean / run.steps_per_second.mean == pytest.approx(batch, rel=0.02)


def test_rows_that_dtj_found_out_may_be_late_and_repeat_a_step() -> None:
    """An evaluation is told with the step that it had, and a loss with the last step that was seen."""
    lines = [
        {
            "kind": "train",
            "time": f"2026-11-21T12:00:{second:02}Z",
            "step": step,
            "loss": 1.0,
            "source": "Output",
        }
        for second, step in ((0, 0), (10, 100), (12, 100), (20, 200), (21, 150), (30, 300))
    ]
    rows = read_metrics("".join(json.dumps(line) + "\n" for line in lines).encode()).rows
    (start,) = starts(rows)
    assert [(round(one.seconds), one.steps) for one in start.intervals()] == [(10, 100), (10, 100), (10, 100)]
