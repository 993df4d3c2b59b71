"""The controller: its workers survive every pass, and its health check reports a worker that does not.

* passes that fail, break, or ask for another pass
* jobs that are gone
* the health check and the metrics of the queue
* the end of the operator while passes run
* triggers of kopf and changes of the cache
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from dtj.cluster.interface import ApiError
from dtj.reconcile import controller as controller_module
from dtj.reconcile.controller import STUCK_SECONDS, Controller
from dtj.reconcile.health import Stuck
from dtj.reconcile.metrics import OperatorMetrics
from dtj.reconcile.queue import WorkQueue
from dtj.reconcile.view import Key

A, B = ("ml", "a"), ("ml", "b")


class Passes:
    """Stands for the reconciler and its view: each pass does what it is told."""

    def __init__(self, do: Callable[[Key], float | None]) -> None:
        self.do = do
        self.made: list[Key] = []
        self.jobs: dict[Key, Mapping[str, Any]] = {A: at("1"), B: at("1")}

    def rest(self, key: Key) -> float:
        return 0.0

    async def reconcile(self, key: Key) -> float | None:
        self.made.append(key)
        await asyncio.sleep(0)
        return self.do(key)

    def job(self, key: Key) -> Mapping[str, Any] | None:
        return self.jobs.get(key)

    def active(self) -> list[Key]:
        return list(self.jobs)


async def serve(passes: Passes, *keys: Key, until: int) -> Controller:
    """Run a controller until so many passes were made."""
    controller = Controller(WorkQueue(lambda: 0.0), passes, passes, OperatorMetrics())  # type: ignore[arg-type]
    controller.start(2)
    for key in keys:
        controller.queue.add(key)
    async with asyncio.timeout(120):
        while len(passes.made) < until:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    return controller


def sample(controller: Controller, name: str, **labels: str) -> float | None:
    return controller._metrics.registry.get_sample_value(name, labels)


@pytest.mark.parametrize(
    "error",
    [ApiError(500, "InternalError", "x"), ApiError(0, "Unreachable", "x"), ApiError(409, "Conflict", "x")],
)
async def test_a_pass_that_the_api_server_failed_is_repeated(error: ApiError) -> None:
    def once(key: Key) -> None:
        if len(passes.made) == 1:
            raise error

    passes = Passes(once)
    controller = await serve(passes, A, until=2)

    assert passes.made == [A, A]
    assert sample(controller, "dtj_reconcile_failures_total") == (0.0 if error.status == 409 else 1.0)
    await controller.stop()


async def test_a_pass_that_breaks_ends_no_worker() -> None:
    def broken(key: Key) -> None:
        if key == A:
            raise RuntimeError("a fault of ours")

    passes = Passes(broken)
    controller = await serve(passes, A, A, B, until=2)

    assert set(passes.made) == {A, B}
    assert controller.check()["queued"] == 0.0
    await controller.stop()


async def test_a_pass_comes_again_when_it_asked_for_it() -> None:
    passes = Passes(lambda key: 0.0 if len(passes.made) < 3 else None)
    controller = await serve(passes, A, until=3)

    assert passes.made == [A, A, A]
    await controller.stop()


async def test_a_job_that_is_gone_is_looked_at_while_something_of_it_is_left() -> None:
    passes = Passes(lambda key: 0.0 if len(passes.made) < 3 else None)
    del passes.jobs[A]
    controller = await serve(passes, A, until=3)

    assert passes.made == [A, A, A]
    await controller.stop()


async def test_nothing_is_remembered_of_a_job_that_is_gone() -> None:
    passes = Passes(lambda key: None)
    del passes.jobs[A]
    controller = await serve(passes, A, until=1)
    for _ in range(5):
        await asyncio.sleep(0)

    assert passes.made == [A]
    assert controller.queue._timers == {}
    await controller.stop()


async def test_a_worker_that_ended_fails_the_health_check() -> None:
    controller = await serve(Passes(lambda key: None), A, until=1)
    controller.check()

    controller._tasks[0].cancel()
    await asyncio.gather(controller._tasks[0], return_exceptions=True)

    with pytest.raises(Stuck, match="tasks of the operator have ended: dtj-worker-0"):
        controller.check()
    await controller.stop()


async def test_a_key_that_waits_too_long_fails_the_health_check() -> None:
    now = 0.0
    passes = Passes(lambda key: None)
    controller = Controller(WorkQueue(lambda: now), passes, passes, OperatorMetrics())  # type: ignore[arg-type]
    controller.queue.add(A)
    now = STUCK_SECONDS
    assert controller.check()["oldestSeconds"] == STUCK_SECONDS

    now += 1

    with pytest.raises(Stuck, match="a job has waited 121 s"):
        controller.check()


async def test_metrics_tell_the_depth_of_the_queue_and_how_long_jobs_waited_in_it() -> None:
    now = 0.0
    passes = Passes(lambda key: None)
    controller = Controller(WorkQueue(lambda: now), passes, passes, OperatorMetrics())  # type: ignore[arg-type]
    controller.queue.add(A)
    assert sample(controller, "dtj_queue_depth") == 1.0

    now = 3.0
    controller.start(1)
    async with asyncio.timeout(120):
        while not passes.made or controller.queue._busy:
            await asyncio.sleep(0)

    assert sample(controller, "dtj_queue_depth") == 0.0
    assert sample(controller, "dtj_reconcile_wait_seconds_sum") == 3.0
    assert sample(controller, "dtj_reconcile_duration_seconds_count") == 1.0
    await controller.stop()


class SlowPasses(Passes):
    """Each pass lasts until it is let go."""

    def __init__(self) -> None:
        super().__init__(lambda key: None)
        self.let_go = asyncio.Event()
        self.finished: list[Key] = []

    async def reconcile(self, key: Key) -> float | None:
        self.made.append(key)
        await self.let_go.wait()
        self.finished.append(key)
        return None


async def test_at_the_end_a_pass_that_runs_is_finished_and_none_is_begun() -> None:
    passes = SlowPasses()
    controller = await serve(passes, A, until=1)

    stopping = asyncio.create_task(controller.stop(grace=20))
    await asyncio.sleep(0)
    controller.queue.add(B)
    passes.let_go.set()
    await stopping

    assert passes.finished == passes.made == [A]


async def test_at_the_end_a_pass_that_hangs_is_given_up() -> None:
    passes = SlowPasses()
    controller = await serve(passes, A, until=1)

    await controller.stop(grace=0.01)

    assert passes.made == [A]
    assert passes.finished == []


def at(version: str) -> Mapping[str, Any]:
    return {"metadata": {"resourceVersion": version}}


async def test_a_version_that_a_pass_has_read_is_no_pass() -> None:
    passes = Passes(lambda key: None)
    passes.jobs = {A: at("7")}
    controller = await serve(passes, A, until=1)

    controller.changed(A, "7")
    controller._add_if_unread(A)
    assert len(controller.queue) == 0
    passes.jobs[A] = at("8")
    controller.changed(A, "8")
    assert len(controller.queue) == 1
    await controller.stop()


async def test_a_trigger_before_the_cache_has_the_change_is_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_module, "_TRIGGER_SECONDS", 0.001)
    passes = Passes(lambda key: None)
    passes.jobs = {A: at("7")}
    controller = await serve(passes, A, until=1)

    controller.changed(A, "8")
    assert len(controller.queue) == 0
    passes.jobs[A] = at("8")
    controller.cached(A)
    await made(passes, A, A)
    await controller.stop()


async def test_a_job_that_the_cache_drops_is_passed_without_a_trigger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(controller_module, "_TRIGGER_SECONDS", 0.001)
    passes = Passes(lambda key: None)
    passes.jobs = {A: at("7")}
    controller = await serve(passes, A, until=1)

    del passes.jobs[A]
    controller.cached(A)
    await made(passes, A, A)
    controller.cached(A)
    await asyncio.sleep(0.01)
    assert passes.made == [A, A]
    assert controller._read == {}
    await controller.stop()


async def test_the_trigger_and_the_cache_call_for_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_module, "_TRIGGER_SECONDS", 0.001)
    passes = Passes(lambda key: None)
    passes.jobs = {A: at("7")}
    controller = await serve(passes, until=0)

    controller.cached(A)
    controller.changed(A, "7")
    await made(passes, A)
    await asyncio.sleep(0.01)
    assert passes.made == [A]
    await controller.stop()


async def made(passes: Passes, *keys: Key) -> None:
    async with asyncio.timeout(120):
        while len(passes.made) < len(keys):
            await asyncio.sleep(0.001)
    assert passes.made == list(keys)
