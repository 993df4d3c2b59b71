"""`dtj-operator` as a separate process, on an API server of the tests."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests import warm
from tests.unit.support.kubeconfig import write_kubeconfig

# Hide kubernetes_validate, which the operator's image does not have. kopf imports the Kubernetes client before dtj.
PROGRAM = "import sys; sys.modules['kubernetes_validate'] = None; from dtj.process import main; main()"


@asynccontextmanager
async def operating(url: str, home: Path, *flags: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the operator within the block, and end it by SIGTERM afterwards. Print its log, for tests that fail."""
    write_kubeconfig(home / "kubeconfig", url)
    process = await asyncio.create_subprocess_exec(
        *(warm.python("operator"), "-c", PROGRAM),
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
