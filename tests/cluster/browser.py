"""A real browser, and the route to a page that a Service of the cluster serves."""

from __future__ import annotations

import re
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image

from tests import browser
from tests.cluster.jobs import Namespace
from tests.patience import PATIENCE

COLOURS = 64
"""A page needs few, and its picture is then a third as large."""


@contextmanager
def forwarded(namespace: Namespace, service: str, port: int) -> Iterator[str]:
    """The URL of a Service's port on this machine, by `kubectl port-forward`."""
    command = ["kubectl", "--namespace", namespace.name, "port-forward", f"service/{service}", f":{port}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            line = process.stdout.readline()
            found = re.search(r"127\.0\.0\.1:\d+", line)
            assert found, f"kubectl port-forward said {line!r}"
            yield f"http://{found[0]}"
        finally:
            process.terminate()


def read(url: str) -> str:
    """What a server answers; nothing where that is no success, or where there is no answer in time."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=10 * PATIENCE) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def page(url: str, picture: Path | None = None) -> str:
    """The elements of a page once its scripts have come to rest; picture: a file for how it looks (PNG)."""
    browser.install()
    command = [
        browser.program(),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-proxy-server",
        "--hide-scrollbars",
    ]
    # Without WebGL charts are elements, too. Time is virtual: it stands still while anything is loaded.
    command += [
        "--disable-3d-apis",
        "--virtual-time-budget=30000",
        "--window-size=1400,960",
        "--dump-dom",
        url,
    ]
    if picture:
        command.append(f"--screenshot={picture}")
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=90 * PATIENCE)
    if picture:
        make_small(picture)
    return done.stdout


def make_small(picture: Path) -> None:
    """Write a PNG again with the few colours that a page needs."""
    Image.open(picture).convert("P", palette=Image.Palette.ADAPTIVE, colors=COLOURS).save(
        picture, optimize=True
    )
