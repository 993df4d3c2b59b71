"""What kopf does at its first lists."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import kopf
import pytest
from kopf._cogs.aiokits import aiotoggles

from dtj.kopf_settings import WakingAtChanges, configure, wake_at_changes
from tests.unit.support.kube_server import KubeServer
from tests.unit.support.pods import running

PODS = 200


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    kopfs = aiotoggles.ToggleSet
    yield
    vars(aiotoggles).update(ToggleSet=kopfs)


async def test_objects_of_the_first_lists_wait_for_the_last_of_them_and_are_woken_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = 0
    is_on = WakingAtChanges.is_on

    def counted(self: WakingAtChanges) -> bool:
        nonlocal asked
        asked += 1
        return is_on(self)

    monkeypatch.setattr(WakingAtChanges, "is_on", counted)
    settings, registry, stop = kopf.OperatorSettings(), kopf.OperatorRegistry(), asyncio.Event()
    configure(settings)
    server = KubeServer()
    indexed_at_first: list[int] = []

    async def login(**_: Any) -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(server=server.url)

    async def index(name: str, **_: Any) -> dict[str, str]:
        return {name: name}

    async def event(names: kopf.Index[str, str], **_: Any) -> None:
        indexed_at_first.append(len(names))
        if len(indexed_at_first) == PODS:
            stop.set()

    kopf.on.login(registry=registry)(login)
    kopf.index("", "v1", "pods", id="names", registry=registry)(index)
    kopf.on.event("", "v1", "pods", registry=registry)(event)
    wake_at_changes()
    async with asyncio.timeout(360), server.served():
        for number in range(PODS):
            pod = running(f"mnist-worker-{number}")
            pod["metadata"] |= {"namespace": "ml", "uid": str(number)}
            await server.put(("pods", "ml", f"mnist-worker-{number}"), pod, "ADDED")
        await kopf.operator(
            registry=registry, settings=settings, standalone=True, clusterwide=True, stop_flag=stop
        )

    assert indexed_at_first == [PODS] * PODS
    # Twice for each toggle that came and went, and for each object before and after it waited: each object has one,
    # the operator a few. With kopf's own it is the square of the objects.
    assert PODS < asked < 8 * PODS


async def test_whoever_waits_for_the_other_state_is_woken_too() -> None:
    toggles = WakingAtChanges(all)
    waiting = asyncio.create_task(toggles.wait_for(False))
    await asyncio.sleep(0)
    assert not waiting.done()

    toggle = await toggles.make_toggle()
    await asyncio.wait_for(waiting, 10)
    waiting = asyncio.create_task(toggles.wait_for(True))
    await toggle.turn_to(True)
    await asyncio.wait_for(waiting, 10)
