"""`dtj-operator` as a process of its own, on an API server of the tests."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.unit.support.kubeconfig import write_kubeconfig

# As in the operator's image, which has no kubernetes_validate: kopf imports the Kubernetes client before dtj does.
PROGRAM = "import sys; sys.modules['kubernetes_validate'] = None; from dtj.process import main; main()"


@asynccontextmanager
async def operating(url: str, home: Path, *flags: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """It runs in the block, and is told to end after it. What it logs is shown when a test fails."""
    write_kubeconfig(home / "kubeconfig", url)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM),
        *("--health-port", "0", "--metrics-port", "0"),
        *flags,
        env={**os.environ, "KUBECONFIG": str(home / "kubeconfig")},
        stderr=(home / "log").open("wb"),
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
        print((home / "log").read_text()[-6000:])
