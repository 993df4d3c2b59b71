"""A run as one HTML file: what it tells, what it hides, and values that no drawing expects."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtj.api.masking import MASK, masked, masked_words
from dtj.api.status import Failure, JobStatus, Phase
from dtj.report.pictures import pictures_of
from dtj.report.report import make_report
from dtj.report.run import Run, read_metrics
from dtj.report.run_page import drawing, run_page
from dtj.views.runs import file_name, page_of
from tests.unit.report.test_documents import Page
from tests.unit.support.jobs import manifest
from tests.unit.support.training_runs import content, even_run, line

HOSTILE = "<img src=x onerror=alert(1)>\x00\x1b[2J"
SAVED = datetime(2026, 11, 25, tzinfo=UTC)


def test_a_page_tells_state_failure_curves_options_and_yaml() -> None:
    job = manifest(
        "mnist", args=["--lr=0.1", f"--note={HOSTILE}"], env=[{"name": "API_TOKEN", "value": "s3cret"}]
    )
    failure = Failure(
        failure_class="OutOfMemory", pod=HOSTILE, message="too little", last_log_lines=[HOSTILE]
    )
    status = JobStatus(phase=Phase.FAILED, failure=failure, attempt=2)
    rows = [line("train", at, at, loss=1 / at, attempt=1 + at // 6, **{HOSTILE: at}) for at in range(1, 11)]
    run = Run(HOSTILE, read_metrics(content(rows)).rows, job=job, status=status)
    text = run_page(run, "The job failed", SAVED)

    page = Page(re.sub(r"<(polyline|line|circle)([^>]*)/>", "", text))
    assert (page.open, page.references) == ([], [])
    assert not re.search(r"https?:|url\(|@import|<script|<img|\x00|\x1b|s3cret", text)
    assert "Failed. The job failed" in text
    assert "OutOfMemory: &lt;img src=x" in text
    assert "restarts, at step 6." in text
    assert page.tags.count("svg") == 4, "two drawings, and a key in the table of each"
    assert '<th scope="row">--lr</th><td>0.1</td>' in text
    assert f"value: {MASK}" in text
    assert text == run_page(run, "The job failed", SAVED)


def test_a_run_that_left_next_to_nothing_has_a_page() -> None:
    text = page_of(Run("empty", []))
    assert "no record of its end" in text
    assert "There are no metrics of the program." in text


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--api-key=k", "--lr=1"], ["--api-key=(hidden)", "--lr=1"]),
        (["--hf-token", "k", "x"], ["--hf-token", "(hidden)", "x"]),
        (["--use-token", "--lr", "1"], ["--use-token", "--lr", "1"]),
        (["--max-tokens=512", "--pad-token=<pad>", "--num-tokens", "3"], None),
        (["sh", "-c", "WANDB_API_KEY=k python t.py --password 'a b' --lr 1"], None),
        (["--url=https://user:k@host/x"], ["--url=https://user:(hidden)@host/x"]),
        ([1, None], [1, None]),
    ],
)
def test_options_that_look_secret_have_no_value(words: list[Any], shown: list[Any] | None) -> None:
    if words[0] == "sh":
        shown = ["sh", "-c", "WANDB_API_KEY=(hidden) python t.py --password (hidden) --lr 1"]
    assert masked_words(words) == (words if shown is None else shown)


def test_long_words_are_masked_in_one_pass() -> None:
    # Were the time of a search quadratic in the letters, these would take hours.
    words = ["a" * 200_000, "token" * 40_000, "--token " * 20_000, "x://" * 50_000, "--token" + " " * 200_000]
    assert len(masked_words(words)) == len(words)


def test_passwords_in_urls_are_hidden_anywhere() -> None:
    job = manifest("m", env=[{"name": "BROKER", "value": "amqp://me:s3cret@host"}])
    assert "s3cret" not in str(masked(job))


EXTREMES = st.floats(-1e15, 1e15) | st.sampled_from([0.0, 5e-324, -5e-324, 1e15, 1e-300, 1e15 - 0.125])


@given(st.lists(st.tuples(st.integers(0, 10**15), EXTREMES), min_size=1, max_size=20))
def test_any_numbers_can_be_drawn(values: list[tuple[int, float]]) -> None:
    picture = drawing(
        "x", {"a": [(step, value, 0.0) for step, value in values]}, [step for step, _ in values]
    )
    assert not re.search(r"nan|inf", picture)
    places = [float(number) for number in re.findall(r' (?:[xy][12]?|c[xy])="([^"]*)"', picture)]
    assert all(-1 <= place <= 601 for place in places)
    assert picture.count("<text") <= 30


def test_names_that_are_formulas_or_half_a_character_are_drawn() -> None:
    rows = content([line("start", 0, 0, model="$\\frac$", data="x"), line("train", 1, 1, loss=1)])
    half = json.dumps({"kind": "\ud800", "time": "2026-11-21T12:00:00Z", "step": 2, "x": 1}).encode()
    read = read_metrics(rows + half)
    assert [row.kind for row in read.rows] == ["start", "train", "?"]
    assert len(pictures_of(make_report([Run("a$\\x$", read.rows), even_run("b", 10, model="$^$")]))) == 2


def test_names_of_files_are_names() -> None:
    assert file_name("ml/mnist (2)") == "run-ml-mnist (2).html"
    assert file_name("../../x\x00") == "run-..-..-x-.html"
    assert len(file_name("x" * 500)) < 200
