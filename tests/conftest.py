"""For all tests: their order, the settings of hypothesis, warm interpreters, and a browser."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer

from tests import processor_time, stage_times, warm
from tests.at_once import AtOnce, turn

if TYPE_CHECKING:
    from playwright.sync_api import Browser

BEFORE = pytest.StashKey[float]()

# How long an example takes says more of the machine than of what is tested.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def pytest_configure(config: pytest.Config) -> None:
    """Make the folder of the warm interpreters; the workers of xdist share it."""
    gc.set_threshold(10_000)  # A tenth of the collection of tests was a collection of garbage.
    if not hasattr(config, "workerinput"):
        warm.make_folder()


def pytest_collection_finish() -> None:
    """Exempt what was imported from later collections of garbage."""
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note a test's processor seconds from its setup on; see `pytest_runtest_teardown`."""
    item.stash[BEFORE] = processor_time.of_this_process()
    return (yield)  # type: ignore[misc]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Report the test's processor seconds as a property, after its fixtures have ended."""
    try:
        return (yield)  # type: ignore[misc]
    finally:
        used = processor_time.of_this_process() - item.stash[BEFORE]
        item.user_properties.append((stage_times.PROCESSOR, f"{used:.2f}"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the reasons for which programs have started without a warm interpreter."""
    for reason, count in warm.cold_starts().most_common(10):
        terminalreporter.write_line(f"{count} programs started cold: {reason}")


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the warm interpreters that tests have started."""
    if not hasattr(config, "workerinput"):
        warm.end()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> AtOnce:
    """See `AtOnce`. Scopes are begun in the order of collection, not those with the most tests first."""
    config.option.loadscopereorder = False
    return AtOnce(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes long."""
    items.sort(key=lambda item: turn(item.path))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A Chromium for the tests of a module, which have no `async def`; see tests/browser.py."""
    from tests.browser import chromium

    with chromium() as ready:
        yield ready
