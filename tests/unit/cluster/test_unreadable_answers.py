"""Successful API answers without a JSON object, or with JSON that Python can't read.

* answers, lists and watch events that are no objects
* an informer behind a proxy that answers in the API server's place
* objects that are nested too deeply or too large
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from dtj.api.identity import API_VERSION, KIND
from dtj.api.job import Manifest
from dtj.api.manifest_check import check
from dtj.api.nesting import MOST_LEVELS, TOO_DEEP, read_json
from dtj.cluster.api import KubernetesApi
from dtj.cluster.interface import ApiError, Selection
from dtj.cluster.kubernetes_client import client
from dtj.reconcile.informer import Cache, Informer
from tests.unit.support.jobs import manifest

PATIENCE = 60.0
PODS = Selection("v1", "Pod", "job")
POD: Manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one", "namespace": "ml"}}
NO_OBJECTS = ["<html>Sign in</html>", "", "7", "[]", '{"items": [', '"\\', "[" * 100_000]


@asynccontextmanager
async def answering(answer: Callable[[web.Request], str]) -> AsyncIterator[KubernetesApi]:
    async def handle(request: web.Request) -> web.Response:
        return web.Response(text=answer(request), content_type="application/json")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    api = KubernetesApi(
        client.ApiClient(client.Configuration(host=f"http://127.0.0.1:{runner.addresses[0][1]}"))
    )
    try:
        yield api
    finally:
        await api.close()
        await runner.cleanup()


def nested(levels: int, inner: str = "1") -> str:
    return '{"a]\\"}":[' * (levels // 2) + inner + "]}" * (levels // 2)


def levels_of(data: object) -> int:
    levels, layer = 0, [data]
    while layer := [part for part in layer if isinstance(part, (dict, list))]:
        levels += 1
        layer = [child for part in layer for child in (part.values() if isinstance(part, dict) else part)]
    return levels


@pytest.mark.parametrize("text", NO_OBJECTS)
async def test_an_answer_that_is_no_object_is_no_answer(text: str) -> None:
    async with answering(lambda _: text) as api:
        for request in (api.get(POD), api.create(POD), api.pods_of("ml", "one"), anext(api.pages(PODS))):
            with pytest.raises(ApiError, match="the answer is not a JSON object") as raised:
                await request  # type: ignore[misc]
            assert raised.value.status == 0


@pytest.mark.parametrize("text", ["{}", '{"items": []}', '{"metadata": {"resourceVersion": "1"}}'])
async def test_a_list_without_its_parts_is_no_answer(text: str) -> None:
    async with answering(lambda _: text) as api:
        with pytest.raises(ApiError, match="the answer is not a list of objects") as raised:
            await anext(api.pages(PODS))
        assert raised.value.status == 0


@pytest.mark.parametrize("text", [*NO_OBJECTS[2:], "{}", '{"type": "ADDED", "object": 7}'])
async def test_a_watch_that_tells_of_no_object_is_cut(text: str) -> None:
    async with answering(lambda _: text + "\n") as api:
        with pytest.raises(ApiError) as raised:
            await anext(api.changes(PODS, "1"))
        assert raised.value.status == 0


async def test_an_informer_outlives_a_proxy_that_answers_in_the_servers_place() -> None:
    texts = ["<html>Sign in</html>", "[]", json.dumps({"metadata": {"resourceVersion": "1"}, "items": []})]
    async with answering(lambda request: texts[0] if len(texts) == 1 else texts.pop(0)) as api:
        informer = Informer(api, PODS, Cache(lambda _: "", lambda _: None))
        running = asyncio.create_task(informer.run())
        try:
            await asyncio.wait_for(informer.synced.wait(), PATIENCE)
            assert not running.done()
        finally:
            running.cancel()


async def test_an_object_that_is_nested_without_end_hides_no_other_of_its_list_and_its_watch() -> None:
    deep = f'{{"metadata": {{"name": "deep"}}, "spec": {nested(9_000)}}}'
    other = '{"metadata": {"name": "other"}, "spec": {"a": [{"b": "]}\\\\\\""}]}}'
    page = f'{{"metadata": {{"resourceVersion": "1"}}, "items": [{other}, {deep}, {other}]}}'
    events = f'{{"type": "ADDED", "object": {deep}}}\n{{"type": "ADDED", "object": {other}}}\n'
    async with answering(lambda request: events if "watch" in request.query else page) as api:
        items = [item async for some, _ in api.pages(PODS) for item in some]
        watched = [about async for _, about in api.changes(PODS, "1")]

    assert [item["metadata"]["name"] for item in items] == ["other", "deep", "other"]
    assert [item["metadata"]["name"] for item in watched] == ["deep", "other"]
    for whole in (items[0], items[2], watched[1]):
        assert whole == json.loads(other)
    for cut in (items[1], watched[0]):
        assert MOST_LEVELS < levels_of(cut) <= 2 * MOST_LEVELS


def test_what_python_can_read_is_not_cut() -> None:
    for levels in (2, 2 * MOST_LEVELS, 2 * MOST_LEVELS + 2):
        assert read_json(nested(levels)) == json.loads(nested(levels))


def test_more_than_an_api_server_stores_is_not_read_to_its_end() -> None:
    with pytest.raises(ValueError, match="more than 20000 lists and maps in one another"):
        read_json(nested(30_000))


def a_job(levels: int) -> Manifest:
    """Of so many levels, itself counted."""
    job = manifest()
    inner: Manifest = {}
    for _ in range(levels - 6):
        inner = {"a": inner}
    job["spec"]["replicaSpecs"]["worker"]["template"] = {"spec": inner}
    assert levels_of(job) == levels
    return job


@pytest.mark.parametrize("levels", [MOST_LEVELS + 1, 5_000])
def test_a_job_that_is_nested_too_deeply_is_refused_at_its_field(levels: int) -> None:
    job, faults = check(a_job(levels))

    assert job is None
    assert list(map(str, faults)) == [f"spec.replicaSpecs.worker.template: {TOO_DEEP}"]
    assert faults[0].place == ("spec", "replicaSpecs", "worker", "template")


def test_a_job_may_be_nested_as_deeply_as_its_file() -> None:
    assert TOO_DEEP not in str(check(a_job(MOST_LEVELS))[1])


def test_a_status_does_not_count() -> None:
    job = manifest() | {"apiVersion": API_VERSION, "kind": KIND}
    inner: Manifest = {}
    for _ in range(5_000):
        inner = {"a": inner}
    assert check(job | {"status": {"x": inner}})[1] == check(job)[1]


def test_the_field_of_a_shallow_place_is_told() -> None:
    inner: list[object] = []
    for _ in range(5_000):
        inner = [inner]
    assert [str(fault) for fault in check(manifest() | {"more": inner})[1]] == [f"more[0][0][0]: {TOO_DEEP}"]
