"""A page is opened again while the network of the machine changes."""

from __future__ import annotations

from typing import Any, cast

import pytest
from playwright.sync_api import Error, Page
from tests.browser import _load

CHANGED = "Page.goto: net::ERR_NETWORK_CHANGED at http://127.0.0.1:1/"
INTERRUPTED = 'Page.goto: Navigation to "http://127.0.0.1:1/" is interrupted by another navigation to "chrome-error://x/"'
RELOADED = 'Page.goto: Navigation to "http://127.0.0.1:1/" is interrupted by another navigation to "http://127.0.0.1:1/"'


class Tab:
    """A page whose loads fail one after the other."""

    def __init__(self, *failures: str) -> None:
        self.failures, self.loads = list(failures), 0

    def on(self, *_: Any) -> None:
        """No request of it is watched."""

    def goto(self, _: str) -> None:
        self.loads += 1
        if self.failures:
            raise Error(self.failures.pop(0))


def test_a_load_that_a_change_of_the_network_ends_is_repeated() -> None:
    tab = Tab(CHANGED, INTERRUPTED, INTERRUPTED, RELOADED)
    _load(cast(Page, tab), "http://127.0.0.1:1/")
    assert tab.loads == 5


def test_another_error_is_one() -> None:
    with pytest.raises(Error, match="REFUSED"):
        _load(cast(Page, Tab("Page.goto: net::ERR_CONNECTION_REFUSED")), "http://127.0.0.1:1/")


def test_a_network_that_always_changes_is_one_too() -> None:
    with pytest.raises(AssertionError, match="the network changes whenever"):
        _load(cast(Page, Tab(*[CHANGED] * 100)), "http://127.0.0.1:1/")
