"""The program of `dtj ui`, as a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.jobs import until
from tests.cluster.local.paths import CACHE


@contextmanager
def running(folder: Path, environment: Mapping[str, str], *options: str) -> Iterator[str]:
    """Yield the address that `dtj ui` prints. folder: for its output."""
    log = folder / "ui.log"
    # matplotlib looks for the fonts of the machine once, for some seconds.
    kept = {"MPLCONFIGDIR": str(CACHE / "matplotlib")}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", "from dtj.cli.main import main; main()", "ui", "--no-browser", *options],
            env={**environment, **kept},
            stdout=output,
            stderr=output,
        )
    try:

        def address() -> str | None:
            if process.poll() is not None:
                raise AssertionError(f"dtj ui ended with {process.returncode}: {log.read_text()}")
            found = re.search(r"^dtj ui: (http\S+)$", log.read_text(), re.MULTILINE)
            return found[1] if found else None

        yield until("the address that dtj ui prints", address, 60)
    finally:
        process.terminate()
        process.wait()
