"""A real Chromium for the tests of pages: installed where there is none, and driven by Playwright.

`visiting` fails for what a page must never do: break its own Content-Security-Policy, raise an exception, or ask
another server. `inaccessible` asks axe-core for what keeps people out.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

from tests.cluster.local.packages import install_missing
from tests.patience import PATIENCE

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""What a Chromium is called, here or there. Debian has the first, which is the smallest."""
_REPORTS = """
globalThis.presses = 0
addEventListener("mousedown", () => { presses += 1 }, true)
addEventListener("securitypolicyviolation", (event) =>
  console.error(`Content-Security-Policy: ${event.effectiveDirective} of ${event.sourceFile}:${event.lineNumber}`))
"""
_NETWORK_CHANGED = "net::ERR_NETWORK_CHANGED"
"""Chromium ends its requests when the machine gets or loses a network device, as for a pod of a local cluster."""
_ERROR_PAGE = "chrome-error://"
"""The address of the page that Chromium shows in place of one that it could not load."""
_LOADS = 20
_REFUSED = "Failed to load resource: the server responded with a status of"
"""How Chromium logs an answer with an error. A page may show such an answer."""


class NoBrowser(Exception):
    """There is no Chromium on this machine."""


def install() -> None:
    """Install Debian's package where there is no Chromium. Raises ClusterError."""
    if _found() is None:
        install_missing({NAMES[0]: NAMES[0]})


def program() -> str:
    """The path of a Chromium. Raises NoBrowser, which says how to get one."""
    if found := _found():
        return found
    raise NoBrowser(
        f"there is no Chromium on the PATH, by the names {', '.join(NAMES)}: `apt-get install {NAMES[0]}` "
        "installs one on Debian; `make test-trainer` does so as root"
    )


def _found() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start a Chromium. Raises NoBrowser.

    Until its end an event loop of Playwright runs in this thread, so that no test with `async def` can run.
    """
    from playwright.sync_api import sync_playwright

    path = program()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--no-proxy-server"], timeout=30_000 * PATIENCE
        )
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Visit:
    """A page, and what it did that no page may do."""

    page: Page
    faults: list[str] = field(default_factory=list)

    @property
    def clicks(self) -> int:
        """How often the mouse was pressed since the page was loaded."""
        return int(self.page.evaluate("presses"))


@contextmanager
def visiting(
    browser: Browser,
    url: str,
    *,
    width: int = 1200,
    before: Callable[[Page], Any] = lambda page: None,
) -> Iterator[Visit]:
    """Open a page in a profile of its own. At the end, fail if it has faults that the test did not remove.

    width: of the window, in CSS pixels. before: is called with the page before the address is opened.
    """
    context = browser.new_context(viewport={"width": width, "height": 900}, reduced_motion="reduce")
    try:
        context.set_default_timeout(10_000 * PATIENCE)
        context.add_init_script(_REPORTS)
        visit = Visit(context.new_page())
        visit.page.on("pageerror", lambda error: visit.faults.append(f"exception: {error}"))
        visit.page.on("console", lambda message: _note(visit, message.type, message.text))
        origin = "/".join(url.split("/")[:3])
        visit.page.on(
            "request",
            lambda request: (
                request.url.startswith((origin, "data:", "blob:"))
                or visit.faults.append(f"request to another server: {request.url}")
            ),
        )
        before(visit.page)
        _load(visit.page, url)
        try:
            yield visit
        except Exception as error:
            error.add_note(f"The page: {visit.page.inner_text('body')}\nIts faults: {visit.faults}")
            raise
        if visit.faults:
            raise AssertionError("\n".join(visit.faults))
    finally:
        context.close()


def _load(page: Page, url: str) -> None:
    """Open an address; open it again while the network of the machine changes meanwhile."""
    from playwright.sync_api import Error

    failed: list[str | None] = []
    page.on("requestfailed", lambda request: failed.append(request.failure))
    for _ in range(_LOADS):
        failed.clear()
        try:
            page.goto(url)
        except Error as error:
            # The error page of a load that the change has ended may come late, and then interrupts a load. So does
            # Chromium, which loads the address of its error page again when the network is back.
            again = f'interrupted by another navigation to "{url}"'
            if not any(words in error.message for words in (_NETWORK_CHANGED, _ERROR_PAGE, again)):
                raise
        else:
            if _NETWORK_CHANGED not in failed:
                return
    raise AssertionError(f"the network changes whenever {url} is loaded")


def _note(visit: Visit, kind: str, text: str) -> None:
    if kind == "error" and not text.startswith(_REFUSED) and _NETWORK_CHANGED not in text:
        visit.faults.append(text)


def inaccessible(page: Page) -> list[str]:
    """What axe-core finds wrong with a page as it is now: the rule and the element of each fault.

    The check of the light colours has all rules. The check of the dark colours has the rule of contrast alone: no
    other rule depends on colours. The page has light colours afterwards.
    """
    # By the debugger's protocol, for which the page's policy does not count.
    page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text())
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate("axe.run({ runOnly: ['color-contrast'] })")["violations"]
    page.emulate_media(color_scheme="light")
    light = page.evaluate("axe.run()")["violations"]
    return [
        f"{each['id']}: {node['html']}: {node['failureSummary']}"
        for each in [*light, *dark]
        for node in each["nodes"]
    ]


def grounds(page: Page) -> list[str]:
    """The CSS background colours of a page: first of its dark theme, then of its light theme, which stays."""

    def ground(scheme: Literal["dark", "light"]) -> str:
        page.emulate_media(color_scheme=scheme)
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    return [ground("dark"), ground("light")]


def overflow(page: Page) -> int:
    """CSS pixels by which a page is wider than its window, once it is drawn anew for a new size of the window."""
    wider = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    with suppress(TimeoutError):
        until_true(page, f"{wider} <= 0", seconds=5 * PATIENCE)
    return int(page.evaluate(wider))


def until_true(page: Page, holds: str, argument: object = None, *, seconds: float = 10 * PATIENCE) -> None:
    """Wait until an expression in JavaScript, or a function of the argument, holds. Raises TimeoutError.

    `Page.wait_for_function` looks again by `eval` in the page, which the policy of dtj's pages forbids.
    """
    deadline = time.monotonic() + seconds
    while not page.evaluate(holds, argument):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{holds} does not hold after {seconds:g} s")
        page.wait_for_timeout(20)
