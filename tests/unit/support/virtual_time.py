"""An event loop whose clock advances only while all tasks wait: simulated hours take milliseconds."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jump(selectors.SelectSelector):
    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "everything waits for ever"
        self.now += timeout
        return super().select(0)


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.now


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine, as asyncio.run does."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(work)
