"""`dtj ui` on a real cluster, in a real browser.

* the questions of a person, each in at most three clicks from the first screen: why did it die, which was the
  fastest, what differs, where is my model, make it go on, one like it with four workers, is it stuck, which rank
* a job that was deleted, from the bucket
* after each: axe-core in both themes, and a narrow window. `visiting` fails for a report of the page's policy.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests import ui_program
from tests.browser import Visit, chromium, inaccessible, install, overflow, visiting
from tests.cluster.jobs import TORCH_EXAMPLE, Job, Manifest, Namespace, stub, until
from tests.patience import PATIENCE

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.cluster
MOST_CLICKS = 3
MANY = 6000
"""Steps of a training that lasts until a test lets it end."""
THE_RANK_THAT_HANGS = 1


def training(name: str, *options: str, workers: int = 2, **spec: object) -> Manifest:
    manifest = stub(name, *options, file=TORCH_EXAMPLE, **spec)
    manifest["spec"]["replicaSpecs"]["worker"]["replicas"] = workers
    return manifest


@pytest.fixture(scope="module")
def jobs(shared_namespace: Namespace) -> dict[str, Job]:
    """Jobs by name. They run at once, and one of them hangs from now on: a stall shows later."""
    manifests = [
        training("failed", "--fail-at=10", runPolicy={"backoffLimit": 0}),
        training("fast", "--steps=20", "--step-seconds=0.01"),
        training("slow", "--steps=80", "--step-seconds=0.2"),
        training("paused", f"--steps={MANY}"),
        training("stuck", f"--steps={MANY}", workers=3, runPolicy={"stallTimeoutSeconds": 20}),
    ]
    for manifest in manifests:
        # A history of its own.
        manifest["spec"]["artifacts"]["uri"] = f"s3://training/{shared_namespace.name}"
    applied = {manifest["metadata"]["name"]: shared_namespace.apply(manifest) for manifest in manifests}
    applied["stuck"].wait_for_step(20)
    applied["stuck"].tell(f"worker-{THE_RANK_THAT_HANGS}", "hang")
    return applied


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    install()
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def address(
    shared_namespace: Namespace, jobs: dict[str, Job], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Of the page for a user who has a kubeconfig and no keys of the store: those of the jobs' Secret serve."""
    folder = tmp_path_factory.mktemp("ui")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    environment["XDG_CACHE_HOME"] = str(folder)
    with ui_program.running(folder, environment, f"--namespace={shared_namespace.name}") as printed:
        yield printed


@contextmanager
def asking(browser: Browser, address: str) -> Iterator[Visit]:
    """The first screen; at the end, a page that everybody can use, and the answer came by few clicks."""
    with visiting(browser, address) as visit:
        yield visit
        assert 0 < visit.clicks <= MOST_CLICKS
        everybody_can_use(visit.page)


def everybody_can_use(page: Page) -> None:
    assert inaccessible(page) == [], page.url
    page.set_viewport_size({"width": 400, "height": 800})
    assert overflow(page) <= 0, page.url


def open_job(page: Page, name: str) -> None:
    page.get_by_role("link", name=name, exact=True).click()
    page.get_by_role("heading", name=name, exact=True, level=1).wait_for()
    page.locator(".sentence").wait_for()


def says(page: Page, sentence: str) -> None:
    """Wait until the page says so of the job, as it follows it."""
    page.locator(".sentence").filter(has_text=sentence).wait_for()


def confirm(page: Page, action: str, command: str) -> None:
    """Click a button of a job, see the command that does the same, and confirm."""
    page.get_by_role("button", name=action, exact=True).click()
    dialog = page.get_by_role("dialog")
    assert command in dialog.inner_text()
    dialog.get_by_role("button", name=action, exact=True).click()


def test_why_did_it_die(browser: Browser, address: str, jobs: dict[str, Job]) -> None:
    failure = jobs["failed"].wait(phase="Failed")["failure"]
    with asking(browser, address) as visit:
        open_job(visit.page, "failed")
        shown = visit.page.locator(".failure")
        assert failure["message"] in shown.inner_text()
        assert "failed-worker-0" in shown.inner_text()
        assert "the loss is not a number any more" in shown.locator("pre").inner_text()


def test_which_was_the_fastest_and_what_differs(browser: Browser, address: str, jobs: dict[str, Job]) -> None:
    namespace = jobs["fast"].namespace.name
    for name in ("fast", "slow"):
        jobs[name].wait()
    with asking(browser, address) as visit:
        visit.page.get_by_label("Select slow").check()
        visit.page.get_by_label("Select fast").check()
        visit.page.get_by_role("link", name="Compare 2 jobs").click()
        rows = visit.page.get_by_role("region", name="Compared jobs").locator("tbody tr")
        rows.filter(has_text=re.compile(r"\d+s\s*$")).nth(1).wait_for()
        cells = [row.locator("th, td").all_inner_texts() for row in rows.all()]
        assert [row[0].strip() for row in cells] == [f"{namespace}/fast", f"{namespace}/slow"]
        assert all(re.fullmatch(r"(\d+m)?\d+s", row[-1]) for row in cells), cells
        differing = visit.page.get_by_role("region", name="What differs").locator("tbody tr")
        differing.nth(1).wait_for()
        named = dict(row.locator("th, td").all_inner_texts()[:2] for row in differing.all())
        assert named.keys() == {"--steps", "--step-seconds"}
        visit.page.locator(".plot canvas").first.wait_for()


def test_where_is_my_model(browser: Browser, address: str, jobs: dict[str, Job]) -> None:
    jobs["fast"].wait()
    with asking(browser, address) as visit:
        open_job(visit.page, "fast")
        visit.page.get_by_text(f"dtj serve fast -n {jobs['fast'].namespace.name}", exact=True).wait_for()
        visit.page.get_by_text("Files in the bucket", exact=True).click()
        with visit.page.expect_download() as download:
            visit.page.get_by_role("button", name="Save model/chain").click()
        assert download.value.path().read_bytes() == jobs["fast"].artifacts().read("model/chain")


def test_make_it_go_on(browser: Browser, address: str, jobs: dict[str, Job]) -> None:
    job = jobs["paused"]
    job.wait_for_step(20)
    with asking(browser, address) as visit:
        open_job(visit.page, "paused")
        confirm(visit.page, "Suspend", f"dtj suspend paused -n {job.namespace.name}")
        # The kubelet of a busy machine can take a minute to notice that a pod ended, and to start one.
        job.wait(phase="Suspended")
        says(visit.page, "The job is suspended")
    with asking(browser, address) as visit:
        open_job(visit.page, "paused")
        confirm(visit.page, "Resume", f"dtj resume paused -n {job.namespace.name}")
        job.wait(phase="Running")
        says(visit.page, "The job trains")
        assert job.hurry_to_the_end()["attempt"] == 2
        says(visit.page, "The job succeeded")
    assert job.artifacts().stub_steps_are_complete(MANY)


def test_start_one_like_it_with_four_workers(browser: Browser, address: str, jobs: dict[str, Job]) -> None:
    jobs["fast"].wait()
    with asking(browser, address) as visit:
        open_job(visit.page, "fast")
        visit.page.get_by_role("link", name="Run again").click()
        file = visit.page.get_by_label("Job file")
        until("the job file", lambda: "name: fast-2" in file.input_value(), 30)
        text = file.input_value()
        assert text.count("replicas: 2") == 1
        file.fill(text.replace("replicas: 2", "replicas: 4"))
        visit.page.get_by_text("fast-2 is valid: TorchDistributed with 4 pods").wait_for()
        visit.page.get_by_role("button", name="Create").click()
        visit.page.get_by_role("heading", name="fast-2", level=1).wait_for()
        made = Job(jobs["fast"].namespace, "fast-2")
        assert made.get()["spec"]["replicaSpecs"]["worker"]["replicas"] == 4
        made.wait()
        says(visit.page, "The job succeeded")
    assert {row["worldSize"] for row in made.artifacts().metrics()} == {4}


def test_is_it_slow_or_stuck_and_which_rank(browser: Browser, address: str) -> None:
    with asking(browser, address) as visit:
        open_job(visit.page, "stuck")
        says(visit.page, "The job makes no progress: all pods run, but the step has stayed at")
        assert visit.page.locator("dt").filter(has_text="Accuracy").count() == 0, "the program reports none"
        # On a busy machine, the start of the training counts as a stall too. The stacks of that stall show other
        # places. The page asks for stacks every 30 s.
        stands = visit.page.get_by_text(f"rank {THE_RANK_THAT_HANGS} stands in Condition.wait").first
        stands.wait_for(timeout=30_000 * PATIENCE)
        button = re.compile(f"^Show the stacks of rank {THE_RANK_THAT_HANGS},")
        visit.page.get_by_role("button", name=button).first.click()
        stack = visit.page.locator("pre.stack")
        stack.wait_for()
        assert "waits_for_an_answer_that_never_comes" in stack.inner_text()


def test_a_deleted_job_is_found_in_the_bucket(browser: Browser, address: str, jobs: dict[str, Job]) -> None:
    job = jobs["failed"]
    failure = job.wait(phase="Failed")["failure"]
    until("the record of the end", lambda: job.condition("Recorded").get("status") == "True", 120)
    with asking(browser, address) as visit:
        open_job(visit.page, "failed")
        confirm(visit.page, "Delete", f"dtj delete failed -n {job.namespace.name}")
        visit.page.get_by_text("read from the bucket").wait_for()
    with asking(browser, address) as visit:
        visit.page.get_by_role("link", name="fast", exact=True).wait_for()
        assert visit.page.get_by_role("link", name="failed", exact=True).count() == 0
        visit.page.get_by_label("Past jobs").check()
        open_job(visit.page, "failed")
        shown = visit.page.locator(".failure")
        assert failure["message"] in shown.inner_text()
        assert "the loss is not a number any more" in shown.inner_text()
