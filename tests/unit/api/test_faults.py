"""The operator's process against a faulty API server over real HTTP: no pod twice, no storm of requests.

* 429, 500, HTML, no answer, and connections cut before and after the request is carried out
* watches that are cut again and again
* lists and watches of an old version
* pods and a job that are deleted while no watch is open
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from dtj.api.identity import KIND
from dtj.api.job import Manifest
from tests.unit.support.api_answers import refused
from tests.unit.support.http_cluster import Answer, Fault, HttpCluster, http_cluster
from tests.unit.support.jobs import manifest
from tests.unit.support.kubelet import Ending
from tests.unit.support.operator_process import operating
from tests.unit.support.waiting import until

JOB = (KIND, "ml", "mnist")
PODS = ["mnist-launcher-0", "mnist-worker-0", "mnist-worker-1"]
WATCHES = 7
"""Of jobs by kopf; of jobs, their pods, Services, ConfigMaps and Deployments, and record pods, by the informers."""
PATIENCE = 360.0
FAULT_SECONDS = 2.0
QUIET_SECONDS = 3.0
"""Without a request: nothing is left to do. Retries of an informer come sooner after so short a trouble."""
MOST_REQUESTS = 120
"""In a time of trouble of FAULT_SECONDS, for one job: a storm would be thousands."""


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[HttpCluster]:
    """An API server, and the operator that works on it."""
    async with http_cluster() as made:
        async with operating(made.url, tmp_path) as process:
            await until(lambda: len(made.watches) == WATCHES, PATIENCE)
            yield made
            assert process.returncode is None, "the operator gave up"
        assert process.returncode == 0


def apply(server: HttpCluster) -> None:
    server.cluster.add(manifest() | {"metadata": {"name": "mnist", "namespace": "ml"}})


def status(server: HttpCluster) -> Manifest:
    return dict(server.cluster.objects.get(JOB, {}).get("status") or {})


async def succeeds(server: HttpCluster) -> None:
    await until(lambda: status(server).get("phase") in ("Succeeded", "Failed"), PATIENCE)
    assert status(server)["phase"] == "Succeeded"


def no_pod_was_made_twice(server: HttpCluster) -> None:
    assert max(Counter(server.cluster.created_pods).values()) == 1


def endless(pod: Manifest, ran: int) -> Ending | None:
    return None


def launcher_ends(pod: Manifest, ran: int) -> Ending | None:
    return (0, "") if "launcher" in pod["metadata"]["name"] else None


async def runs(server: HttpCluster) -> None:
    """Bring a job to where it runs, until its program is another one."""
    server.kubelet.program = endless
    apply(server)
    await until(lambda: status(server).get("phase") == "Running", PATIENCE)


async def trouble(server: HttpCluster, fault: Fault) -> int:
    """A time of trouble; how many requests came in it."""
    before = len(server.requests)
    server.fault = fault
    server.watches.cut()
    await asyncio.sleep(FAULT_SECONDS)
    server.fault = None
    made = len(server.requests) - before
    print(f"{made / FAULT_SECONDS:.1f} requests a second")
    return made


def lists(server: HttpCluster, since: int) -> int:
    """How many lists were asked for since a request."""
    collections = ("distributedtrainingjobs", "pods", "services", "configmaps", "deployments")
    paths = [one.path.partition("?")[0] for one in server.requests[since:] if not one.watches]
    return sum(path.endswith(collections) for path in paths)


async def too_many(request: web.Request, answer: Answer) -> web.StreamResponse:
    response = refused(429, "TooManyRequests", "later")
    response.headers["Retry-After"] = "1"
    return response


async def broken(request: web.Request, answer: Answer) -> web.StreamResponse:
    return refused(500, "InternalError", "etcdserver: leader changed")


async def no_json(request: web.Request, answer: Answer) -> web.StreamResponse:
    """As a proxy on the way answers that has a page for people."""
    return web.Response(text="<html>Sign in</html>", content_type="text/html")


async def silent(request: web.Request, answer: Answer) -> web.StreamResponse:
    await asyncio.sleep(FAULT_SECONDS)
    return hung_up(request)


async def cut_before(request: web.Request, answer: Answer) -> web.StreamResponse:
    return hung_up(request)


async def cut_after(request: web.Request, answer: Answer) -> web.StreamResponse:
    """Done, but nobody learns of it."""
    if not request.query.get("watch"):
        await answer()
    return hung_up(request)


def hung_up(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response(status=500)


@pytest.mark.parametrize("fault", [too_many, broken, no_json, silent, cut_before, cut_after])
async def test_an_api_server_in_trouble_while_a_job_starts_costs_time_only(
    server: HttpCluster, fault: Fault
) -> None:
    apply(server)
    await until(lambda: len(server.cluster.created_pods) >= 1, PATIENCE)

    assert await trouble(server, fault) <= MOST_REQUESTS

    await succeeds(server)
    no_pod_was_made_twice(server)
    assert status(server)["restarts"] == {"application": 0, "infrastructure": 0}


async def test_watches_that_are_cut_again_and_again_lose_nothing(server: HttpCluster) -> None:
    apply(server)
    before = len(server.requests)

    cuts = 0
    while status(server).get("phase") != "Succeeded" and cuts < 200:
        cuts += bool(server.watches.cut())
        await asyncio.sleep(0.15)

    await succeeds(server)
    no_pod_was_made_twice(server)
    assert len(server.requests) - before <= MOST_REQUESTS + 8 * cuts


async def test_lists_and_watches_of_an_old_version_make_no_pod_twice_and_count_no_loss(
    server: HttpCluster, tmp_path: Path
) -> None:
    await runs(server)
    before = len(server.requests)
    server.stale = int(server.cluster.history[2][0])
    server.cluster.forget()
    server.watches.cut()
    # Each watch is answered 410 and lists anew, at the old version; then the watches go on from there.
    await until(lambda: lists(server, before) >= WATCHES, PATIENCE)
    server.cluster.oldest = 0

    await asyncio.sleep(FAULT_SECONDS)
    server.stale = None
    server.kubelet.program = launcher_ends
    await succeeds(server)

    no_pod_was_made_twice(server)
    assert status(server)["restarts"] == {"application": 0, "infrastructure": 0}


async def test_what_went_while_nobody_could_watch_is_noticed(server: HttpCluster) -> None:
    await runs(server)

    server.fault = broken
    server.watches.cut()
    for name in PODS:
        server.cluster.remove(("Pod", "ml", name))
    server.cluster.forget()
    server.fault = None
    server.kubelet.program = launcher_ends

    await succeeds(server)
    no_pod_was_made_twice(server)
    assert status(server)["restarts"] == {"application": 0, "infrastructure": 1}


async def test_a_job_that_went_while_nobody_could_watch_is_left_alone(server: HttpCluster) -> None:
    await runs(server)

    server.fault = broken
    server.watches.cut()
    for name in [name for name in server.cluster.objects if name[0] != "Event"]:
        server.cluster.remove(name)
    server.cluster.forget()
    server.fault = None
    await until(lambda: len(server.watches) == WATCHES, PATIENCE)
    asked = -1
    async with asyncio.timeout(PATIENCE):
        while asked != len(server.requests):
            asked = len(server.requests)
            await asyncio.sleep(QUIET_SECONDS)
    before = len(server.requests)
    apply(server)
    server.kubelet.program = launcher_ends

    await succeeds(server)
    assert status(server)["attempt"] == 1
    assert len(server.requests) - before <= MOST_REQUESTS
