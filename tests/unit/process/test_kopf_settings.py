"""The reading of API answers by kopf's client: identities of objects, and answers that must not end kopf."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import kopf
import pytest
from aiohttp import web

from dtj import kopf_settings
from dtj.api.identity import API_VERSION, PLURAL
from dtj.cluster import kubernetes_client
from dtj.kopf_settings import trigger_session

JOB = {
    "metadata": {"name": "one", "namespace": "ml", "uid": "1", "resourceVersion": "7", "managedFields": [{}]},
    "spec": {"image": "a"},
}
IDENTITY = {"metadata": {"name": "one", "namespace": "ml", "uid": "1", "resourceVersion": "7"}}
DEEP = json.dumps(JOB).replace('"a"', '{"a":' * 9_000 + "1" + "}" * 9_000)
NO_OBJECTS = [
    "<html>Sign in</html>",
    "7",
    "[]",
    '{"items": [7]}',
    '{"items": [{"metadata": 7}]}',
    "[" * 100_000,
]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kopf_settings, "_NO_JSON_SECONDS", 0.0)
    monkeypatch.setattr(kopf_settings, "_REFUSED_SECONDS", 0.0)


@asynccontextmanager
async def answered(
    text: str, query: str = "", status: int = 200, path: str = "/jobs"
) -> AsyncIterator[aiohttp.ClientResponse]:
    """The answer of a server that says this."""

    async def handle(request: web.Request) -> web.Response:
        assert request.headers["User-Agent"] == kubernetes_client.OPERATOR
        assert request.headers["Authorization"] == "Bearer secret"
        return web.Response(text=text, status=status, content_type="application/json")

    app = web.Application()
    app.router.add_get(path, handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server = f"http://127.0.0.1:{runner.addresses[0][1]}"
    session = trigger_session(kopf.ConnectionInfo(server=server, token="secret")).aiohttp_session
    try:
        async with asyncio.timeout(60), session.get(f"{server}{path}{query}") as response:
            yield response
    finally:
        await session.close()
        await runner.cleanup()


async def watched(lines: Iterable[str], size: int) -> list[Any]:
    async with answered("\n".join(lines) + "\n", "?watch=true") as response:
        text = b"".join([block async for block in response.content.iter_chunked(size)])
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("job", [json.dumps(JOB), DEEP], ids=["a job", "a job that is nested without end"])
async def test_kopf_reads_the_identities_of_a_list(job: str) -> None:
    metadata = {"resourceVersion": "9", "continue": "more"}
    async with answered(f'{{"metadata": {json.dumps(metadata)}, "items": [{job}, {job}]}}') as response:
        assert await response.json() == {"metadata": metadata, "items": [IDENTITY, IDENTITY]}


async def test_a_list_may_be_empty_and_other_answers_are_as_they_are() -> None:
    for said, read in (({"items": None}, {"items": []}), ({"resources": [{"name": "a"}]},) * 2):
        async with answered(json.dumps(said)) as response:
            assert await response.json() == read


@pytest.mark.parametrize("size", [7, 1_000_000])
async def test_kopf_reads_the_identities_of_a_watch(size: int) -> None:
    gone = {"type": "ERROR", "object": {"kind": "Status", "code": 410}}
    bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "8"}}}
    lines = [f'{{"type": "ADDED", "object": {job}}}' for job in (json.dumps(JOB), DEEP)]
    added = {"type": "ADDED", "object": IDENTITY}
    assert await watched([*lines, json.dumps(bookmark), json.dumps(gone)], size) == [
        added,
        added,
        bookmark,
        gone,
    ]


@pytest.mark.parametrize("text", NO_OBJECTS)
async def test_an_answer_that_is_no_object_is_a_cut_connection(text: str) -> None:
    # kopf lists anew after this error, and ends after others.
    async with answered(text) as response:
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.json()


@pytest.mark.parametrize("text", [*NO_OBJECTS, '{"type": "ADDED", "object": 7}'])
async def test_a_line_that_is_no_event_ends_a_watch(text: str) -> None:
    line = json.dumps({"type": "ADDED", "object": JOB})
    assert await watched([line, text, line], 1_000) == [{"type": "ADDED", "object": IDENTITY}]


async def test_a_watch_that_is_cut_in_a_line_ends_with_the_line_before() -> None:
    line = json.dumps({"type": "ADDED", "object": JOB})
    async with answered(f"{line}\n{line[:20]}", "?watch=true") as response:
        assert [json.loads(block) async for block in response.content.iter_chunked(1_000)] == [
            {"type": "ADDED", "object": IDENTITY}
        ]


async def test_a_refusal_is_read_by_aiohttp_itself() -> None:
    for query in ("", "?watch=true"):
        async with answered('{"kind": "Status", "code": 410}', query, status=410) as response:
            assert await response.json() == {"kind": "Status", "code": 410}


@pytest.mark.parametrize("query", ["", "?watch=true"])
@pytest.mark.parametrize("status", [403, 404, 429, 500, 503])
async def test_a_namespace_that_is_refused_is_a_cut_connection(query: str, status: int) -> None:
    # kopf ends after some such answers, and the service of all other namespaces with it.
    path = f"/apis/{API_VERSION}/namespaces/gone/{PLURAL}"
    with pytest.raises(aiohttp.ClientPayloadError, match=str(status)):
        async with answered('{"kind": "Status"}', query, status, path):
            pass


@pytest.mark.parametrize("status", [401, 410])
async def test_kopf_reads_that_its_login_or_its_version_is_too_old(status: int) -> None:
    async with answered("{}", "?watch=true", status, f"/apis/{API_VERSION}/{PLURAL}") as response:
        assert response.status == status


async def test_kopf_asks_for_the_metadata_of_jobs_alone() -> None:
    asked: dict[str, str] = {}

    async def handle(request: web.Request) -> web.Response:
        asked[request.path_qs] = request.headers["Accept"]
        return web.json_response({})

    app = web.Application()
    app.router.add_get("/{path:.*}", handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server = f"http://127.0.0.1:{runner.addresses[0][1]}"
    session = trigger_session(kopf.ConnectionInfo(server=server, token="secret")).aiohttp_session
    jobs = "/apis/dtj.dev/v1alpha1/namespaces/ml/distributedtrainingjobs"
    try:
        for path in (f"{jobs}?limit=100", f"{jobs}?watch=true", "/apis/dtj.dev/v1alpha1"):
            async with asyncio.timeout(60), session.get(server + path):
                pass
    finally:
        await session.close()
        await runner.cleanup()

    of = "g=meta.k8s.io;v=v1,application/json"
    assert asked == {
        f"{jobs}?limit=100": f"application/json;as=PartialObjectMetadataList;{of}",
        f"{jobs}?watch=true": f"application/json;as=PartialObjectMetadata;{of}",
        "/apis/dtj.dev/v1alpha1": "*/*",
    }
