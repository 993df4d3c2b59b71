"""For all tests: their order, the settings of hypothesis, warm interpreters, and a browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer

from tests import warm
from tests.at_once import AtOnce, turn

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# How long an example takes says more of the machine than of what is tested.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def pytest_configure(config: pytest.Config) -> None:
    """Make the folder of the warm interpreters; the workers of xdist share it."""
    if not hasattr(config, "workerinput"):
        warm.make_folder()


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
