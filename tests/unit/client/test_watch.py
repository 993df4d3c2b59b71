"""Watching and waiting over cut connections and outages, with and without an event loop.

* watches that are cut, refused or too old
* a job that is deleted or replaced by another of its name
* waiting for an end, a condition or a timeout
* the client without an event loop
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dtj.client import (
    AsyncClient,
    Client,
    ConditionType,
    DistributedTrainingJob,
    DtjError,
    NotFound,
    TimedOut,
    Unreachable,
    watching,
)
from tests.patience import PATIENCE
from tests.unit.support.http_cluster import HttpCluster
from tests.unit.support.jobs import stored
from tests.unit.support.waiting import until

ENDED = {
    "phase": "Succeeded",
    "observedGeneration": 1,
    "completionTime": "2026-11-21T13:00:00Z",
    "conditions": [
        {"type": "Succeeded", "status": "True", "reason": "R", "lastTransitionTime": "2026-11-21T13:00:00Z"}
    ],
}


async def collect(states: AsyncIterator[DistributedTrainingJob]) -> list[str | None]:
    return [job.status.phase async for job in states]


async def test_a_watch_gives_the_present_state_and_each_change_until_the_job_is_deleted(
    server: HttpCluster, client: AsyncClient
) -> None:
    server.cluster.put(stored())
    seen = asyncio.create_task(collect(client.watch("mnist")))
    await until(lambda: len(server.watches) == 1)
    server.cluster.put(stored("another"))
    for phase in ("Starting", "Running", "Succeeded"):
        server.set_status("mnist", phase=phase)
    server.delete_job("mnist")
    assert await asyncio.wait_for(seen, 10 * PATIENCE) == [None, "Starting", "Running", "Succeeded"]


async def test_a_watch_that_is_cut_goes_on_and_tells_nothing_twice(
    server: HttpCluster, client: AsyncClient
) -> None:
    server.cluster.put(stored())
    seen = asyncio.create_task(collect(client.watch("mnist")))
    await until(lambda: len(server.watches) == 1)
    server.set_status("mnist", phase="Starting")
    server.watches.cut()
    await until(lambda: len(server.watches) == 0)
    await until(lambda: len(server.watches) == 1)
    server.set_status("mnist", phase="Running")
    server.delete_job("mnist")
    assert await asyncio.wait_for(seen, 10 * PATIENCE) == [None, "Starting", "Running"]


async def test_a_change_while_the_watch_was_cut_is_not_missed(
    server: HttpCluster, client: AsyncClient
) -> None:
    server.cluster.put(stored())
    seen = asyncio.create_task(collect(client.watch("mnist")))
    await until(lambda: len(server.watches) == 1)
    server.refusals["GET", "distributedtrainingjobs"] = [(503, "ServiceUnavailable", "starting")] * 3
    server.watches.cut()
    server.set_status("mnist", phase="Running")
    await until(lambda: not server.refusals["GET", "distributedtrainingjobs"])
    await until(lambda: len(server.watches) == 1)
    server.delete_job("mnist")
    assert await asyncio.wait_for(seen, 10 * PATIENCE) == [None, "Running"]


async def test_a_version_that_the_server_has_forgotten_is_asked_for_anew(
    server: HttpCluster, client: AsyncClient
) -> None:
    server.cluster.put(stored())
    seen = asyncio.create_task(collect(client.watch("mnist")))
    await until(lambda: len(server.watches) == 1)
    server.cluster.forget()
    await until(lambda: len([1 for path in server.paths if "watch=true" in path]) == 2)
    await until(lambda: len(server.watches) == 1)
    server.set_status("mnist", phase="Running")
    server.delete_job("mnist")
    assert await asyncio.wait_for(seen, 10 * PATIENCE) == [None, "Running"]


async def test_another_job_of_the_name_ends_the_watch(server: HttpCluster, client: AsyncClient) -> None:
    server.cluster.put(stored())
    seen = asyncio.create_task(collect(client.watch("mnist")))
    await until(lambda: len(server.watches) == 1)
    again = stored()
    again["metadata"]["uid"] = "of another"
    server.refusals["GET", "distributedtrainingjobs"] = [(503, "ServiceUnavailable", "starting")]
    server.watches.cut()
    server.delete_job("mnist")
    server.cluster.put(again)
    assert await asyncio.wait_for(seen, 10 * PATIENCE) == [None]


async def test_a_server_that_stays_away_ends_the_watch(
    server: HttpCluster, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "PATIENCE_SECONDS", 0.1)
    server.cluster.put(stored())
    seen = asyncio.create_task(collect(client.watch("mnist")))
    await until(lambda: len(server.watches) == 1)
    server.refusals["GET", "distributedtrainingjobs"] = [(503, "ServiceUnavailable", "gone")] * 1000
    server.watches.cut()
    with pytest.raises(Unreachable, match="503 ServiceUnavailable: gone"):
        await asyncio.wait_for(seen, 10 * PATIENCE)


async def test_wait_returns_the_job_that_has_ended(server: HttpCluster, client: AsyncClient) -> None:
    server.cluster.put(stored())
    waiting = asyncio.create_task(client.wait("mnist", timeout=20 * PATIENCE))
    await until(lambda: len(server.watches) == 1)
    server.set_status("mnist", phase="Running")
    server.set_status("mnist", **ENDED)
    assert (await waiting).status.phase == "Succeeded"
    await until(lambda: len(server.watches) == 0)


async def test_wait_bears_with_a_server_that_is_away_at_first(
    server: HttpCluster, client: AsyncClient
) -> None:
    server.cluster.put(stored())
    server.set_status("mnist", **ENDED)
    server.refusals["GET", "distributedtrainingjobs"] = [(503, "ServiceUnavailable", "starting")] * 3
    assert (await client.wait("mnist", timeout=30 * PATIENCE)).status.phase == "Succeeded"


async def test_wait_tells_that_the_server_was_away_all_the_time(
    server: HttpCluster, client: AsyncClient
) -> None:
    server.refusals["GET", "distributedtrainingjobs"] = [(503, "ServiceUnavailable", "starting")] * 1000
    with pytest.raises(TimedOut, match=r"the API server did not report mnist within 0\.2 s"):
        await client.wait("mnist", timeout=0.2)


async def test_wait_ends_in_time_and_when_the_job_is_deleted(
    server: HttpCluster, client: AsyncClient
) -> None:
    server.cluster.put(stored() | {"status": {"phase": "Running"}})
    with pytest.raises(TimedOut, match=r"mnist is Running after 2 s: waited for its end"):
        await client.wait("mnist", timeout=2)
    await until(lambda: len(server.watches) == 0)
    waiting = asyncio.create_task(client.wait("mnist"))
    await until(lambda: len(server.watches) == 1)
    server.delete_job("mnist")
    with pytest.raises(NotFound, match="mnist was deleted while waiting for its end") as gone:
        await waiting
    assert gone.value.remedy is None


async def test_a_job_that_goes_by_its_ttl_is_waited_for_all_the_same(
    server: HttpCluster, client: AsyncClient
) -> None:
    server.cluster.put(stored(runPolicy={"ttlSecondsAfterFinished": 0}) | {"status": {"phase": "Running"}})
    waiting = asyncio.create_task(client.wait("mnist"))
    await until(lambda: len(server.watches) == 1)
    server.cluster.put(server.jobs["mnist"] | {"status": ENDED})
    server.delete_job("mnist")
    assert (await waiting).status.phase == "Succeeded"

    await until(lambda: len(server.watches) == 0)
    server.cluster.put(stored(runPolicy={"ttlSecondsAfterFinished": 0}) | {"status": {"phase": "Running"}})
    waiting = asyncio.create_task(client.wait("mnist"))
    await until(lambda: len(server.watches) == 1)
    server.delete_job("mnist")
    with pytest.raises(NotFound, match="mnist was deleted while waiting for its end") as gone:
        await waiting
    assert gone.value.remedy == "the job may have ended: its runPolicy.ttlSecondsAfterFinished is 0"


async def test_a_condition_that_never_comes_ends_the_wait(server: HttpCluster, client: AsyncClient) -> None:
    server.cluster.put(stored() | {"status": ENDED})
    with pytest.raises(DtjError, match="mnist is Succeeded and will never be Suspended"):
        await client.wait_for("mnist", ConditionType.SUSPENDED)
    assert (await client.wait_for("mnist", ConditionType.SUCCEEDED)).name == "mnist"


async def test_the_client_without_a_loop_does_the_same(server: HttpCluster) -> None:
    server.cluster.put(stored())

    def program() -> list[str | None]:
        phases: list[str | None] = []
        with Client() as client:
            assert client.namespace == "ml"
            assert [job.name for job in client.list()] == ["mnist"]
            with pytest.raises(NotFound):
                client.get("gone")
            with pytest.raises(NotFound):
                next(client.watch("gone"))
            for job in client.watch("mnist"):
                phases.append(job.status.phase)
                if job.status.finished:
                    break
            client.delete("mnist")
            assert list(client.list()) == []
        return phases

    done = asyncio.create_task(asyncio.to_thread(program))
    await until(lambda: len(server.watches) == 1)
    server.set_status("mnist", phase="Running")
    server.set_status("mnist", **ENDED)
    assert await done == [None, "Running", "Succeeded"]
    assert server.jobs == {}


async def test_a_client_that_can_not_begin_leaves_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(Unreachable):
        Client()
    assert "dtj-client" not in [thread.name for thread in threading.enumerate()]
