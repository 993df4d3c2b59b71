"""`dtj serve` as a process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.patience import PATIENCE
from tests.trainer.conftest import until
from tests.trainer.served_models import Client

DTJ = [sys.executable, "-c", "from dtj.cli.main import main; main()"]


def dtj(folder: Path, *words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command of `dtj` to its end."""
    return subprocess.run(
        [*DTJ, *map(str, words)],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=100 * PATIENCE,
        check=False,
    )


@contextmanager
def serving(
    folder: Path, *words: object, **environment: str
) -> Iterator[tuple[subprocess.Popen[bytes], Client]]:
    """Run `dtj serve` until the end of the block, and then end it by SIGTERM."""
    log = folder / "serve.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*DTJ, "serve", *map(str, words), "--port=0"],
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        until(
            lambda: "http://" in log.read_text() or process.poll() is not None,
            "the server listens",
            30,
            log.read_text,
        )
        found = re.search(r"http://127\.0\.0\.1:(\d+)", log.read_text())
        assert found, log.read_text()
        yield process, Client(int(found[1]))
        process.send_signal(signal.SIGTERM)
        assert process.wait(40 * PATIENCE) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()
