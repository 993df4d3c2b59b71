"""Reports on the page of `dtj ui`, in a real Chromium, and the files that it saves, opened without a server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.browser import grounds, inaccessible, overflow, visiting
from tests.trainer.conftest import ObjectStore, until
from tests.trainer.ui_jobs import HOSTILE, SECRET_VALUE, Ui, served

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page


@pytest.fixture(scope="module")
def ui(tmp_path_factory: pytest.TempPathFactory, running_object_store: ObjectStore) -> Iterator[Ui]:
    with served(tmp_path_factory.mktemp("ui"), running_object_store) as running:
        yield running


def saved(page: Page, button: str, folder: Path) -> Path:
    """The file that a button saves."""
    with page.expect_download() as download:
        page.get_by_role("button", name=button).click()
    file = folder / download.value.suggested_filename
    download.value.save_as(file)
    return file


def opened(browser: Browser, file: Path) -> str:
    """The text of a saved file that every browser opens offline, in both themes, wide and narrow."""
    with visiting(browser, file.as_uri()) as visit:
        assert inaccessible(visit.page) == []
        assert grounds(visit.page) == ["rgb(13, 17, 23)", "rgb(255, 255, 255)"]
        visit.page.set_viewport_size({"width": 400, "height": 800})
        assert overflow(visit.page) <= 0
        return visit.page.inner_text("main")


def first_cells(table: Locator) -> list[str]:
    return table.locator("tbody th").all_inner_texts()


def test_compared_jobs_have_the_report(browser: Browser, ui: Ui, tmp_path: Path) -> None:
    with visiting(browser, ui.address) as visit:
        page = visit.page
        page.get_by_label("Select running").check()
        page.get_by_label("Select succeeded").check()
        page.get_by_role("link", name="Compare 2 jobs").click()
        runs = page.get_by_role("table", name="Runs")
        runs.wait_for()
        names = first_cells(runs)  # In the order of the list, where the younger job stands first.
        assert sorted(names) == ["running", "succeeded"]
        assert page.get_by_text(f"dtj report {' '.join(names)} --format html -n ml").is_visible()
        pictures = page.locator("img.picture")
        assert pictures.count() == 2
        until(lambda: pictures.first.evaluate("each => each.naturalWidth") > 0, "the picture is drawn")
        page.get_by_label("Compare with").select_option("succeeded")
        page.get_by_label("Price of a pod").fill("$0.90/h")
        runs.get_by_role("button", name="cost ($)").wait_for()
        name = runs.get_by_role("button", name="run")
        for order in (["running", "succeeded"], ["succeeded", "running"]):
            name.click()
            assert first_cells(runs) == order
        assert runs.locator("[aria-sort=descending]").inner_text().startswith("run")
        runs.get_by_role("button", name="examples/s").click()
        assert first_cells(runs) == ["running", "succeeded"], "160 is less than 1,160"
        page.get_by_label("Group by").fill("colour")
        page.get_by_text("no run has the field colour").wait_for()
        page.get_by_label("Group by").fill("workers")
        page.get_by_role("table", name="Groups").get_by_role("button", name="group").wait_for()
        until(lambda: page.locator(".problem").count() == 0, "the fault is gone")
        file = saved(page, "Save the report", tmp_path)
    assert "cost ($)" in opened(browser, file)


def test_a_run_is_one_file_to_send(browser: Browser, ui: Ui, tmp_path: Path) -> None:
    texts = {}
    for name in ("running", "failed"):
        with visiting(browser, ui.address) as visit:
            visit.page.get_by_role("link", name=name, exact=True).click()
            visit.page.get_by_text("Send this run", exact=True).click()
            visit.page.get_by_text(f"dtj report {name} --format page -n ml").wait_for()
            texts[name] = opened(browser, saved(visit.page, "Save as a file", tmp_path))
    assert "The job trains: step 120/200, 60.0%, ETA 90s" in texts["running"]
    assert re.search(r"--lr\s+0\.1", texts["running"])
    assert SECRET_VALUE not in texts["running"]
    # As text: the browser asked for no picture and ran nothing.
    assert HOSTILE in texts["failed"]


def test_options_of_past_jobs_are_columns(browser: Browser, ui: Ui) -> None:
    asked: list[str] = []
    with visiting(
        browser, ui.address, before=lambda page: page.on("request", lambda sent: asked.append(sent.url))
    ) as visit:
        page = visit.page
        page.get_by_label("Past jobs").check()
        page.get_by_role("link", name="gone", exact=True).wait_for()
        assert not any("past/options" in url for url in asked)
        page.get_by_text("Columns", exact=True).click()
        page.get_by_role("checkbox", name="--api-key").check()
        page.get_by_role("checkbox", name="--lr").check()
        lines = page.get_by_role("region", name="Jobs").locator("tbody tr")
        rows = {row.locator("th a").inner_text(): row.inner_text() for row in lines.all()}
        assert re.search(r"\(hidden\)\s+0\.5$|0\.5\s+\(hidden\)$", rows["gone"])
        assert rows["running"].rstrip().endswith("0.1")
        page.get_by_role("button", name="--lr").click()
        assert lines.last.locator("th a").inner_text() in ("gone", "lost", "twice")
