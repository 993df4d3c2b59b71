"""The page of `dtj ui` in a real Chromium.

* the questions of a person, each in at most three clicks from the first screen
* actions, each asked once beside its command
* jobs of the past
* the axes of the curves, here and in a saved page
* hostile text, the policy, axe-core on every route in both themes, a narrow window
* a server that has ended, and a page without the token
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.browser import inaccessible, overflow, visiting
from tests.trainer.conftest import ObjectStore, until
from tests.trainer.drawn_axes import RECORD, SERIES, STEPS, check
from tests.trainer.ui_jobs import HOSTILE, Ui, served
from tests.unit.support.training_runs import content, line

from dtj.report.run import Run, read_metrics
from dtj.views.runs import page_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page, Route


@pytest.fixture(scope="module")
def ui(tmp_path_factory: pytest.TempPathFactory, running_object_store: ObjectStore) -> Iterator[Ui]:
    with served(tmp_path_factory.mktemp("ui"), running_object_store) as running:
        yield running


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory, running_object_store: ObjectStore) -> Iterator[Ui]:
    with served(tmp_path_factory.mktemp("empty"), running_object_store, empty=True) as running:
        yield running


def open_job(page: Page, name: str) -> None:
    page.get_by_role("link", name=name, exact=True).click()
    page.get_by_role("heading", name=name, exact=True, level=1).wait_for()
    page.locator(".sentence").wait_for()


def test_why_did_it_die(browser: Browser, ui: Ui) -> None:
    with visiting(browser, ui.address) as visit:
        open_job(visit.page, "failed")
        failure = visit.page.locator(".failure")
        assert (
            "OutOfMemory: failed-worker-1: node-2: the container had too little memory"
            in failure.inner_text()
        )
        assert HOSTILE in failure.locator("pre").inner_text()


def test_which_was_the_fastest_and_what_differs(browser: Browser, ui: Ui) -> None:
    with visiting(browser, ui.address) as visit:
        visit.page.get_by_label("Select running").check()
        visit.page.get_by_label("Select succeeded").check()
        visit.page.get_by_role("link", name="Compare 2 jobs").click()
        table = visit.page.get_by_role("region", name="Compared jobs")
        table.get_by_text("1m57s").wait_for()
        table.get_by_text("1s", exact=True).wait_for()
        assert table.locator("tbody a").all_inner_texts() == ["ml/succeeded", "ml/running"]
        differing = visit.page.get_by_role("region", name="What differs").inner_text()
        assert re.search(r"--note\s+(running\s+succeeded|succeeded\s+running)", differing)
        until(lambda: visit.page.locator(".plot canvas").count() == 3, "the curves are drawn")


def test_where_is_my_model(browser: Browser, ui: Ui) -> None:
    with visiting(browser, ui.address) as visit:
        open_job(visit.page, "succeeded")
        visit.page.get_by_text("dtj serve succeeded -n ml").wait_for()


def test_make_it_go_on(browser: Browser, ui: Ui) -> None:
    with visiting(browser, ui.address) as visit:
        open_job(visit.page, "suspended")
        visit.page.get_by_role("button", name="Resume").click()
        dialog = visit.page.get_by_role("dialog")
        assert "dtj resume suspended -n ml" in dialog.inner_text()
        assert ui.cluster.jobs["suspended"]["spec"]["runPolicy"]["suspend"] is True
        uid = ui.cluster.jobs["suspended"]["metadata"]["uid"]
        with visit.page.expect_request(f"**/jobs/ml/suspended/resume?uid={uid}"):
            dialog.get_by_role("button", name="Resume", exact=True).click()
        visit.page.get_by_role("status").filter(has_text="suspended is being resumed").wait_for()
        assert ui.cluster.jobs["suspended"]["spec"]["runPolicy"]["suspend"] is False
        visit.page.get_by_role("button", name="Suspend").click()
        dialog.get_by_role("button", name="Cancel").click()
        assert ui.cluster.jobs["suspended"]["spec"]["runPolicy"]["suspend"] is False
    assert ui("/api/v1/jobs/ml/suspended/suspend", "POST").status == 200


def test_start_one_like_it_with_four_workers(browser: Browser, ui: Ui) -> None:
    with visiting(browser, ui.address) as visit:
        open_job(visit.page, "succeeded")
        visit.page.get_by_role("link", name="Run again").click()
        file = visit.page.get_by_label("Job file")
        until(lambda: "succeeded-2" in file.input_value(), "the job file is there")
        visit.page.get_by_text(re.compile("^Line ")).wait_for()  # The hidden value.
        create = visit.page.get_by_role("button", name="Create")
        until(create.is_disabled, "a hidden value can't be created")
        text = file.input_value().replace("(hidden)", "mine").replace("replicas: 2", "replicas: 4")
        file.fill(text)
        visit.page.get_by_text("succeeded-2 is valid: Horovod with 5 pods").wait_for()
        create.click()
        visit.page.get_by_role("heading", name="succeeded-2", level=1).wait_for()
        made = ui.cluster.jobs["succeeded-2"]["spec"]
        assert made["replicaSpecs"]["worker"]["replicas"] == 4
        visit.page.get_by_role("button", name="Delete", exact=True).click()
        visit.page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
        until(lambda: "succeeded-2" not in ui.cluster.jobs, "the job is deleted")
        visit.page.get_by_text("there is no job succeeded-2").wait_for()


def test_is_it_slow_or_stuck(browser: Browser, ui: Ui) -> None:
    with visiting(browser, ui.address) as visit:
        open_job(visit.page, "running")
        assert "step 120/200" in visit.page.locator(".sentence").inner_text()
        visit.page.get_by_role("heading", name="loss").wait_for()
        assert "Dashed vertical lines: restarts, at steps 60, 120." in visit.page.locator("main").inner_text()
        charts = visit.page.locator(".drawing:has(canvas)")
        until(lambda: charts.count() == 3, "the curves are drawn")
        charts.first.focus()
        visit.page.keyboard.press("ArrowRight")
        visit.page.keyboard.press("ArrowRight")
        for measure, value in (("loss", "1"), ("examplesPerSecond", "102")):
            table = visit.page.get_by_role("region", name=f"Values of {measure}", exact=True)
            table.get_by_role("columnheader", name="Here").wait_for()
            assert table.locator("tbody td").all_inner_texts()[:2] == ["2", value]
        pods = visit.page.get_by_role("region", name="Pods").inner_text()
        assert re.search(r"running-worker-1\s+1\s+node-1\s+Running", pods)


def test_a_fault_of_a_job_file_leads_to_its_line(browser: Browser, ui: Ui) -> None:
    with visiting(browser, f"{ui.address}") as visit:
        visit.page.get_by_role("link", name="New job").click()
        file = visit.page.get_by_label("Job file")
        visit.page.get_by_text("training is valid: Horovod").wait_for()
        visit.page.get_by_label("Template").select_option("TorchDistributed")
        visit.page.get_by_text("training is valid: TorchDistributed").wait_for()
        text = file.input_value()
        file.fill(text.replace("strategy: TorchDistributed", "strategy: Ring"))
        visit.page.get_by_text("spec.strategy", exact=True).wait_for()
        visit.page.get_by_role("button", name=re.compile("^Line ")).first.click()
        selected = file.evaluate("area => area.value.slice(area.selectionStart, area.selectionEnd)")
        assert selected.strip().startswith("strategy: Ring")


def test_a_late_answer_to_an_earlier_text_does_not_count(browser: Browser, ui: Ui) -> None:
    validate = "**/api/v1/validate"
    held: list[Route] = []

    def hold(route: Route) -> None:
        if "strategy: Ring" in (route.request.post_data or ""):
            held.append(route)
        else:
            route.continue_()

    with visiting(browser, ui.address) as visit:
        page = visit.page
        page.get_by_role("link", name="New job").click()
        page.get_by_text("training is valid: Horovod").wait_for()
        file = page.get_by_label("Job file")
        text = file.input_value()
        page.route(validate, hold)
        with page.expect_request(validate):
            file.fill(text.replace("strategy: Horovod", "strategy: Ring"))
        file.fill(text.replace("name: training", "name: other"))
        page.get_by_text("other is valid: Horovod").wait_for()
        with page.expect_response(validate):
            held[0].continue_()
        page.evaluate("new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
        assert page.get_by_text("other is valid: Horovod").is_visible()
        assert page.get_by_role("button", name="Create").is_enabled()


def test_columns_filter_and_order(browser: Browser, ui: Ui) -> None:
    with visiting(browser, ui.address) as visit:
        names = visit.page.locator("tbody th a")
        names.first.wait_for()
        visit.page.get_by_text("Columns", exact=True).click()
        visit.page.get_by_role("checkbox", name="--note").check()
        visit.page.get_by_role("button", name="--note").click()
        assert names.all_inner_texts() == ["failed", "running", "succeeded", "suspended", "unschedulable"]
        visit.page.get_by_role("button", name="Accuracy").click()
        assert names.all_inner_texts()[:2] == ["running", "succeeded"]
        visit.page.get_by_role("button", name=re.compile("^Accuracy")).click()
        assert names.all_inner_texts()[:2] == ["succeeded", "running"]
        visit.page.get_by_label("Filter").fill("insufficient gpu")
        assert names.all_inner_texts() == ["unschedulable"]
        visit.page.get_by_label("Filter").fill("nothing like this")
        assert visit.page.get_by_text("No job fits the filter.").is_visible()
        visit.page.reload()
        visit.page.get_by_role("columnheader", name="--note").wait_for()


def test_a_job_of_the_past(browser: Browser, ui: Ui) -> None:
    with visiting(browser, ui.address) as visit:
        visit.page.get_by_label("Past jobs").check()
        visit.page.get_by_role("link", name="gone", exact=True).click()
        failure = visit.page.locator(".failure")
        failure.wait_for()
        assert "ValueError: loss is nan" in failure.inner_text()
        assert "read from the bucket" in visit.page.locator("main").inner_text()
        assert visit.page.get_by_role("button", name="Delete").count() == 0
        visit.page.get_by_role("link", name="Run again").click()
        file = visit.page.get_by_label("Job file")
        until(lambda: "name: gone-2" in file.input_value(), "the job file is there")


def test_hostile_output_is_text(browser: Browser, ui: Ui) -> None:
    with visiting(browser, ui.address) as visit:
        open_job(visit.page, "succeeded")
        visit.page.get_by_text("Output", exact=True).click()
        output = visit.page.locator("pre.output")
        output.wait_for()
        assert f"[rank 1] {HOSTILE}" in output.inner_text()
        visit.page.get_by_label("Search").fill("no such text")
        visit.page.get_by_text("No line has this text.").wait_for()


def test_a_file_is_saved(browser: Browser, ui: Ui, tmp_path: Path) -> None:
    with visiting(browser, ui.address) as visit:
        open_job(visit.page, "running")
        visit.page.get_by_text("Files in the bucket", exact=True).click()
        with visit.page.expect_download() as download:
            visit.page.get_by_role("button", name="Save model/model.html").click()
        download.value.save_as(tmp_path / "saved")
        assert (tmp_path / "saved").read_text() == HOSTILE


def test_a_request_that_the_browser_ends_is_sent_again_unless_it_acts(browser: Browser, ui: Ui) -> None:
    ended: list[str] = []

    def end_once(route: Route) -> None:
        if route.request.url in ended:
            route.continue_()
        else:
            ended.append(route.request.url)
            route.abort()

    with visiting(browser, ui.address) as visit:
        visit.page.route("**/api/v1/**", end_once)
        open_job(visit.page, "running")
        visit.page.get_by_text("Files in the bucket", exact=True).click()
        with visit.page.expect_download():
            visit.page.get_by_role("button", name="Save model/model.html").click()
        assert ended
        visit.page.get_by_role("button", name="Suspend").click()
        visit.page.get_by_role("dialog").get_by_role("button", name="Suspend", exact=True).click()
        visit.page.get_by_text("dtj ui does not answer").wait_for()
        assert not ui.cluster.jobs["running"]["spec"].get("runPolicy", {}).get("suspend")
        visit.faults[:] = [fault for fault in visit.faults if "net::ERR_FAILED" not in fault]


ROUTES = (
    "#/",
    "#/jobs/ml%2Frunning",
    "#/jobs/ml%2Ffailed",
    "#/jobs/ml%2Fnothing",
    "#/new",
    "#/new/ml%2Frunning",
    "#/compare/ml%2Frunning/ml%2Fsucceeded/ml%2Fgone",
    "#/jobs/ml%2Flost",
)


def test_everybody_can_use_it(browser: Browser, ui: Ui, empty: Ui) -> None:
    for server, routes in ((ui, ROUTES), (empty, ROUTES[:1])):
        with visiting(browser, server.address) as visit:
            page = visit.page
            for route in routes:
                page.goto(f"{server.origin}/{route}")
                page.locator("main :is(table, .problem, textarea, p)").first.wait_for()
                page.wait_for_load_state("networkidle")
                page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
                page.wait_for_load_state("networkidle")
                assert inaccessible(page) == [], route
                page.set_viewport_size({"width": 400, "height": 800})
                assert overflow(page) <= 0, route
                page.set_viewport_size({"width": 1200, "height": 900})


def test_the_token_leaves_the_address(browser: Browser, ui: Ui) -> None:
    with visiting(browser, ui.address) as visit:
        visit.page.get_by_role("link", name="running", exact=True).wait_for()
        assert "token" not in visit.page.url
        assert visit.page.context.cookies() == []
    with visiting(browser, ui.origin) as visit:
        visit.page.get_by_text("open the address that `dtj ui` printed").wait_for()


def drawing_of(page: Page, measure: str, element: str) -> Locator:
    heading = page.get_by_role("heading", name=measure, exact=True)
    return page.locator("section").filter(has=heading).last.locator(element)


def test_axes_say_what_the_curves_have(browser: Browser, ui: Ui) -> None:
    curves = [
        {"name": f"train {measure}", "steps": STEPS, "values": values, "times": [1.0] * len(STEPS)}
        for measure, values in SERIES.items()
    ]
    answer = {"curves": curves, "restarts": [], "started": 1.0, "leftOut": 0}

    def prepare(page: Page) -> None:
        page.add_init_script(RECORD)
        page.route("**/curves*", lambda route: route.fulfill(json=answer))

    with visiting(browser, ui.address, before=prepare) as visit:
        open_job(visit.page, "running")
        for width in (1200, 400):
            visit.page.set_viewport_size({"width": width, "height": 900})
            closed = visit.page.get_by_text("Bookkeeping and constants")
            if width == 1200:
                closed.click()
            for measure in SERIES:
                canvas = drawing_of(visit.page, measure, "canvas")
                until(
                    lambda canvas=canvas, width=width: (
                        canvas.evaluate("each => each.width") in range(300, width)
                    ),
                    "the drawing has the width of the window",
                )
                check(canvas, measure)


def test_axes_of_a_saved_page_say_what_the_curves_have(browser: Browser, tmp_path: Path) -> None:
    rows = [
        line("train", step, step, **{measure: values[at] for measure, values in SERIES.items()})
        for at, step in enumerate(STEPS)
    ]
    file = tmp_path / "saved.html"
    file.write_text(page_of(Run("saved", read_metrics(content(rows)).rows)))
    with visiting(browser, file.as_uri()) as visit:
        for measure in SERIES:
            check(drawing_of(visit.page, measure, "svg[role=img]"), measure)
