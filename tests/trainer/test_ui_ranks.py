"""What `dtj ui` says of each rank: utilisation and presence over time, stacks, in the API and in a real Chromium."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from tests.browser import inaccessible, overflow, visiting
from tests.trainer.conftest import ObjectStore
from tests.trainer.ui_jobs import HOSTILE, Ui, add, served
from tests.trainer.ui_ranks import STUCK, WAITING, fill_past, fill_stalled

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

JOB = "/api/v1/jobs/ml/stalled"


@pytest.fixture(scope="module")
def ui(tmp_path_factory: pytest.TempPathFactory, running_object_store: ObjectStore) -> Iterator[Ui]:
    with served(tmp_path_factory.mktemp("ui"), running_object_store, empty=True) as running:
        fill_stalled(running, running_object_store.environment)
        fill_past(running, running_object_store.environment)
        add(running.cluster, "fresh", "Running", [("Running", "True", "")])
        yield running


def by_rank(answer: Any) -> dict[str, Any]:
    return {row["rank"]: row for row in answer["rows"]}


def test_the_rank_that_hangs_is_named(ui: Ui) -> None:
    found = ui(f"{JOB}/utilisation").json
    rows = by_rank(found)
    assert list(rows) == ["0", "1", "2", "3", HOSTILE]
    assert {rank: row["remark"] for rank, row in rows.items() if row["remark"]} == {"3": "idle"}
    assert found["findings"][0].startswith("rank 3: 0.02 processors, the others 1.")
    assert found["findings"][1] == "rank 3: 0% of its GPUs, the others 93% (it may hang or wait)"
    assert [each["attempt"] for each in rows["3"]["stays"]] == [1, 2]
    assert (rows["3"]["latelyCores"], rows["3"]["latelyMemory"]) == (0.02, 1_480_000_000)


def test_the_strip_shows_when_a_rank_was_there(ui: Ui) -> None:
    found = ui(f"{JOB}/utilisation").json
    rows = by_rank(found)
    cells = len(rows["3"]["present"])
    assert cells <= 120
    # Attempt 1 ends at 12:10, and attempt 2 begins a minute later.
    begin, end = (int(seconds / found["cellSeconds"]) for seconds in (610, 650))
    assert not any(rows["3"]["present"][begin + 1 : end])
    assert rows["3"]["cores"][cells - 1] == 0.02
    assert rows["0"]["cores"][cells - 1] > 1
    assert found["attempts"][1]["time"] - found["attempts"][0]["time"] == 660


def test_the_curves_of_the_ranks_that_are_asked_for(ui: Ui) -> None:
    measures = {each["name"]: each for each in ui(f"{JOB}/utilisation").json["measures"]}
    assert list(measures) == [
        "Processors",
        "GPUs",
        "Memory",
        "GPU memory",
        "Read from disks",
        "Written to disks",
    ]
    assert [curve["rank"] for curve in measures["Memory"]["curves"]] == ["0", "1", "2", "3", HOSTILE]
    assert measures["Read from disks"]["curves"][0]["values"][0] == 600_000
    asked = ui(f"{JOB}/utilisation?ranks=3,%200,17").json
    assert [curve["rank"] for curve in asked["measures"][0]["curves"]] == ["0", "3"]
    assert asked["curvesLeftOut"] == 3


def test_lines_that_are_no_samples_are_counted(ui: Ui) -> None:
    found = ui(f"{JOB}/utilisation").json
    assert (found["linesLeftOut"], found["filesUnread"]) == (4, 0)


def test_a_job_without_samples_has_an_empty_answer(ui: Ui) -> None:
    found = ui("/api/v1/jobs/ml/fresh/utilisation").json
    assert (found["began"], found["ranks"], found["rows"], found["findings"]) == (None, 0, [], [])
    assert ui("/api/v1/jobs/ml/fresh/stacks").json == {"dumps": [], "files": 0, "leftOut": 0}


def test_stacks_say_who_stands_elsewhere(ui: Ui) -> None:
    found = ui(f"{JOB}/stacks").json
    newest, oldest = found["dumps"]
    assert newest["groups"] == [
        {"where": STUCK, "ranks": ["3"]},
        {"where": WAITING, "ranks": ["0", "1", "2"]},
    ]
    assert (newest["files"][3]["calledFrom"], newest["files"][3]["time"]) == (
        "train (train.py:48)",
        "2026-11-21T12:25:00+00:00",
    )
    assert (oldest["attempt"], oldest["groups"]) == (1, [{"where": None, "ranks": ["0"]}])
    only = ui(f"{JOB}/stacks?search=LOAD_batch").json
    assert [[file["rank"] for file in dump["files"]] for dump in only["dumps"]] == [["3"]]


def test_the_text_of_stacks_and_of_nothing_else(ui: Ui) -> None:
    found = ui(f"{JOB}/stacks/2/stacks-3-1.txt").json
    assert STUCK in found["text"]
    assert found["cut"] is False
    for path in ("2/stacks-9-1.txt", "2/launcher-0.log", "2/..%2F..%2Fmetrics.jsonl", "-1/stacks-3-1.txt"):
        assert ui(f"{JOB}/stacks/{path}").status == 404, path


def test_past_jobs_have_ranks_and_stacks(ui: Ui) -> None:
    (past,) = ui("/api/v1/past").json
    job, asked = "/api/v1/jobs/ml/gone", f"?uid={past['uid']}"
    rows = by_rank(ui(f"{job}/utilisation{asked}").json)
    assert (rows["1"]["remark"], rows["1"]["stepSeconds"], rows["3"]["remark"]) == ("slow", 1.2, "idle")
    assert ui(f"{job}/stacks{asked}").json["dumps"][0]["groups"] == [{"where": STUCK, "ranks": ["3"]}]


def test_the_api_describes_them(ui: Ui) -> None:
    schemas = ui("/api/v1/openapi.json").json["components"]["schemas"]
    assert {"UtilisationAnswer", "RankRow", "StacksAnswer", "StackText"} <= schemas.keys()


def open_job(page: Page, name: str) -> None:
    page.get_by_role("link", name=name, exact=True).click()
    page.get_by_role("heading", name=name, exact=True, level=1).wait_for()


def strip_of(page: Page, rank: str) -> Locator:
    return page.get_by_role("region", name="Ranks over time").get_by_role("row", name=rank)


def test_is_it_slow_or_stuck_and_which_rank(browser: Browser, ui: Ui) -> None:
    with visiting(browser, ui.address) as visit:
        page = visit.page
        open_job(page, "stalled")
        findings = page.get_by_role("list", name="Ranks that differ")
        findings.get_by_text("rank 3: 0.02 processors").wait_for()
        assert "the step has stayed at 90 for 300 s" in findings.inner_text()
        row = strip_of(page, "rank 3")
        assert "▼ idle" in row.inner_text()
        drawn = row.get_by_role("img").get_attribute("aria-label")
        assert drawn == (
            "rank 3: attempt 1 from 12:00:00 to 12:10:00 in worker-3, "
            "attempt 2 from 12:11:00 to 12:25:00 in worker-3"
        )
        # The stacks of a stalled job stand open.
        page.get_by_text(f"rank 3 stands in {STUCK}").wait_for()
        assert page.get_by_text(f"ranks 0–2 stand in {WAITING}").is_visible()
        page.get_by_role("button", name="Show the stacks of rank 3").click()
        assert HOSTILE in page.locator("pre.stack").inner_text()
        page.get_by_text("dtj artifacts cp stalled logs/attempt-2/stacks-3-1.txt - -n ml").wait_for()


def test_the_strip_tells_a_time_and_the_gpus(browser: Browser, ui: Ui) -> None:
    with visiting(browser, ui.address) as visit:
        open_job(visit.page, "stalled")
        visit.page.get_by_text(f"rank 3 stands in {STUCK}").wait_for()  # Nothing moves any more.
        strip = strip_of(visit.page, "rank 3").get_by_role("img")
        box = strip.bounding_box()
        assert box
        strip.hover(position={"x": box["width"] - 3, "y": 5})
        visit.page.get_by_text(re.compile("rank 3, 12:24:..: 0.02 processors")).wait_for()
        strip.hover(position={"x": box["width"] * 10.5 / 25, "y": 5})
        visit.page.get_by_text(": not there").wait_for()
        visit.page.mouse.move(0, 0)
        visit.page.locator(".strips select").select_option("GPUs")
        visit.page.get_by_text("a full bar is 100 % GPUs").wait_for()


def test_the_curves_of_two_ranks(browser: Browser, ui: Ui) -> None:
    with visiting(browser, ui.address) as visit:
        page = visit.page
        open_job(page, "stalled")
        page.get_by_text("Utilisation of each rank", exact=True).click()
        page.get_by_role("heading", name="Read from disks").wait_for()
        memory = page.get_by_role("region", name="Values of Memory", exact=True)
        assert memory.locator("tbody tr").count() == 5
        page.get_by_label("Ranks", exact=True).fill("3, 0")
        page.get_by_role("button", name="Draw").click()
        page.get_by_text("Curves of 2 of 5 ranks.").wait_for()
        assert memory.locator("tbody th").all_inner_texts() == ["rank 0", "rank 3"]
        assert "1.38 GiB" in memory.inner_text()


def test_a_past_job_has_the_same(browser: Browser, ui: Ui) -> None:
    with visiting(browser, ui.address) as visit:
        visit.page.get_by_label("Past jobs").check()
        open_job(visit.page, "gone")
        visit.page.get_by_role("list", name="Ranks that differ").get_by_text(
            "rank 1: a step takes 1.2 s"
        ).wait_for()
        visit.page.get_by_text("Stacks", exact=True).click()
        visit.page.get_by_text(f"rank 3 stands in {STUCK}").wait_for()


def test_everybody_can_see_the_ranks(browser: Browser, ui: Ui) -> None:
    with visiting(browser, f"{ui.address}") as visit:
        page = visit.page
        for name, sign in (("fresh", "There are no samples"), ("stalled", "rank 3 stands in")):
            page.goto(f"{ui.origin}/#/jobs/ml%2F{name}")
            page.get_by_text(sign).wait_for()
        page.get_by_text("▼ idle").wait_for()
        page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
        page.get_by_role("button", name="Show the stacks of rank 0, Attempt 2").click()
        page.locator("pre.stack").wait_for()
        page.wait_for_load_state("networkidle")
        assert inaccessible(page) == []
        page.set_viewport_size({"width": 400, "height": 800})
        assert overflow(page) <= 0
