"""Groups of runs, comparisons with a baseline, and the tables and CSV files of a report.

* groups, means and deviations
* speedups over a baseline
* groups that are unlike, scaled or single
* the cost by role
* CSV: numbers, formulas, carriage returns
* the steps of each rank
"""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from typing import Any

import pytest

from dtj.api.errors import NotFound, Unusable
from dtj.api.spec import ROLES
from dtj.api.status import ReplicaStatus
from dtj.report.cost import read_price
from dtj.report.data import as_csv, as_data
from dtj.report.entries import Entry, spread
from dtj.report.report import make_report
from dtj.report.run import Run, read_metrics
from dtj.report.summary import Spread
from dtj.report.tables import tables_of
from tests.unit.support.training_runs import content, even_run, job_of, line

MINUTE = 60.0
NO_CHIEF = {"chief": {"replicas": 0}}
ALONE = job_of("TorchDistributed", worker={"replicas": 1})
TWO_AND_PS = job_of("ParameterServer", **NO_CHIEF, worker={"replicas": 2}, ps={})


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
        even_run("gpu", 22.0, machine="GTX 1080 Ti", accuracy=0.922, total_seconds=45 * MINUTE, job=ALONE),
        even_run("two", 13, machine="GPU ps", accuracy=0.9087, total_seconds=40 * MINUTE, job=TWO_AND_PS),
        even_run("too", 13, machine="GPU ps", accuracy=0.9107, total_seconds=42 * MINUTE, job=TWO_AND_PS),
    ]
    report = make_report(machines, group_by=["machine"], price=read_price("$0.90/h"))
    columns = ("group", "global step/s", "total time (min)", "accuracy %", "cost ($)")
    assert cells(1, report, *columns) == [
        ["GPU ps", "13.00 ± 0.00", "41.0 ± 1.4", "90.97 ± 0.14", "1.84 ± 0.06"],
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


def test_runs_are_grouped_by_an_option_of_the_program() -> None:
    def run(name: str, rate: str) -> Run:
        job = {"spec": {"command": ["python", "train.py"], "args": ["--lr", rate, "--api-key=secret"]}}
        return replace(even_run(name, 10), job=job)

    runs = [run("a", "0.1"), run("b", "0.1"), run("c", "0.01")]
    for name in ("--lr", "lr"):
        report = make_report(runs, group_by=[name])
        assert [entry.label for entry in report.groups] == ["lr 0.01", "lr 0.1"]
        assert cells(1, report, "runs") == [["1"], ["2"]]
    assert "lr" not in make_report(runs).runs[0].facts
    with pytest.raises(Unusable, match="no program has the option --wd"):
        make_report(runs, group_by=["wd"])


def test_a_group_of_unlike_runs_is_said() -> None:
    runs = [even_run("a", 10), even_run("b", 20, batchSize=32, steps=77)]
    notes = make_report(runs, group_by=["model"]).notes
    assert "The group cnn has runs that differ in batch, number of examples." in notes


def test_a_run_that_was_scaled_is_said() -> None:
    lines = [line("train", 0, 1, worldSize=2), line("train", 9, 5, worldSize=3, attempt=2)]
    notes = make_report([Run("scaled", read_metrics(content(lines)).rows)]).notes
    assert "scaled ran on 2, 3 ranks, one number after the other; the tables show the last number." in notes


def test_what_is_not_there_is_said() -> None:
    runs = [even_run("a", 10)]
    with pytest.raises(Unusable, match="no run has the field colour"):
        make_report(runs, group_by=["colour"])
    with pytest.raises(NotFound, match="no run or group is called b"):
        make_report(runs, baseline="b")


def dollars(entry: Entry) -> float | None:
    return None if entry.cost is None else entry.cost.mean


@pytest.mark.parametrize(
    ("minutes", "workers", "gpus_of_ps", "price", "wanted"),
    [
        (92, 2, 0, "worker=$0.90,ps=$0.023", 2.73),
        (41, 2, 1, "worker=$0.90,ps=$0.90", 1.84),
        (43, 3, 0, "worker=$0.90,ps=$0.023", 1.93),
    ],
    ids=["t2.small ps + 2 GPU workers", "GPU ps + 2 GPU workers", "t2.small ps + 3 GPU workers"],
)
def test_the_costs_of_the_thesis(
    minutes: int, workers: int, gpus_of_ps: int, price: str, wanted: float
) -> None:
    """The thesis rounds the minutes (~92), so its costs and these differ by up to 2.5 %."""
    worker, ps = {"replicas": workers, "gpus": 1}, {"gpus": gpus_of_ps}
    job = job_of("ParameterServer", **NO_CHIEF, worker=worker, ps=ps)
    (entry,) = make_report(
        [even_run("a", 10, total_seconds=minutes * MINUTE, job=job)], price=read_price(price)
    ).runs
    assert dollars(entry) == pytest.approx(wanted, rel=0.025)


HOUR = 3600.0
SERVERS = {"worker": {"replicas": 2, "gpus": 8}, "ps": {"gpus": 0}}


@pytest.mark.parametrize(
    ("job", "price", "wanted"),
    [
        (job_of("ParameterServer", **SERVERS), "3", 4 * 3.0),  # The chief without an entry has a pod.
        (job_of("ParameterServer", **SERVERS), "chief=1,worker=3,ps=0.5", 1 + 2 * 3 + 0.5),
        (job_of("ParameterServer", **SERVERS), "worker=3,ps=0.5", "chief"),
        (job_of("ParameterServer", **SERVERS, **NO_CHIEF), "worker=3,ps=0.5", 2 * 3 + 0.5),
        (job_of("ParameterServer", **SERVERS, **NO_CHIEF), "worker=3", "ps"),
        (job_of("ParameterServer", **SERVERS, **NO_CHIEF, evaluator={}), "worker=3,ps=0.5", "evaluator"),
        (job_of("Horovod", worker={"replicas": 2}), "1", 2.0),
        (job_of("Horovod", worker={"replicas": 2}), "worker=1", "launcher"),
        (job_of("Horovod", worker={"replicas": 2}), "worker=1,launcher=0", 2.0),
        (job_of("TorchDistributed", worker={"replicas": 2}), "worker=1", 2.0),
    ],
)
def test_a_role_with_pods_and_no_price_makes_the_cost_unknown(
    job: dict[str, Any], price: str, wanted: float | str
) -> None:
    ranks = job["spec"]["replicaSpecs"]["worker"]["replicas"]
    run = even_run("a", 10, total_seconds=HOUR, job=job, workers=ranks)
    report = make_report([run], price=read_price(price))
    (entry,) = report.runs
    if isinstance(wanted, str):
        assert dollars(entry) is None
        (note,) = [each for each in report.notes if each.startswith("The cost of a is unknown")]
        assert f"{wanted} has pods and no price. Add {wanted}=PRICE" in note
    else:
        assert dollars(entry) == pytest.approx(wanted)
        assert not any(note.startswith("The cost of") for note in report.notes)


def test_pods_of_a_scaled_job_count_as_the_status_has_them() -> None:
    servers = job_of("ParameterServer", **SERVERS)
    run = even_run("a", 10, total_seconds=HOUR, job=servers)
    counts = {role: ReplicaStatus(desired=count) for role, count in (("chief", 0), ("worker", 5), ("ps", 2))}
    assert run.status is not None
    scaled = replace(run, status=run.status.model_copy(update={"replica_statuses": counts}))
    (entry,) = make_report([scaled], price=read_price("worker=1,ps=1")).runs
    assert dollars(entry) == pytest.approx(7)
    ranks = even_run("b", 10, total_seconds=HOUR, job=job_of("TorchDistributed", worker={}), workers=3)
    (entry,) = make_report([ranks], price=read_price("1")).runs
    assert dollars(entry) == pytest.approx(3), "the ranks of the last row, without counts in the status"


def test_one_unknown_cost_makes_the_cost_of_its_group_unknown() -> None:
    known = even_run("a", 10, total_seconds=HOUR, job=ALONE, machine="m")
    price = read_price("worker=1")
    for other, reason in (
        (TWO_AND_PS, "ps has pods and no price"),
        (None, "neither job.yaml nor a recorded status shows the pods"),
    ):
        unknown = even_run("b", 10, total_seconds=HOUR, job=other, machine="m")
        report = make_report([known, unknown], group_by=["machine"], price=price)
        assert dollars(report.runs[0]) == pytest.approx(1)
        assert dollars(report.groups[0]) is None
        assert any(note.startswith("The cost of b is unknown") and reason in note for note in report.notes)
    going_on = even_run("c", 10, ended=False, job=ALONE, machine="m")
    report = make_report([known, going_on], group_by=["machine"], price=price)
    assert dollars(report.groups[0]) == pytest.approx(1), "the cost of the runs that have ended"


def test_one_price_for_pods_of_several_kinds_is_said() -> None:
    runs = [
        even_run(name, 10, job=job_of("ParameterServer", **NO_CHIEF, worker={}, ps={"gpus": gpus}))
        for name, gpus in (("cpu-ps", 0), ("gpu-ps", 8))
    ]
    said = "The pods of ps have 0 or 8 GPUs, depending on the run, and one price"
    for chosen, told in ((runs, True), (runs[:1], False)):
        notes = make_report(chosen, price=read_price("worker=1,ps=0.1")).notes
        assert any(note.startswith(said) for note in notes) == told


def test_a_price_is_that_of_every_pod_or_of_roles() -> None:
    for text, amount, currency in (("0.90/h", 0.9, ""), ("$0.9", 0.9, "$"), (" 2 / h", 2.0, "")):
        price = read_price(text)
        assert (price.by_role, price.currency) == (dict.fromkeys(ROLES, amount) | {"launcher": 0}, currency)
    price = read_price("worker=$0.90/h, ps=0.023")
    assert (price.by_role, price.currency) == ({"worker": 0.9, "ps": 0.023}, "$")


@pytest.mark.parametrize(
    ("text", "said", "remedy"),
    [
        ("much", "'much' is not a price", "such as worker=0.90,ps=0.023"),
        ("-1", "'-1' is not a price", "such as 0.90/h"),
        ("worker=", "'worker=' is not a price", "such as worker=0.90,ps=0.023"),
        ("worker=1,", "'' is not a price", "such as worker=0.90,ps=0.023"),
        ("workers=1", "'workers=1' does not name a role", "the roles are launcher, worker, "),
        ("=1", "'=1' does not name a role", "the roles are launcher, worker, "),
        ("ps=1,ps=2", "'ps=1,ps=2' has two prices for ps", "such as worker=0.90,ps=0.023"),
        ("0,90", "'0,90' has two prices for every pod", "such as 0.90/h"),
        ("1,ps=2", "'1,ps=2' has a price for every pod and a price for a role", "such as 0.90/h"),
        ("worker=$1,ps=€1", "'worker=$1,ps=€1' has the currencies $ and €", "give one currency"),
    ],
)
def test_what_is_no_price_is_said(text: str, said: str, remedy: str) -> None:
    with pytest.raises(Unusable) as refused:
        read_price(text)
    assert refused.value.message == said
    assert remedy in (refused.value.remedy or "")


def test_the_data_has_every_figure_and_csv_the_same() -> None:
    report = make_report(
        [even_run("a", 10), even_run("b", 20, accuracy=0.9)], baseline="a", price=read_price("1")
    )
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
