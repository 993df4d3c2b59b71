"""Takes the pictures of docs/ui.md: example jobs, in a real browser. `make ui-pictures` runs it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.browser import chromium, install, visiting
from tests.trainer.conftest import ObjectStore
from tests.trainer.ui_jobs import served
from tests.trainer.ui_ranks import fill_stalled

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"


def main() -> None:
    install()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        store = ObjectStore(folder / "store")
        store.folder.mkdir()
        store.start()
        try:
            with served(folder, store) as ui, chromium() as browser, visiting(browser, ui.address) as visit:
                page = visit.page
                page.get_by_role("link", name="running", exact=True).wait_for()
                page.screenshot(path=PICTURES / "ui.png", clip={"x": 0, "y": 0, "width": 1200, "height": 400})
                page.get_by_role("link", name="running", exact=True).click()
                page.get_by_role("heading", name="loss").wait_for()
                page.wait_for_load_state("networkidle")
                page.screenshot(path=PICTURES / "ui-job.png")
                fill_stalled(ui, store.environment, hostile=False)
                page.goto(f"{ui.origin}/#/jobs/ml%2Fstalled")
                page.get_by_text("rank 3 stands in").wait_for()
                page.get_by_text("▼ idle").wait_for()
                top, end = (
                    page.get_by_role("heading", name=name, exact=True).bounding_box()
                    for name in ("Ranks", "Curves")
                )
                assert top
                assert end
                clip = {"x": 0, "y": top["y"] - 10, "width": 1200, "height": end["y"] - top["y"]}
                page.screenshot(path=PICTURES / "ui-ranks.png", clip=clip, full_page=True)
        finally:
            store.kill()


if __name__ == "__main__":
    main()
