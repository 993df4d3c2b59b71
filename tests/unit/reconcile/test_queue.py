"""The work queue, with a fake clock: no test waits.

* keys: order, duplicates, keys in work
* workers that wait
* timers, backoff and pauses that the API server asks for
* turns of namespaces
* a queue that is not open yet
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from dtj.reconcile.queue import WorkQueue

A, B = ("ml", "a"), ("ml", "b")


class Timers:
    """The event loop's timers, as far as the queue uses them."""

    def __init__(self) -> None:
        self.now = 100.0
        self.due: list[tuple[float, Callable[..., None], tuple[Any, ...]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, call: Callable[..., None], *arguments: Any) -> Timer:
        entry = (self.now + seconds, call, arguments)
        self.due.append(entry)
        return Timer(self, entry)

    def turn(self, seconds: float) -> None:
        self.now += seconds
        for entry in sorted((e for e in self.due if e[0] <= self.now), key=lambda e: e[0]):
            self.due.remove(entry)
            entry[1](*entry[2])


class Timer:
    def __init__(self, timers: Timers, entry: tuple[float, Callable[..., None], tuple[Any, ...]]) -> None:
        self._timers, self._entry = timers, entry

    def when(self) -> float:
        return self._entry[0]

    def cancel(self) -> None:
        if self._entry in self._timers.due:
            self._timers.due.remove(self._entry)


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> Timers:
    made = Timers()
    monkeypatch.setattr("dtj.reconcile.queue.asyncio.get_running_loop", lambda: made)
    return made


@pytest.fixture
def queue(timers: Timers) -> WorkQueue:
    return WorkQueue(timers.time, random.Random(1))


async def taken(queue: WorkQueue) -> tuple[str, str] | None:
    """The next key, or None when a worker would have to wait."""
    return await queue.take() if len(queue) else None


async def test_a_key_added_twice_is_taken_once(queue: WorkQueue) -> None:
    queue.add(A)
    queue.add(A)

    assert await taken(queue) == A
    assert await taken(queue) is None


async def test_keys_come_in_the_order_in_which_they_were_added(queue: WorkQueue) -> None:
    queue.add(B)
    queue.add(A)
    queue.add(B)

    assert [await taken(queue), await taken(queue)] == [B, A]


async def test_a_key_in_a_workers_hands_is_given_to_no_other(queue: WorkQueue) -> None:
    queue.add(A)
    await queue.take()
    queue.add(A)
    queue.add(A)

    assert await taken(queue) is None


async def test_a_key_added_while_busy_comes_again_once_after_it_is_done(queue: WorkQueue) -> None:
    queue.add(A)
    await queue.take()
    queue.add(A)
    queue.add(A)
    queue.done(A)

    assert await taken(queue) == A
    queue.done(A)
    assert await taken(queue) is None


async def test_a_worker_that_waits_is_woken() -> None:
    queue = WorkQueue(lambda: 0.0)
    worker = asyncio.create_task(queue.take())
    await asyncio.sleep(0)
    assert not worker.done()

    queue.add(A)

    assert await worker == A


async def test_many_waiting_workers_share_the_keys() -> None:
    queue = WorkQueue(lambda: 0.0)
    workers = [asyncio.create_task(queue.take()) for _ in range(2)]
    await asyncio.sleep(0)

    queue.add(A)
    queue.add(B)

    assert sorted(await asyncio.gather(*workers)) == [A, B]


@pytest.mark.bound(
    "operator",
    "Who may create jobs, for whose objects the API server is slow",
    "Workers in passes over jobs of one namespace",
    "Three quarters of `--workers`; the others serve other namespaces",
)
async def test_a_namespace_that_has_its_share_of_the_workers_leaves_the_others_to_other_namespaces() -> None:
    queue = WorkQueue(lambda: 0.0, most=2)
    slow, quiet = [("slow", str(number)) for number in range(4)], ("quiet", "job")
    for key in slow:
        queue.add(key)
    assert [await queue.take(), await queue.take()] == slow[:2]
    waiting = asyncio.create_task(queue.take())
    await asyncio.sleep(0)
    assert not waiting.done()
    queue.add(quiet)
    assert await waiting == quiet

    waiting = asyncio.create_task(queue.take())
    await asyncio.sleep(0)
    assert not waiting.done()
    queue.done(slow[0])
    assert await waiting == slow[2]
    for key in (slow[1], slow[2], quiet):
        queue.done(key)
    assert await taken(queue) == slow[3]
    queue.done(slow[3])
    assert not queue._busy_in


@pytest.mark.bound(
    "operator",
    "Who may create large jobs",
    "Passes over large jobs at a time, and so the jobs that the operator holds as data",
    "One; the other workers serve small jobs",
)
async def test_one_worker_at_a_time_has_a_large_job() -> None:
    queue = WorkQueue(lambda: 0.0, large=lambda key: key[1].startswith("large"))
    first, second, other = ("ml", "large-1"), ("ml", "large-2"), ("other", "large")
    for key in (first, second, other, A):
        queue.add(key)
    assert [await queue.take(), await queue.take()] == [first, A]
    waiting = asyncio.create_task(queue.take())
    await asyncio.sleep(0)
    assert not waiting.done()
    queue.add(B)
    assert await waiting == B
    queue.done(A)
    queue.done(first)
    assert await taken(queue) == other
    queue.done(other)
    assert await taken(queue) == second


@pytest.mark.parametrize(("first", "second"), [(5.0, 30.0), (30.0, 5.0)])
async def test_of_two_later_times_the_soonest_counts(
    queue: WorkQueue, timers: Timers, first: float, second: float
) -> None:
    queue.add_after(A, first)
    queue.add_after(A, second)

    timers.turn(4.9)
    assert await taken(queue) is None
    timers.turn(0.2)
    assert await taken(queue) == A
    queue.done(A)
    timers.turn(60.0)
    assert await taken(queue) is None


def pauses(queue: WorkQueue, timers: Timers, count: int) -> list[float]:
    found = []
    for _ in range(count):
        queue.retry(A)
        (entry,) = timers.due
        found.append(entry[0] - timers.now)
        timers.due.clear()
        queue._timers.clear()
    return found


@pytest.mark.bound(
    "operator",
    "A job whose pass fails",
    "Passes over one job",
    "Pauses that double up to 90 s",
)
async def test_pauses_after_failures_grow_up_to_a_limit_with_jitter(queue: WorkQueue, timers: Timers) -> None:
    found = pauses(queue, timers, 14)

    for count, pause in enumerate(found):
        middle = min(0.05 * 2**count, 60.0)
        assert 0.5 * middle <= pause <= 1.5 * middle
    assert len({round(pause / (0.05 * 2**count), 6) for count, pause in enumerate(found[:5])}) == 5
    assert max(found) <= 90.0


async def test_a_success_makes_the_next_failure_the_first(queue: WorkQueue, timers: Timers) -> None:
    pauses(queue, timers, 8)
    queue.forget(A)

    assert pauses(queue, timers, 1)[0] <= 0.075


async def test_the_server_may_ask_for_a_longer_pause(queue: WorkQueue, timers: Timers) -> None:
    queue.retry(A, at_least=7.0)

    timers.turn(6.9)
    assert await taken(queue) is None
    timers.turn(0.2)
    assert await taken(queue) == A


async def test_a_dropped_key_does_not_come_back(queue: WorkQueue, timers: Timers) -> None:
    queue.add_after(A, 5.0)
    queue.drop(A)
    timers.turn(10.0)

    assert await taken(queue) is None


async def test_oldest_counts_waiting_and_busy_keys(queue: WorkQueue, timers: Timers) -> None:
    assert queue.oldest() == 0.0
    queue.add(A)
    timers.turn(3.0)
    queue.add(B)
    assert queue.oldest() == 3.0
    assert await queue.take() == A
    timers.turn(2.0)
    assert queue.oldest() == 2.0  # both for 2 s: A in hands, B waiting
    queue.done(A)
    assert await queue.take() == B
    timers.turn(4.0)
    assert queue.oldest() == 4.0
    queue.done(B)
    assert queue.oldest() == 0.0


async def test_what_happens_while_a_key_rests_is_one_pass(timers: Timers) -> None:
    queue = WorkQueue(timers.time, rest=0.02)
    queue.add(A)
    await queue.take()
    queue.add(A)
    queue.done(A)
    queue.add(A)
    queue.add(B)

    assert await queue.take() == B, "nobody waits for another's rest"
    timers.turn(0.01)
    queue.add(A)
    assert len(queue) == 0
    timers.turn(0.02)
    assert await queue.take() == A
    queue.done(A)
    queue.done(B)
    timers.turn(1)
    assert len(queue) == 0
    queue.add(A)
    assert len(queue) == 1, "who has rested does not wait"


async def test_a_pass_that_comes_sooner_does_for_a_timer(queue: WorkQueue, timers: Timers) -> None:
    queue.add_soon(A)
    queue.add(A)
    await queue.take()
    queue.done(A)
    timers.turn(10.0)

    assert len(queue) == 0


async def test_namespaces_take_turns(queue: WorkQueue) -> None:
    crowd = [("hostile", str(number)) for number in range(3)]
    for key in (*crowd, A, B, ("other", "c")):
        queue.add(key)

    taken = [await queue.take() for _ in range(6)]

    assert taken == [crowd[0], A, ("other", "c"), crowd[1], B, crowd[2]]
    assert len(queue) == 0


async def test_a_queue_with_several_jobs_in_hand_or_waiting_is_crowded(queue: WorkQueue) -> None:
    seen = []
    for key in (A, B):
        queue.add(key)
        seen.append(queue.crowded())
    for _ in range(2):
        await queue.take()
        seen.append(queue.crowded())
    for key in (A, B):
        queue.done(key)
        seen.append(queue.crowded())

    assert seen == [False, True, True, True, False, False]


async def test_a_queue_gives_nothing_out_before_it_is_opened() -> None:
    queue = WorkQueue(lambda: 0.0, opened=False)
    queue.add(A)
    taken = asyncio.create_task(queue.take())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not taken.done()
    queue.open()
    assert await asyncio.wait_for(taken, 10) == A


async def test_a_namespace_that_is_not_open_holds_up_no_other_and_is_not_late() -> None:
    now = 0.0
    queue = WorkQueue(lambda: now, opened=False)
    other = ("gone", "a")
    for key in (other, A, other, ("gone", "b")):
        queue.add(key)
    queue.open("ml")
    assert await asyncio.wait_for(queue.take(), 10) == A
    queue.done(A)
    now = 1000.0
    assert (queue.oldest(), len(queue), queue.crowded()) == (0.0, 0, False)
    queue.drop(("gone", "b"))
    queue.open("gone")
    assert await asyncio.wait_for(queue.take(), 10) == other
    assert len(queue) == 0
    assert queue.waited(other) == 0.0
