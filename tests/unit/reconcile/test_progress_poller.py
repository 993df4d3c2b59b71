"""The progress poller: whatever pods answer, only the progress changes.

* pods that answer wrongly, slowly or in pieces
* the request for stacks
* intervals for few pods, for many pods and for pods under close watch
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from dtj.api.status import ProgressStatus
from dtj.reconcile.progress import ProgressPoller
from dtj.status.observed import ProgressReport
from tests.unit.support import virtual_time

KEY = ("ml", "mnist")
POD = "mnist-worker-0"
GOOD = b'{"progress": {"step": 7}}'
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def whole(status: int, body: bytes, **headers: str) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, body=body, headers=headers)

    return answer


async def cut(request: web.Request) -> web.StreamResponse:
    """The pod dies in the middle of its answer."""
    response = web.StreamResponse(headers={"Content-Length": str(len(GOOD))})
    await response.prepare(request)
    await response.write(GOOD[:9])
    assert request.transport is not None
    request.transport.abort()
    return response


async def in_pieces(request: web.Request) -> web.StreamResponse:
    """A network that takes its time."""
    response = web.StreamResponse(headers={"Content-Length": str(len(GOOD))})
    await response.prepare(request)
    for piece in (GOOD[:9], GOOD[9:]):
        await response.write(piece)
        await asyncio.sleep(0.05)
    return response


class Pod:
    """Gives these answers one after the other, then well."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        return await (self.answers.pop(0) if self.answers else whole(200, GOOD))(request)


@pytest.fixture
async def asked() -> AsyncIterator[Callable[[Pod], Awaitable[ProgressPoller]]]:
    """A poller that follows a pod."""
    made: list[Any] = []

    async def ask(pod: Pod) -> ProgressPoller:
        app = web.Application()
        app.router.add_get("/progress", pod.answer)
        server = TestServer(app)
        await server.start_server()
        poller = ProgressPoller(lambda _: None, 0.01, lambda _: server.port or 0)
        made.extend((poller, server))
        poller.follow(KEY, {POD: "127.0.0.1"})
        return poller

    yield ask
    for entry in made:
        await entry.close()


async def first_report(poller: ProgressPoller) -> ProgressReport:
    async with asyncio.timeout(120):
        while (report := poller.report(KEY, POD)) is None:
            await asyncio.sleep(0.001)
    return report


@pytest.mark.parametrize(
    "bad",
    [
        whole(500, GOOD),
        whole(302, b"", Location="http://127.0.0.1:1/progress"),
        whole(200, b"not JSON \xff"),
        whole(200, b"[]"),
        whole(200, b"[" * 20_000),
        whole(200, b" " * 1_000_000 + GOOD),
        cut,
    ],
    ids=["error", "elsewhere", "no JSON", "a list", "deep", "long", "cut"],
)
async def test_a_pod_that_answers_badly_is_asked_again(
    bad: Answer, asked: Callable[[Pod], Awaitable[ProgressPoller]]
) -> None:
    pod = Pod(bad, bad)
    report = await first_report(await asked(pod))

    assert pod.answers == []
    assert report.progress is not None
    assert report.progress.step == 7


async def test_an_answer_may_come_in_pieces(asked: Callable[[Pod], Awaitable[ProgressPoller]]) -> None:
    pod = Pod(*[in_pieces] * 1000)
    await first_report(await asked(pod))

    assert len(pod.answers) == 999


async def test_who_answers_is_known_and_the_question_for_stacks_is_passed_on() -> None:
    up, asked, moved = True, [], asyncio.Event()

    async def progress(_: web.Request) -> web.Response:
        told = {"progress": {"step": 3}, "phases": {"programEnded": "2026-11-21T12:00:00Z"}}
        return web.json_response(told) if up else web.Response(status=503)

    async def stacks(request: web.Request) -> web.Response:
        asked.append(request.path)
        moved.set()
        return web.Response(status=202)

    app = web.Application()
    app.add_routes([web.get("/progress", progress), web.post("/stacks", stacks)])
    server = TestServer(app)
    await server.start_server()
    poller = ProgressPoller(lambda _: moved.set(), 0.01, lambda pod: (server.port or 0) if pod == POD else 1)
    try:
        async with asyncio.timeout(120):
            poller.follow(KEY, {POD: "127.0.0.1"})
            assert poller.answers(KEY, POD) is None
            await moved.wait()
            assert poller.answers(KEY, POD) is True
            report = poller.report(KEY, POD)
            assert report is not None
            assert report.program_ended
            moved.clear()
            up = False
            await moved.wait()
            assert poller.answers(KEY, POD) is False
            assert poller.report(KEY, POD) == report
            moved.clear()
            poller.ask_for_stacks({"gone": "127.0.0.1", POD: "127.0.0.1"})
            await moved.wait()
            assert asked == ["/stacks"]
    finally:
        await poller.close()
        await server.close()


class Asking(ProgressPoller):
    """Its pods answer at once, each time with a step more."""

    def __init__(self, interval: float, a_second: float) -> None:
        super().__init__(lambda _: None, interval, a_second=a_second)
        self.asked: dict[str, list[float]] = {}

    async def _fetch(self, address: str) -> ProgressReport | None:
        at = self.asked.setdefault(address.split("/")[2].partition(":")[0], [])
        at.append(asyncio.get_running_loop().time())
        return ProgressReport(progress=ProgressStatus(step=len(at)))


def longest_pause(at: list[float]) -> float:
    return max(later - earlier for earlier, later in pairwise(at))


def test_many_pods_share_the_questions_but_for_the_first_and_for_those_that_are_followed_closely() -> None:
    async def half_an_hour() -> Asking:
        poller = Asking(5.0, a_second=4.0)
        poller.follow(("ml", "watched"), {POD: "close"}, closely=True)
        for number in range(199):
            poller.follow(("ml", f"job-{number}"), {POD: f"job-{number}"})
        await asyncio.sleep(900)
        poller.follow(("ml", "new"), {POD: "new"})
        await asyncio.sleep(900)
        await poller.close()
        return poller

    asked = virtual_time.run(half_an_hour()).asked

    assert asked["new"][0] - 900 <= 6.25
    assert longest_pause(asked.pop("close")) <= 6.25
    questions = sum(map(len, asked.values()))
    assert 0.9 * 4 * 1800 < questions < 1.2 * 4 * 1800
    # 200 of them at 4 a second, and the jitter.
    assert max(longest_pause(at) for at in asked.values()) <= 51 * 1.25


def test_few_pods_are_asked_as_often_as_the_interval_says() -> None:
    async def a_minute() -> Asking:
        poller = Asking(5.0, a_second=4.0)
        for number in range(20):
            poller.follow(("ml", f"job-{number}"), {POD: f"job-{number}"})
        await asyncio.sleep(60)
        await poller.close()
        return poller

    assert max(longest_pause(at) for at in virtual_time.run(a_minute()).asked.values()) <= 6.25


def test_a_pod_that_is_followed_closely_from_now_on_keeps_its_report_and_is_asked_soon() -> None:
    async def later() -> tuple[Asking, ProgressReport | None, float]:
        poller = Asking(5.0, a_second=0.01)
        poller.follow(KEY, {POD: "mnist"})
        await asyncio.sleep(20)
        poller.follow(KEY, {POD: "mnist"}, closely=True)
        known, now = poller.report(KEY, POD), asyncio.get_running_loop().time()
        await asyncio.sleep(20)
        await poller.close()
        return poller, known, now

    poller, known, now = virtual_time.run(later())

    assert known is not None
    assert len([at for at in poller.asked["mnist"] if at <= now]) == 1, "100 s lie between two questions"
    assert poller.asked["mnist"][1] - now <= 6.25
