"""Figures of honest jobs beside hostile tenants, and of a bare process beside the operator."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from dtj.reconcile.metrics import LAG_SECONDS
from tests.bench.figures import percentile
from tests.bench.operator_process import Operator
from tests.bench.targets import Target

MADE = "an honest job: applied to all pods made, p50, ms"
RATIO, BARE = "an honest job, by its time alone", "a bare process: late by at most, s"
_PEAK, _LAG = "operator: peak memory, MB", "operator: its event loop was late by at most, s"
Figures = dict[str, float]


def honest_targets(row: str) -> list[Target]:
    """Return the bounds of a row with hostile tenants."""
    return [
        Target(f"{row}/memory/256MB", _PEAK, 256),
        Target(f"{row}/lag/100ms-or-bare", _LAG, lambda run: max(0.1, run[BARE])),
        Target(f"{row}/honest/alone", RATIO, 2, of_a_ratio=True),
    ]


async def honest_figures(made_ms: Sequence[float], operator: Operator) -> Figures:
    """Return the figures of honest jobs. made_ms: from the job to all of its pods, in milliseconds."""
    return {
        MADE: percentile(made_ms, 0.5),
        "the slowest of them, ms": max(made_ms),
        "operator: memory, MB": operator.bytes / 1e6,
        _PEAK: operator.peak_bytes / 1e6,
        _LAG: await operator.event_loop_lag() or 0.0,
    }


# By how much a process is late that does nothing but wake 10 times a second, as the operator measures itself.
_WAKES = """
import select, sys, time
late = 0.0
while True:
    begun = time.monotonic()
    asked, _, _ = select.select([sys.stdin], [], [], 0.1)
    late = max(late, time.monotonic() - begun - 0.1)
    if asked:
        if not sys.stdin.readline():
            break
        print(late, flush=True)
"""


@asynccontextmanager
async def bare_process() -> AsyncIterator[Callable[[], Awaitable[float]]]:
    """A bare process beside the operator; by how many seconds it was late at most, as the bound of a bucket."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _WAKES), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    to, answers = process.stdin, process.stdout

    async def late() -> float:
        to.write(b"\n")
        seconds = float(await answers.readline())
        return next((bound for bound in LAG_SECONDS if seconds <= bound), seconds)

    try:
        yield late
    finally:
        to.close()
        await process.wait()
