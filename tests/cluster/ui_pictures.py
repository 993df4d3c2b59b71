"""`make ui-pictures`: pictures of `dtj ui` for docs/ui.md, in a real browser, on the cluster of KUBECONFIG.

Two trainings of Fashion-MNIST with different options, one that still trains, one of which a rank hangs, one that
failed, and one that is suspended.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests import ui_program
from tests.browser import chromium, install, visiting
from tests.cluster.browser import make_small
from tests.cluster.jobs import ROOT, TORCH_EXAMPLE, Manifest, Namespace, example, kubectl, until

if TYPE_CHECKING:
    from playwright.sync_api import Page

PICTURES = ROOT / "docs/pictures"
WIDTH = 1200
CELLS = 12
"""The least number of cells of the strip of a rank in a picture, of some seconds each."""
STUCK = "mnist-stuck"
PROGRAM = """
import time
from pathlib import Path

import torch
import torch.distributed as dist
from dtj_trainer import contract, progress

STEPS = 100_000

def load_batch():
    while Path(contract.root(), contract.RUN, "hang").exists():
        time.sleep(1)

def train_step(state):
    for _ in range(20):
        state = torch.tanh(state @ state)
    return state

dist.init_process_group("gloo")
state = torch.rand(200, 200)
for step in range(1, STEPS):
    load_batch()
    state = train_step(state)
    dist.all_reduce(state)
    time.sleep(0.1)
    progress.report(step=step, total_steps=STEPS)
"""


def training(name: str, *options: str, **spec: object) -> Manifest:
    # Processors train a fifth faster with --channels-last: the axis of the rate shows numbers above 10,000.
    words = ["--model=cnn", "--batch-size=64", "--channels-last", "--log-steps=20", *options]
    return example(name, TORCH_EXAMPLE, args=words, **spec)


def hanging() -> Manifest:
    """A training of three ranks, of which one hangs once it is told to."""
    policy = {"stallTimeoutSeconds": 30}
    job = example(STUCK, TORCH_EXAMPLE, command=["python", "-c", PROGRAM], args=[], runPolicy=policy)
    job["spec"]["replicaSpecs"]["worker"]["replicas"] = 3
    return job


def take(page: Page, name: str, height: int) -> None:
    """Write a picture of the top of a page, so many CSS pixels high."""
    file = PICTURES / f"{name}.png"
    page.evaluate("scrollTo(0, 0)")
    page.screenshot(path=file, full_page=True, clip={"x": 0, "y": 0, "width": WIDTH, "height": height})
    make_small(file)


def open_job(page: Page, name: str) -> None:
    page.get_by_role("link", name=name, exact=True).click()
    page.locator(".sentence").wait_for()


def train_all(namespace: Namespace) -> None:
    """Make the jobs, and wait until they are what the pictures show."""
    stuck = namespace.apply(hanging())
    namespace.apply(training("misspelt", "--model=cnm", runPolicy={"backoffLimit": 0})).wait(phase="Failed")
    namespace.apply(training("tomorrow", "--epochs=20", runPolicy={"suspend": True}))
    stuck.wait_for_step(20)
    # One after the other: two at once would take the processors from each other.
    namespace.apply(training("mnist-sgd", "--epochs=2", "--optimizer=sgd", "--lr=0.05")).wait(600)
    namespace.apply(training("mnist-adam", "--epochs=2", "--optimizer=adam", "--lr=0.001")).wait(600)
    trains = namespace.apply(training("mnist-long", "--epochs=10", "--optimizer=adam", "--lr=0.0005"))
    trains.wait_for_step(200, 600)
    stuck.tell("worker-1", "hang")
    until("the stall", lambda: stuck.condition("Stalled").get("status") == "True", 120)


def take_all(address: str) -> None:
    """Take each picture from the first screen on."""
    with chromium() as browser:
        with visiting(browser, address, width=WIDTH) as visit:
            visit.page.get_by_role("link", name="mnist-long", exact=True).wait_for()
            take(visit.page, "ui", 600)
            open_job(visit.page, "mnist-long")
            visit.page.get_by_role("heading", name="accuracy", exact=True).wait_for()
            take(visit.page, "ui-job", 1300)
        with visiting(browser, address, width=WIDTH) as visit:
            for name in ("mnist-sgd", "mnist-adam"):
                visit.page.get_by_label(f"Select {name}").check()
            visit.page.get_by_role("link", name="Compare 2 jobs").click()
            visit.page.get_by_role("region", name="What differs").wait_for()
            take(visit.page, "ui-compare", 1000)
        with visiting(browser, address, width=WIDTH) as visit:
            open_job(visit.page, STUCK)
            visit.page.get_by_text("rank 1 stands in").first.wait_for()
            visit.page.get_by_role("region", name="Ranks over time").wait_for()
            strip = visit.page.locator(".strip svg").first
            # Pods upload their first samples at once, and the others after two minutes.
            until(
                "a strip", lambda: int((strip.get_attribute("viewBox") or "0 0 0").split()[2]) >= CELLS, 300
            )
            take(visit.page, "ui-ranks", 1250)


@contextmanager
def as_a_person_would_call_it() -> Iterator[Namespace]:
    """The namespace ml, deleted at the end."""
    namespace = Namespace("ml")
    if "ml" in kubectl("get", "namespaces", "--output=jsonpath={.items[*].metadata.name}").split():
        sys.exit("the cluster has a namespace ml already: delete it first")
    namespace.make()
    try:
        yield namespace
    finally:
        namespace.delete()


def main() -> int:
    install()
    with tempfile.TemporaryDirectory() as folder, as_a_person_would_call_it() as namespace:
        environment = os.environ | {"XDG_CACHE_HOME": folder}
        with ui_program.running(Path(folder), environment, f"--namespace={namespace.name}") as address:
            train_all(namespace)
            take_all(address)
    return 0


if __name__ == "__main__":
    sys.exit(main())
