"""Waits for conditions that another task or process fulfils."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(there: Callable[[], bool], seconds: float = 60) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(seconds):
        while not there():
            await asyncio.sleep(0.01)
