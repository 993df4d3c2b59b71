"""`dtj report` of metrics files with invalid lines and values."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtj.report.data import as_csv, as_data
from dtj.report.documents import as_html, as_markdown
from dtj.report.pictures import pictures_of
from dtj.report.report import make_report
from dtj.report.run import Run, read_metrics
from dtj.report.summary import Spread, Summary, summarise
from dtj.report.tables import tables_of
from tests.unit.support.training_runs import content, line

GOOD = [
    line("start", 0, 0, model="cnn", totalSteps=300),
    line("train", 10, 1, examples=10, loss=2.0),
    line("train", 20, 101, examples=1010, loss=1.0),
    line("train", 30, 201, examples=2010, loss=0.5),
]
TIME = '"time":"2026-11-21T10:00:25Z"'


def run_of(*lines: str) -> Run:
    """The good lines with others before the last of them."""
    first, last = content(GOOD[:3]), content(GOOD[3:])
    metrics = read_metrics(first + "".join(f"{line}\n" for line in lines).encode() + last)
    return Run("run", metrics.rows, left_out=metrics.left_out)


def whole(run: Run) -> Summary:
    """The run, after every form of a report was made of it but pictures."""
    report = make_report([run, Run("other", read_metrics(content(GOOD)).rows)], baseline="other")
    tables_of(report)
    as_csv(report)
    as_markdown(report)
    as_html(report, {})
    json.dumps(as_data(report), allow_nan=False)
    return report.summaries[0]


@pytest.mark.parametrize(
    "bad",
    [
        f'{{{TIME},"step":1e400}}',
        f'{{{TIME},"step":99999999999999999999999}}',
        f'{{{TIME},"step":-5}}',
        f'{{{TIME},"step":NaN}}',
        f'{{{TIME},"step":true}}',
        f'{{{TIME},"step":"7"}}',
        f'{{{TIME},"step":{"9" * 5000}}}',
        '{"time":"9999-12-31T23:59:59+14:00","step":3}',
        '{"time":"0001-01-01T00:00:00","step":3}',
        '{"time":1e9,"step":3}',
        f"{{{TIME}}}",
        f'{{{TIME},"step":15',
        '"step time"',
        "[" * 100_000,
        "\x00",
    ],
    ids=lambda bad: bad[:60],
)
def test_a_line_that_is_no_row_changes_nothing_and_is_told(bad: str) -> None:
    run = run_of(bad)
    report = make_report([run])

    assert (len(run.rows), run.left_out) == (4, 1)
    assert whole(run).steps_per_second == Spread(10.0, 0.0)
    assert "run has 1 line of metrics that can't be read and are left out." in report.notes


def test_of_good_lines_nothing_is_told() -> None:
    assert not [note for note in make_report([run_of("")]).notes if "can't be read" in note]


@pytest.mark.parametrize(
    "value", ["NaN", "Infinity", "-Infinity", "1e400", "9" * 400, "true", '"many"', "[1]"]
)
def test_a_value_that_is_no_number_is_as_if_it_were_not_given(value: str) -> None:
    names = ("examples", "examplesPerSecond", "loss", "accuracy", "attempt", "worldSize", "totalSteps")
    told = ",".join(f'"{name}":{value}' for name in names if name != "attempt")
    run = run_of(f'{{{TIME},"attempt":1,"step":151,{told}}}')
    found = whole(run)

    assert run.left_out == 0
    assert found.steps_per_second == Spread(10.0, 0.0)
    assert found.examples_per_second == Spread(100.0)
    assert found.restarts == 0


def test_a_loss_that_diverged_leaves_the_rates() -> None:
    lines = [*GOOD[:2], GOOD[2] | {"loss": float("nan")}, GOOD[3] | {"loss": float("inf")}]
    found = summarise(Run("run", read_metrics(content(lines)).rows))

    assert found.examples_per_second == Spread(100.0, 0.0)
    assert [loss for start in found.starts for _, loss in start.losses()] == [2.0]


def test_pictures_are_drawn_of_times_that_go_back() -> None:
    pytest.importorskip("matplotlib")
    lines = [line("train", 100, 1), line("train", 50, 2), line("train", 20, 3, loss=1.0)]
    report = make_report([Run("run", read_metrics(content(lines)).rows)])

    assert set(pictures_of(report)) == {"time-and-accuracy.png", "over-time.png"}


NUMBERS = st.one_of(st.integers(), st.floats(), st.booleans(), st.none(), st.text(max_size=3))
NAMES = ("examples", "examplesPerSecond", "loss", "accuracy", "attempt", "worldSize", "totalSteps", "ranks")


@st.composite
def rows(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(["start", "train", "train", "test", "end", None]))
    values = draw(st.dictionaries(st.sampled_from([*NAMES, "batchSize", "workers", "model"]), NUMBERS))
    step = draw(st.integers(0, 300) | NUMBERS)
    return line("train", draw(st.floats(-10, 1e6)), 0) | values | {"kind": kind, "step": step}


@settings(max_examples=60, deadline=None)
@given(st.lists(rows(), max_size=6))
def test_a_report_is_made_of_whatever_lines(lines: list[dict[str, Any]]) -> None:
    whole(run_of(*map(json.dumps, lines)))
