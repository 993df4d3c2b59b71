"""Groups of runs, comparisons with a baseline, and the tables and CSV files of a report.

* groups, means and deviations
* speedups over a baseline
* groups that are unlike, scaled or single
* CSV: numbers, formulas, carriage returns
* the steps of each rank
"""

from __future__ import annotations

import csv
import io
import json

import pytest

from dtj.api.errors import NotFound, Unusable
from dtj.report.data import as_csv, as_data
from dtj.report.entries import Price, read_price, spread
from dtj.report.report import make_report
from dtj.report.run import Run, read_metrics
from dtj.report.summary import Spread
from dtj.report.tables import tables_of
from tests.unit.support.training_runs import content, even_run, line

MINUTE = 60.0


def cells(table: int, report: object, *headings: str) -> list[list[str]]:
    found = tables_of(report)[table]  # type: ignore[arg-type]
    places = [found.headings.index(heading) for heading in headings]
    return [[row[place] for place in places] for row in found.rows]


@pytest.mark.parametrize(
    ("values", "wanted"), [([], None), ([1.0], Spread(1.0)), ([1.0, 3.0], Spread(2.0, 2**0.5))]
)
def test_spread(values: list[float], wanted: Spread | None) -> None:
    assert spread(values) == wanted


def test_runs_that_are_alike_are_a_group_with_mean_and_deviation() -> None:
    asynchronous = [
        even_run(f"a{rate}", rate, updates="Asynchronous", workers=2, ps=1, accuracy=rate / 200)
        for rate in (90, 100, 110)
    ]
    report = make_report([*asynchronous, even_run("s", 40, updates="Synchronous", workers=2, ps=1)])
    figures = ("updates", "runs", "global step/s", "examples/s", "training time (s)", "accuracy %")
    # 999 steps: 11.1, 9.99 and 9.08 s, after the 10 of the first step.
    assert cells(1, report, *figures) == [
        ["Asynchronous", "3", "100.0 ± 10.0", "12,800 ± 1,280", "20.1 ± 1.0", "50.00 ± 5.00"],
        ["Synchronous", "1", "40.00", "5,120", "35.0", "–"],
    ]
    assert any("compare examples/s" in note for note in report.notes)
    assert cells(0, report, "run", "global step/s")[0] == ["a90", "90.00 ± 0.00"]


def test_no_rate_reads_as_zero() -> None:
    report = make_report([even_run(f"{rate}", rate) for rate in (0.0412, 0.00412)])
    assert cells(0, report, "global step/s") == [["0.041 ± 0.000"], ["0.0041 ± 0.0000"]]


def test_the_tables_of_the_thesis() -> None:
    """1 ps and 3 workers, synchronous and asynchronous; then machines, with time, accuracy and cost."""
    rates = {"Synchronous": (2.12, 3.26, 4.40), "Asynchronous": (4.45, 10.04, 15.63)}
    schemes = [
        even_run(f"{updates}-{n}", rate, updates=updates, workers=3, ps=1)
        for updates, values in rates.items()
        for n, rate in enumerate(values)
    ]
    report = make_report(schemes, group_by=["updates"])
    assert cells(1, report, "group", "global step/s") == [
        ["Asynchronous", "10.04 ± 5.59"],
        ["Synchronous", "3.26 ± 1.14"],
    ]

    machines = [
        even_run("own-cpu", 0.44, steps=58_000, done=1001, ended=False, machine="own CPU"),
        even_run("gpu", 22.0, machine="GTX 1080 Ti", accuracy=0.922, total_seconds=45 * MINUTE),
        even_run("two", 13, machine="GPU ps", workers=2, ps=1, accuracy=0.9087, total_seconds=40 * MINUTE),
        even_run("too", 13, machine="GPU ps", workers=2, ps=1, accuracy=0.9107, total_seconds=42 * MINUTE),
    ]
    report = make_report(machines, group_by=["machine"], price=Price(0.9, "$"))
    columns = ("group", "global step/s", "total time (min)", "accuracy %", "cost ($)")
    assert cells(1, report, *columns) == [
        ["GPU ps", "13.00 ± 0.00", "41.0 ± 1.4", "90.97 ± 0.14", "1.23 ± 0.04"],
        ["GTX 1080 Ti", "22.00", "45.0", "92.20", "0.68"],
        ["own CPU", "0.44", "–", "–", "–"],
    ]
    (estimated,) = [row for row in cells(1, report, "group", "training time (h)") if row[0] == "own CPU"]
    assert estimated[1] == "36.62 (est.)"
    assert any(note.startswith("own-cpu has not ended") for note in report.notes)


def test_each_model_on_one_worker_against_two() -> None:
    """The bar charts of 001 and 004: speed-up and accuracy of each model."""
    runs = [
        even_run(
            f"{model}-{workers}", rate, steps=steps, model=model, workers=workers, examples_a_step=examples
        )
        for model, one, two in (("resnet18", 10.0, 9.0), ("vgg", 4.0, 3.0))
        for workers, rate, steps, examples in ((1, one, 1001, 128), (2, two, 501, 256))
    ]
    report = make_report(runs, group_by=["model", "workers"], baseline="workers=1")
    figures = ("group", "speed-up", "speed-up of time", "efficiency")
    assert cells(1, report, *figures) == [
        ["resnet18, workers 1", "1.00", "1.00", "1.00"],
        ["resnet18, workers 2", "1.80", "1.68", "0.90"],  # 110 s against 65.6
        ["vgg, workers 1", "1.00", "1.00", "1.00"],
        ["vgg, workers 2", "1.50", "1.47", "0.75"],  # 260 s against 176.7
    ]
    assert not any("different trainings" in note for note in report.notes)


def test_a_baseline_of_another_model_data_or_batch_is_said() -> None:
    runs = [
        even_run("small", 10, steps=100),
        even_run("other", 20, steps=500, model="vgg", data="s3://data/other", batchSize=32),
    ]
    report = make_report(runs, baseline="small")
    assert (
        "other and its baseline small are different trainings: model vgg against cnn, data s3://data/other against "
        "s3://data/it, batch size 32 against 128, trained on 64,000 examples against 12,800." in report.notes
    )
    assert cells(0, report, "speed-up", "speed-up of time")[1] == ["2.00", "–"]


def test_the_total_time_is_compared_where_all_runs_have_one() -> None:
    runs = [even_run("a", 10, total_seconds=400), even_run("b", 20, total_seconds=200)]
    assert cells(0, make_report(runs, baseline="a"), "speed-up of time") == [["1.00"], ["2.00"]]
    report = make_report([*runs, even_run("c", 20)], baseline="a")
    assert any("of the training time" in note for note in report.notes)


def test_groups_of_one_run_each_are_left_out_unless_asked_for() -> None:
    runs = [even_run("a", 10), even_run("b", 20, model="vgg")]
    assert [table.title for table in tables_of(make_report(runs))] == ["Runs"]
    assert [table.title for table in tables_of(make_report(runs, group_by=["model"]))] == ["Runs", "Groups"]


def test_a_group_of_unlike_runs_is_said() -> None:
    runs = [even_run("a", 10), even_run("b", 20, batchSize=32, steps=77)]
    notes = make_report(runs, group_by=["model"]).notes
    assert "The group cnn has runs that differ in batch, number of examples." in notes


def test_a_run_that_was_scaled_is_said() -> None:
    lines = [line("train", 0, 1, worldSize=2), line("train", 9, 5, worldSize=3, attempt=2)]
    notes = make_report([Run("scaled", read_metrics(content(lines)).rows)]).notes
    assert "scaled ran on 2, 3 ranks in turn; the tables show the last number." in notes


def test_what_is_not_there_is_said() -> None:
    runs = [even_run("a", 10)]
    with pytest.raises(Unusable, match="no run has the field colour"):
        make_report(runs, group_by=["colour"])
    with pytest.raises(NotFound, match="no run or group is called b"):
        make_report(runs, baseline="b")
    with pytest.raises(Unusable, match="'much' is no price"):
        read_price("much")
    assert [read_price(text) for text in ("0.90/h", "$0.9", "2 / h")] == [
        Price(0.9),
        Price(0.9, "$"),
        Price(2),
    ]


def test_the_data_has_every_figure_and_csv_the_same() -> None:
    report = make_report([even_run("a", 10), even_run("b", 20, accuracy=0.9)], baseline="a", price=Price(1))
    data = json.loads(json.dumps(as_data(report)))
    assert [run["run"] for run in data["runs"]] == ["a", "b"]
    assert data["runs"][1]["globalStepsPerSecond"]["mean"] == pytest.approx(20)
    assert data["runs"][1]["comparison"]["speedup"] == pytest.approx(2)
    assert data["groups"][0]["runs"] == ["a", "b"]
    assert data["groups"][0]["accuracy"] == {"mean": 0.9, "deviation": None}

    rows = list(csv.DictReader(io.StringIO(as_csv(report)["runs.csv"])))
    assert [(row["run"], row["model"], row["ended"]) for row in rows] == [
        ("a", "cnn", "True"),
        ("b", "cnn", "True"),
    ]
    assert float(rows[1]["speedup"]) == pytest.approx(2)
    assert rows[0]["accuracy"] == rows[0]["accuracyDeviation"] == ""
    assert float(rows[0]["globalStepsPerSecondDeviation"]) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("name", ["=cmd()", "+1+1", "-x", "@SUM(A1)", "\t=1"])
def test_no_cell_of_the_csv_is_a_formula(name: str) -> None:
    (row,) = csv.DictReader(io.StringIO(as_csv(make_report([even_run(name, 10)]))["runs.csv"], newline=""))

    assert row["run"] == f"'{name}"


def test_a_carriage_return_ends_no_row_of_the_csv() -> None:
    text = as_csv(make_report([even_run("a\r=1", 10)]))["runs.csv"]

    assert [row["run"] for row in csv.DictReader(io.StringIO(text, newline=""))] == ["a =1"]


@pytest.mark.parametrize("name", ["-5", "+1.5e-3", "-.5", "a=b", "1-2", "two\nlines"])
def test_numbers_and_names_stay_as_they_are_in_the_csv(name: str) -> None:
    (row,) = csv.DictReader(io.StringIO(as_csv(make_report([even_run(name, 10)]))["runs.csv"]))

    assert row["run"] == name


def test_the_steps_of_each_rank_have_a_table() -> None:
    steps = [
        {"rank": 0, "steps": 100, "mean": 1.976, "deviation": 0.03},
        {"rank": 1, "steps": 100, "mean": 1.903, "deviation": 0.0},
    ]
    run = even_run("ddp", 10, workers=2, model="vgg16", step_times=steps)
    report = make_report([run, even_run("old", 10)])
    (table,) = [each for each in tables_of(report) if each.title == "Steps by rank"]
    assert table.headings == ["run", "model", "rank", "steps", "time of a step (ms)"]
    assert table.rows == [
        ["ddp", "vgg16", "0", "100", "1,976.00 ± 30.00"],
        ["ddp", "vgg16", "1", "100", "1,903.00 ± 0.00"],
    ]
    data = as_data(report)["runs"]
    assert data[0]["rankSteps"][1] == {"rank": 1, "steps": 100, "seconds": {"mean": 1.903, "deviation": 0.0}}
    assert data[1]["rankSteps"] == []
    assert "rankSteps" not in as_csv(report)["runs.csv"]


@pytest.mark.parametrize(
    "steps", [{}, "x", [None], [{"rank": 0}], [{"rank": 0, "steps": 1, "mean": -1, "deviation": 0}],
              [{"rank": "0", "steps": 1, "mean": 1, "deviation": 0}],
              [{"rank": 0, "steps": 1, "mean": 1e300, "deviation": 0}]]
)  # fmt: skip
def test_steps_in_another_form_are_left_out(steps: object) -> None:
    report = make_report([even_run("odd", 10, step_times=steps)])
    assert [table.title for table in tables_of(report)] == ["Runs"]
