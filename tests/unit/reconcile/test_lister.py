"""When the operator's view shows all that there is, so that passes may begin."""

from __future__ import annotations

import asyncio
from collections.abc import Set
from types import SimpleNamespace
from typing import Any

import pytest

from dtj.cluster.port import ApiError
from dtj.reconcile import lister
from dtj.reconcile.lister import all_known
from dtj.reconcile.queue import WorkQueue

A = ("ml", "a")


class Beginning:
    """An operator that has just started: nothing is known so far."""

    def __init__(self) -> None:
        self.synced, self.jobs_read = asyncio.Event(), asyncio.Event()
        self.jobs: list[Set[str] | ApiError] = []
        """What the API server answers; after that there are jobs."""
        self.asked = 0
        self.task = asyncio.create_task(self._wait())

    async def _wait(self) -> None:
        children: Any = SimpleNamespace(synced=self.synced.wait)
        await all_known(children, self._there, self.jobs_read)

    async def _there(self) -> Set[str]:
        self.asked += 1
        answer = self.jobs.pop(0) if self.jobs else {"1"}
        if isinstance(answer, ApiError):
            raise answer
        return answer

    async def looks(self) -> bool:
        """Whether all is known, some steps later."""
        for _ in range(10):
            await asyncio.sleep(0)
        return self.task.done()


async def test_children_are_waited_for_and_jobs_too() -> None:
    begun = Beginning()
    begun.jobs_read.set()
    assert not await begun.looks()
    begun.synced.set()
    assert await begun.looks()


async def test_where_there_are_jobs_kopfs_word_is_waited_for() -> None:
    begun = Beginning()
    begun.synced.set()
    assert not await begun.looks()
    begun.jobs_read.set()
    await asyncio.wait_for(begun.task, 10)


async def test_where_there_are_none_no_word_will_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lister, "_PATIENCE_SECONDS", 0.001)
    begun = Beginning()
    begun.jobs += [ApiError(500, "InternalError", "no"), {"1"}, frozenset()]
    begun.synced.set()
    await asyncio.wait_for(begun.task, 10)
    assert begun.asked == 3


async def test_a_queue_gives_nothing_out_before_it_is_opened() -> None:
    queue = WorkQueue(lambda: 0.0, opened=False)
    queue.add(A)
    taken = asyncio.create_task(queue.take())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not taken.done()
    queue.open()
    assert await asyncio.wait_for(taken, 10) == A
