"""What a report says of the exchange of gradients, of shared processors and of skipped examples."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dtj.report.data import as_data
from dtj.report.report import make_report
from dtj.report.run import Run, read_metrics
from dtj.report.summary import summarise
from dtj.report.tables import NOTHING, tables_of
from tests.unit.support.training_runs import content, even_run, line


def cells(runs: list[Run], heading: str, table: str = "Runs") -> list[str]:
    (found,) = [each for each in tables_of(make_report(runs)) if each.title == table]
    return [row[found.headings.index(heading)] for row in found.rows]


def ranks(name: str, number: int, **facts: Any) -> Run:
    """A run of so many ranks: its speed is the same."""
    return even_run(name, 10, workers=number, **facts)


def notes_of(*runs: Run) -> list[str]:
    notes = make_report(runs, baseline="one").notes
    return [note for note in notes if note.startswith("The ranks of ")]


def test_the_bandwidth_is_the_mean_over_the_time_without_the_first_step() -> None:
    lines = [
        line("train", 0, 1, reducedBytesPerSecond=1),  # connects the ranks
        line("train", 10, 11, reducedBytesPerSecond=100_000_000),
        line("test", 20, 11, accuracy=0.5),
        line("train", 50, 41, reducedBytesPerSecond=200_000_000),
    ]
    found = summarise(Run("run", read_metrics(content(lines)).rows)).bandwidth
    assert found is not None
    assert found.mean == pytest.approx((100e6 * 10 + 200e6 * 30) / 40)


def test_runs_and_groups_have_a_column_of_bandwidth() -> None:
    runs = [
        even_run(f"{model}-{n}", 10, model=model, of_train={"reducedBytesPerSecond": n * 1_000_000})
        for model in ("resnet18", "vgg16")
        for n in (120, 124)
    ]
    assert cells(runs, "bandwidth (MB/s)")[0] == "120.0 ± 0.0"
    assert cells(runs, "bandwidth (MB/s)", "Groups") == ["122.0 ± 2.8"] * 2
    report = make_report(runs)
    assert any(note.startswith("Bandwidth: bytes of gradients") for note in report.notes)
    data = json.loads(json.dumps(as_data(report)))
    assert data["runs"][0]["bandwidthBytesPerSecond"]["mean"] == pytest.approx(120e6)


def test_one_process_has_no_bandwidth() -> None:
    runs = [even_run("one", 10), even_run("two", 10, of_train={"reducedBytesPerSecond": 5_000_000})]
    assert cells(runs, "bandwidth (MB/s)") == [NOTHING, "5.00 ± 0.00"]
    report = make_report(runs[:1])
    assert "bandwidth (MB/s)" not in tables_of(report)[0].headings
    assert not any("Bandwidth" in note for note in report.notes)


def test_ranks_on_the_processors_of_the_baseline_are_told() -> None:
    one = ranks("one", 1, nodes=1, processors=2)
    assert notes_of(one, ranks("two", 2, nodes=1, processors=2)) == [
        "The ranks of two shared 2 processors, and the fewer ranks of its baseline one had as many: no speed-up is "
        "to be expected."
    ]
    assert notes_of(one, ranks("four", 4, nodes=2, processors=4)) == []
    assert notes_of(one, ranks("unknown", 2)) == []
    assert notes_of(one, ranks("again", 1, nodes=1, processors=2)) == []


def test_ranks_on_gpus_are_not_judged_by_processors() -> None:
    one, two = (ranks(name, number, nodes=1, processors=2) for name, number in (("one", 1), ("two", 2)))
    job = {"spec": {"replicaSpecs": {"worker": {"replicas": 2, "gpus": 1}}}}
    assert notes_of(one, Run("two", two.rows, job=job)) == []
    no_chief = {"spec": {"replicaSpecs": {"chief": {"replicas": 0, "gpus": 1}, "worker": {"replicas": 2}}}}
    assert notes_of(one, Run("two", two.rows, job=no_chief)) == notes_of(one, two) != []


def test_skipped_examples_are_summed_over_attempts() -> None:
    lines = [
        line("train", 0, 1, skippedExamples=2),
        line("train", 10, 21),
        line("test", 11, 21, accuracy=0.5, skippedExamples=7),
        line("train", 90, 11, attempt=2, skippedExamples=1),
        line("train", 99, 21, attempt=2, skippedExamples="many"),
    ]
    runs = [Run("damaged", read_metrics(content(lines)).rows), even_run("whole", 10)]
    report = make_report(runs)
    assert cells(runs, "skipped") == ["3", NOTHING]
    assert [run["skippedExamples"] for run in as_data(report)["runs"]] == [3, 0]
    assert (
        "damaged left out examples that can't be read, 3 times over all ranks and attempts." in report.notes
    )
