"""What the page of `dtj ui` has for many jobs and for curves, in a real Chromium.

* totals, groups, pages of 50 rows, and the reason below a name
* zoom with its way back, the log scale, the x axis over steps, time and epochs
* a run's colour after the page was loaded again; a bucket that can't be read spoils one row
* the jobs of `dtj run`
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from tests import ui_program
from tests.browser import inaccessible, overflow, visiting
from tests.trainer.conftest import ObjectStore, until
from tests.trainer.drawn_axes import RECORD
from tests.trainer.ui_jobs import Ui, served
from tests.unit.support.jobs import manifest

from dtj.local.runs import Runs

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

REASON = "0/30 nodes are available: 12 Insufficient nvidia.com/gpu"
KINDS = (
    ("Running", "Running", None),
    ("Running", "Stalled", "no step was reported for 14 min"),
    ("Pending", "Unschedulable", REASON),
    ("Failed", "OutOfMemory", "too little memory"),
    ("Succeeded", "Succeeded", None),
    ("Pending", "Pending", None),
)
JOBS = [
    {
        "namespace": "ml", "name": f"job-{n:03}", "uid": f"uid-{n}", "phase": phase, "state": state,
        "reason": reason, "gpus": 8, "sentence": "x", "strategy": "Horovod", "workers": 1, "attempt": 1,
        "restarts": 0, "created": "2026-11-21T12:00:00Z", "ended": None, "suspended": False,
        "arguments": {"lr": str(n % 3)}, "progress": {"stepsPerSecond": 2.5}, "past": False,
    }
    for n in range(120)
    for phase, state, reason in [KINDS[n % len(KINDS)]]
]  # fmt: skip
STEPS = list(range(0, 1000, 10))
BEGAN = 1_790_000_000.0
CURVES = {
    "curves": [
        {
            "name": f"train {measure}",
            "steps": STEPS,
            "values": [1e3 * 10 ** (-step / 200) for step in STEPS],
            "times": [BEGAN + 6 * step for step in STEPS],
        }
        for measure in ("loss", "gradientNorm")
    ],
    "restarts": [],
    "started": BEGAN,
    "leftOut": 0,
    "epochs": [[0, 0], [1000, 5]],
}


@pytest.fixture(scope="module")
def ui(tmp_path_factory: pytest.TempPathFactory, running_object_store: ObjectStore) -> Iterator[Ui]:
    with served(tmp_path_factory.mktemp("ui"), running_object_store) as running:
        yield running


def many(page: Page) -> None:
    page.route("**/api/v1/jobs?*", lambda route: route.fulfill(json=JOBS))


def curves(page: Page) -> None:
    page.add_init_script(RECORD)
    page.route("**/curves*", lambda route: route.fulfill(json=CURVES))


def total(page: Page, word: str) -> Locator:
    return page.get_by_role("group", name="Totals").get_by_role("button", name=re.compile(rf"{word}$"))


def test_totals_of_many_jobs_choose_among_them(browser: Browser, ui: Ui) -> None:
    with visiting(browser, ui.address, before=many) as visit:
        page, rows = visit.page, visit.page.locator("tbody tr")
        total(page, "jobs").wait_for()
        shown = {word: total(page, word).inner_text().split()[0] for word in ("running", "trouble", "queued")}
        assert shown == {"running": "20", "trouble": "40", "queued": "20"}
        # Those of running jobs, stalled ones too.
        assert total(page, "GPUs in use").inner_text() == "320 GPUs in use"
        total(page, "in trouble").click()
        assert rows.count() == 40
        states = {rows.nth(n).locator(".state").inner_text() for n in range(4)}
        assert states == {"⚠ Stalled", "⚠ Unschedulable"}
        unschedulable = rows.filter(has_text="Unschedulable").first
        assert unschedulable.locator(".reason").inner_text() == REASON
        assert "2.5 step/s" in unschedulable.inner_text()
        total(page, "in trouble").click()
        assert rows.count() == 50


def test_many_jobs_have_pages_and_groups(browser: Browser, ui: Ui) -> None:
    with visiting(browser, ui.address, before=many) as visit:
        page, names = visit.page, visit.page.locator("tbody th a")
        turn = page.get_by_role("navigation", name="Pages of jobs")
        turn.get_by_text("1–50 of 120").wait_for()
        turn.get_by_role("button", name="Next").click()
        turn.get_by_role("button", name="Next").click()
        turn.get_by_text("101–120 of 120").wait_for()
        assert turn.get_by_role("button", name="Next").is_disabled()
        assert names.all_inner_texts() == [f"job-{n}" for n in range(100, 120)]
        page.get_by_label("Group by").select_option("State")
        turn.get_by_text("1–50 of 120").wait_for()
        heads = page.locator("tr.group").all_inner_texts()
        assert [" ".join(head.split()) for head in heads] == [
            "▾ State OutOfMemory (20)", "▾ State Pending (20)", "▾ State Running (20)",
        ]  # fmt: skip
        page.get_by_role("button", name="State OutOfMemory").click()
        turn.get_by_text("1–50 of 100").wait_for()
        assert page.get_by_role("button", name="State OutOfMemory").get_attribute("aria-expanded") == "false"
        page.get_by_label("Filter").fill("insufficient gpu")
        until(lambda: (names.count(), turn.count()) == (20, 0), "only those that fit are shown")


def texts(page: Page, *, across: bool) -> list[float]:
    """The numbers along an axis of the first drawing."""
    drawn = page.locator(".plot canvas").first.evaluate("canvas => onCanvas(canvas)")["texts"]
    return [
        float(each["text"].replace(",", "")) for each in drawn if each["across"] is across and each["text"]
    ]


def drag(page: Page) -> None:
    """Choose the middle of the first drawing."""
    place = page.locator(".plot .u-over").first.bounding_box()
    assert place
    middle = place["y"] + place["height"] / 2
    page.mouse.move(place["x"] + 0.4 * place["width"], middle)
    page.mouse.down()
    page.mouse.move(place["x"] + 0.6 * place["width"], middle, steps=4)
    page.mouse.up()


def test_a_part_of_the_curves_is_looked_at_and_all_again(browser: Browser, ui: Ui) -> None:
    with visiting(browser, ui.address, before=curves) as visit:
        page = visit.page
        page.goto(f"{ui.origin}/#/jobs/ml%2Frunning")
        page.locator(".plot canvas").nth(1).wait_for()
        whole = page.get_by_role("button", name="Whole range")
        until(lambda: max(texts(page, across=True)) > 800, "all is drawn")
        over = page.locator(".plot .u-over").first
        for back in (
            whole.click,
            over.dblclick,
            lambda: page.locator(".drawing").first.press("Escape"),
        ):
            assert whole.is_disabled()
            drag(page)
            until(lambda: max(texts(page, across=True)) < 700, "a part is drawn")
            back()
            until(lambda: max(texts(page, across=True)) > 800, "all is drawn again")


def test_curves_have_a_log_scale_and_three_axes(browser: Browser, ui: Ui) -> None:
    with visiting(browser, ui.address, before=curves) as visit:
        page = visit.page
        page.goto(f"{ui.origin}/#/jobs/ml%2Frunning")
        until(lambda: page.locator(".plot canvas").count() == 2, "the curves are drawn")
        assert min(texts(page, across=False)) == 0
        page.get_by_label("Log scale").check()
        until(lambda: {0.1, 100} <= {*texts(page, across=False)}, "the axis has powers of ten")
        values = page.get_by_role("region", name="Values of loss")
        for axis, head, last in (
            ("step", "Step", "990"),
            ("time", "Minute", "99"),
            ("epoch", "Epoch", "4.95"),
        ):
            page.get_by_role("combobox", name="Over").select_option(axis)
            values.get_by_role("columnheader", name=head).wait_for()
            assert values.locator("td").first.inner_text() == last


def test_a_run_keeps_its_colour(browser: Browser, ui: Ui) -> None:
    with visiting(browser, ui.address) as visit:
        page, swatches = visit.page, visit.page.locator("[aria-label='Compared jobs'] tr:has(.swatch)")

        def colours(*names: str) -> dict[str, str | None]:
            page.goto(f"{ui.origin}/#/compare/" + "/".join(f"ml%2F{name}" for name in names))
            page.reload()
            until(lambda: swatches.count() == len(names), "the jobs are there")
            return {
                each.locator("a").inner_text(): each.locator(".swatch").get_attribute("class")
                for each in swatches.all()
            }

        first = colours("running", "succeeded")
        later = colours("failed", "succeeded", "running")
        assert {name: later[name] for name in first} == first
        assert len({*later.values()}) == 3


def test_a_bucket_that_can_not_be_read_spoils_one_row(browser: Browser, ui: Ui) -> None:
    made = manifest("elsewhere", artifacts={"uri": "s3://other/jobs"})
    ui.cluster.cluster.add(made)
    ui.cluster.set_status("elsewhere", phase="Running", attempt=1, artifacts={"uri": "s3://other/jobs/x"})
    with visiting(browser, ui.address) as visit:
        page = visit.page
        page.goto(f"{ui.origin}/#/compare/ml%2Frunning/ml%2Felsewhere/ml%2Fsucceeded")
        table = page.get_by_role("region", name="Compared jobs")
        spoilt = table.get_by_role("row").filter(has_text="ml/elsewhere")
        spoilt.get_by_role("alert").filter(has_text="the bucket other does not exist").wait_for()
        until(lambda: page.locator(".plot canvas").count() == 3, "the curves of the others are drawn")
        assert spoilt.locator("td").all_inner_texts()[::2] == ["▶ Running", "–"]
        for name, took in (("running", "1m57s"), ("succeeded", "1s")):
            assert took in table.get_by_role("row").filter(has_text=f"ml/{name}").inner_text()


def test_runs_of_this_machine(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("machine")
    run = Runs(folder / "home").run("mine", "default")
    (run.folder / "worker-0").mkdir(parents=True)
    (run.folder / "worker-0/output.log").write_text("step 1\n")
    status: dict[str, Any] = {"phase": "Running", "attempt": 1, "progress": {"step": 3, "totalSteps": 4}}
    made = manifest("mine", strategy="TorchDistributed")
    made["metadata"]["namespace"] = "default"
    run.write(made | {"status": status})
    own = {**os.environ, "DTJ_HOME": str(folder / "home"), "KUBECONFIG": str(folder / "none")}
    with ui_program.running(folder, own, "--local") as address, visiting(browser, address) as visit:
        page = visit.page
        page.get_by_text("runs of this machine").wait_for()
        page.get_by_role("link", name="mine").click()
        page.locator(".sentence").filter(has_text="step 3/4").wait_for()
        page.get_by_text("no process carries out this run").wait_for()
        page.get_by_text("Output", exact=True).click()
        page.locator("pre.output").filter(has_text="step 1").wait_for()
        # Ctrl-C ends a run: the page has no buttons for that.
        assert page.get_by_role("button", name=re.compile("Suspend|Delete|Scale")).count() == 0


@pytest.mark.parametrize("width", [400, 800, 1400])
def test_everybody_can_use_the_tools_at_any_width(browser: Browser, ui: Ui, width: int) -> None:
    def prepare(page: Page) -> None:
        many(page)
        curves(page)

    with visiting(browser, ui.address, width=width, before=prepare) as visit:
        for route in ("#/", "#/jobs/ml%2Frunning", "#/compare/ml%2Frunning/ml%2Fsucceeded"):
            visit.page.goto(f"{ui.origin}/{route}")
            visit.page.locator("main :is(tbody .state, .plot canvas)").first.wait_for()
            visit.page.wait_for_load_state("networkidle")
            assert inaccessible(visit.page) == [], route
            assert overflow(visit.page) <= 0, route
