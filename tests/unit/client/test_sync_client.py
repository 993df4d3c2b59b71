"""The methods of Client: equal to those of AsyncClient in names, signatures and docstrings. Its end."""

from __future__ import annotations

import asyncio
import inspect
import signal
import sys
from concurrent.futures import CancelledError
from threading import Thread

import pytest
from aiohttp import web

from dtj.cli.main import EXIT_INTERRUPTED
from dtj.client import AsyncClient, Client
from tests.patience import PATIENCE
from tests.unit.support.http_cluster import Answer, Fault, HttpCluster
from tests.unit.support.jobs import stored
from tests.unit.support.waiting import until

METHODS = [name for name in vars(AsyncClient) if not name.startswith("_")]


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_that_of_the_async_client(name: str) -> None:
    here, there = getattr(Client, name), getattr(AsyncClient, name)
    assert inspect.getdoc(here) == inspect.getdoc(there)
    assert isinstance(here, property) or inspect.signature(here) == inspect.signature(there)
    assert not inspect.iscoroutinefunction(here)


def holding_back(server: HttpCluster, number: int | None, event: asyncio.Event) -> Fault:
    """Carry out all requests, and answer the patch of this number after the event; None: answer all at once."""

    async def answer_late(request: web.Request, answer: Answer) -> web.StreamResponse:
        response = await answer()
        if request.method == "PATCH" and len(server.patches) == number:
            await event.wait()
        return response

    return answer_late


@pytest.mark.parametrize("answered", [True, False], ids=["suspended", "answer outstanding"])
async def test_the_end_of_the_client_ends_a_change_as_an_error_does(
    server: HttpCluster, answered: bool
) -> None:
    """Ctrl-C of `dtj scale` and of `dtj ui` while the job saves its checkpoint, or before the first answer."""
    server.cluster.put(stored())
    client, ended = await asyncio.to_thread(Client), list[CancelledError]()
    end = asyncio.Event()

    def scale() -> None:
        try:
            client.scale("mnist", {"worker": 3})
        except CancelledError as error:
            ended.append(error)

    server.fault = holding_back(server, None if answered else 1, end)
    Thread(target=scale, daemon=True).start()
    await until(lambda: server.jobs["mnist"]["spec"].get("runPolicy", {}).get("suspend", False))
    if answered:
        await until(lambda: bool(server.watches))
    await asyncio.to_thread(client.close)
    end.set()
    await until(lambda: bool(ended))
    assert [patch["spec"]["runPolicy"]["suspend"] for patch in server.patches] == [True, False]
    assert not server.jobs["mnist"]["spec"]["runPolicy"]["suspend"]


@pytest.mark.parametrize("held", [1, 2, None], ids=["suspended", "resumed", "waiting"])
async def test_ctrl_c_of_a_command_leaves_no_job_suspended(server: HttpCluster, held: int | None) -> None:
    """`held`: of the changes of the job, the one that is not answered until Ctrl-C; None: all are answered."""
    server.cluster.put(stored())
    interrupted = asyncio.Event()

    server.fault = holding_back(server, held, interrupted)
    words = ["scale", "mnist", "--workers=3", *(["--timeout=1s"] if held == 2 else [])]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "from dtj.cli.main import main; main()", *words, stderr=asyncio.subprocess.PIPE
    )
    if held:
        await until(lambda: len(server.patches) == held, 20 * PATIENCE)
    else:
        await until(lambda: bool(server.watches), 20 * PATIENCE)
    process.send_signal(signal.SIGINT)
    interrupted.set()
    _, said = await process.communicate()
    assert process.returncode == EXIT_INTERRUPTED, said
    assert not server.jobs["mnist"]["spec"]["runPolicy"]["suspend"]
    assert b"`dtj resume mnist`" in said
    assert b"Traceback" not in said
