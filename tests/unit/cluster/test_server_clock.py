"""ServerClock, the operator's estimate of the API server's time."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from aiohttp import web

from dtj.cluster.api import KubernetesApi
from dtj.cluster.interface import ApiError
from dtj.cluster.kubernetes_client import client
from dtj.cluster.server_clock import ServerClock

START = datetime(2026, 11, 21, 12, tzinfo=UTC)


class Machine:
    """The operator's machine: its clock is so far from the API server's."""

    def __init__(self, off: timedelta) -> None:
        self.seconds = 5000.0
        self._off = off
        self.clock = ServerClock(lambda: self.seconds, START + off)

    @property
    def right(self) -> datetime:
        """The time of the API server."""
        return START + timedelta(seconds=self.seconds - 5000)

    def ask(self, there: float = 0.0, back: float = 0.0, differs: float = 0.0) -> None:
        """A request, so many seconds under way. differs: the clock of the API server that answers."""
        sent = self.clock.seconds()
        self.seconds += there
        date = format_datetime((self.right + timedelta(seconds=differs)).replace(microsecond=0), usegmt=True)
        self.seconds += back
        self.clock.see(date, sent)

    @property
    def wrong_by(self) -> float:
        return (self.clock.now() - self.right).total_seconds()


@pytest.mark.parametrize("hours", [-200, -1, 1, 200])
def test_a_clock_that_is_hours_off_is_right_after_one_answer(hours: int) -> None:
    machine = Machine(timedelta(hours=hours))
    assert machine.wrong_by == hours * 3600
    machine.ask(0.01, 0.01)

    assert abs(machine.wrong_by) <= 1.02


@pytest.mark.parametrize("off", [-1.9, 0.0, 0.7, 1.9])
def test_a_clock_that_is_right_is_left_alone(off: float) -> None:
    machine = Machine(timedelta(seconds=off))
    for number in range(100):
        machine.seconds += 0.37
        machine.ask(number / 100, number / 50)
        assert machine.wrong_by == pytest.approx(off, abs=1e-3)


@pytest.mark.parametrize(("there", "back"), [(20.0, 0.0), (0.0, 20.0)])
def test_an_answer_that_was_long_under_way_moves_no_clock_that_may_be_right(
    there: float, back: float
) -> None:
    machine = Machine(timedelta())
    machine.ask(there, back)
    assert machine.wrong_by == pytest.approx(0, abs=1e-3)

    late = Machine(timedelta(hours=1))
    late.ask(there, back)
    assert abs(late.wrong_by) <= 21
    late.ask()
    assert abs(late.wrong_by) <= 3


def test_servers_whose_clocks_differ_a_little_do_not_move_it_to_and_fro() -> None:
    machine = Machine(timedelta())
    for number in range(100):
        machine.seconds += 0.2
        machine.ask(differs=1.5 * (number % 2))
    assert machine.wrong_by == pytest.approx(0, abs=1e-3)


def test_a_machine_whose_own_clock_is_set_goes_on() -> None:
    """It is looked at once, at the start: afterwards only the clock counts that nobody sets."""
    machine = Machine(timedelta())
    machine.seconds += 86400
    assert machine.wrong_by == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize("date", [None, "", "yesterday", "Sat, 99 Nov 2026 12:00:00 GMT", "\ud800"])
def test_an_answer_without_a_date_says_nothing(date: str | None) -> None:
    machine = Machine(timedelta(hours=1))
    machine.clock.see(date, machine.clock.seconds())
    assert machine.wrong_by == 3600


def test_a_difference_is_told_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine(timedelta(hours=-1))
    for number in range(100):
        machine.seconds += 1
        machine.ask(differs=60 * (number % 2))

    assert caplog.messages == [
        "the API server's clock is 3600 s ahead of the operator's: the operator uses the API server's clock"
    ]


async def test_answers_of_the_api_server_move_it_and_errors_on_the_way_do_not() -> None:
    dates = {"/api/ok": "Sat, 21 Nov 2026 15:00:00 GMT", "/api/broken": "Sat, 21 Nov 2026 23:00:00 GMT"}

    async def handle(request: web.Request) -> web.Response:
        status = 200 if request.path == "/api/ok" else 502
        return web.json_response({}, status=status, headers={"Date": dates[request.path]})

    app = web.Application()
    app.router.add_get("/{path:.*}", handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    loop = asyncio.get_running_loop()
    clock = ServerClock(loop.time, START)
    api = KubernetesApi(
        client.ApiClient(client.Configuration(host=f"http://127.0.0.1:{runner.addresses[0][1]}")), clock=clock
    )
    try:
        with pytest.raises(ApiError, match="502"):
            await api._request("GET", "/api/broken", "Thing")
        assert clock.now() < START + timedelta(hours=1)
        await api._request("GET", "/api/ok", "Thing")
        assert START + timedelta(hours=3) <= clock.now() < START + timedelta(hours=4)
    finally:
        await api.close()
        await runner.cleanup()
