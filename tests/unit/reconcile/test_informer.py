"""Informers: caches that follow an API server through additions, changes and missed deletions.

* caches: which job hears of which change
* lists, watches, bookmarks and 410
* refusals, backoff and objects that nobody can read
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dtj.api.identity import KIND, LABEL_JOB
from dtj.api.job import Manifest
from dtj.cluster.interface import ApiError, Selection
from dtj.reconcile import informer as informer_module
from dtj.reconcile.informer import Cache, Informer
from dtj.reconcile.informers import Informers
from dtj.reconcile.view import Key

A, B = ("ml", "a"), ("ml", "b")
Step = tuple[str, Manifest] | ApiError
CUT = ApiError(0, "Cut", "the connection broke")
TOO_OLD = ApiError(410, "Expired", "too old resource version")


def thing(uid: str, says: str = "", job: str = "a", namespace: str = "ml", version: int = 1) -> Manifest:
    return {
        "metadata": {
            "name": uid,
            "namespace": namespace,
            "uid": uid,
            "labels": {LABEL_JOB: job},
            "resourceVersion": str(version),
        },
        "says": says,
    }


def see(manifest: Manifest) -> str:
    if manifest["says"] == "nonsense":
        raise ValueError("nonsense")
    return f"{manifest['metadata']['name']}: {manifest['says']}"


class Told:
    """A cache, and the jobs that it told."""

    def __init__(self) -> None:
        self.jobs: list[Key] = []
        self.cache = Cache(see, self.jobs.append)

    def taken(self) -> list[Key]:
        jobs = list(self.jobs)
        self.jobs.clear()
        return jobs


class Script:
    """Lists, and what each watch tells until it ends; the last one stays open. Keeps from where each began."""

    def __init__(self, lists: list[list[Manifest] | ApiError], watches: list[list[Step]]) -> None:
        self._lists, self._watches = lists, watches
        self.asked: list[str] = []
        self.done = asyncio.Event()

    async def pages(self, selection: Selection) -> AsyncIterator[tuple[list[Manifest], str]]:
        self.asked.append("list")
        listed = self._lists.pop(0)
        if isinstance(listed, ApiError):
            raise listed
        middle = len(listed) // 2
        yield listed[:middle], "10"
        yield listed[middle:], "10"

    async def changes(
        self, selection: Selection, resource_version: str
    ) -> AsyncIterator[tuple[str, Manifest]]:
        self.asked.append(resource_version)
        for step in self._watches.pop(0):
            if isinstance(step, ApiError):
                raise step
            yield step
        if not self._watches:
            self.done.set()
            await asyncio.Event().wait()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informer_module, "_FIRST_PAUSE_SECONDS", 0.001)


@asynccontextmanager
async def following(script: Script, told: Told, namespace: str | None = None) -> AsyncIterator[Informer[str]]:
    """To the end of the script."""
    informer = Informer(script, Selection("v1", "Thing", namespace=namespace), told.cache)
    task = asyncio.create_task(informer.run())
    try:
        async with asyncio.timeout(60):
            await script.done.wait()
        yield informer
        assert not task.done()
    finally:
        task.cancel()


def test_a_job_is_told_of_what_comes_goes_and_looks_different_and_of_nothing_else() -> None:
    told = Told()
    told.cache.put(thing("x", "one"))
    assert told.taken() == [A]
    listed = told.cache.of(A)
    told.cache.put(thing("x", "one", version=2))
    assert told.taken() == []
    assert told.cache.of(A) is listed
    told.cache.put(thing("x", "two"))
    assert told.taken() == [A]
    assert told.cache.of(A) == ("x: two",)
    told.cache.drop("x")
    told.cache.drop("x")
    assert told.taken() == [A]
    assert (told.cache.of(A), len(told.cache)) == ((), 0)


def test_an_object_that_comes_to_another_job_has_left_the_first() -> None:
    told = Told()
    told.cache.put(thing("x"))
    told.cache.put(thing("x", job="b"))
    assert told.taken() == [A, A, B]
    assert (told.cache.of(A), told.cache.of(B)) == ((), ("x: ",))


async def test_what_is_listed_is_known_and_then_each_change() -> None:
    told = Told()
    changes: list[Step] = [
        ("MODIFIED", thing("x", "two", version=11)),
        ("ADDED", thing("z", job="b", version=12)),
        ("DELETED", thing("y", version=13)),
    ]
    script = Script([[thing("x", "one"), thing("y")]], [changes])
    async with following(script, told) as informer:
        assert informer.synced.is_set()
        assert (told.cache.of(A), told.cache.of(B)) == (("x: two",), ("z: ",))
        assert script.asked == ["list", "10"]


async def test_all_is_cached_when_each_kind_was_listed() -> None:
    listed: dict[str, asyncio.Event] = {}

    class Waiting(Script):
        async def pages(self, selection: Selection) -> AsyncIterator[tuple[list[Manifest], str]]:
            await listed.setdefault(selection.kind, asyncio.Event()).wait()
            yield [], "10"

    informers = Informers(Waiting([], [[] for _ in range(9)]), (), *3 * [lambda _: None])
    informers.start()
    synced = asyncio.create_task(informers.synced())
    for kind in (KIND, "Pod", "Service", "ConfigMap", "Deployment"):
        for _ in range(20):
            await asyncio.sleep(0)
        assert (kind == KIND) == (list(listed) == [KIND]), "the jobs are listed first"
        assert not synced.done(), f"{kind} is not listed yet"
        listed[kind].set()
    await asyncio.wait_for(synced, 60)
    await informers.stop()


async def test_a_cut_watch_goes_on_where_it_was_also_by_a_bookmark() -> None:
    told = Told()
    bookmark: Manifest = {"metadata": {"resourceVersion": "20"}}
    watches: list[list[Step]] = [
        [("ADDED", thing("x", version=11)), CUT],
        [("BOOKMARK", bookmark)],
        [],
    ]
    script = Script([[]], watches)
    async with following(script, told):
        assert script.asked == ["list", "10", "11", "20"]
        assert told.cache.of(A) == ("x: ",)


async def test_after_a_gap_what_went_in_it_is_known_to_be_gone_and_its_job_is_told() -> None:
    told = Told()
    script = Script([[thing("x"), thing("y", job="b")], [thing("x")]], [[TOO_OLD], []])
    async with following(script, told):
        assert script.asked == ["list", "10", "list", "10"]
        assert (told.cache.of(A), told.cache.of(B)) == (("x: ",), ())
        assert told.taken() == [A, B, B]


async def test_a_list_of_one_namespace_says_nothing_of_another() -> None:
    told = Told()
    told.cache.put(thing("theirs", namespace="other"))
    script = Script([[thing("x")]], [[]])
    async with following(script, told, "ml"):
        assert told.cache.of(("other", "a")) == ("theirs: ",)


async def test_a_list_that_breaks_off_is_begun_anew_and_drops_nothing() -> None:
    told = Told()
    refused = ApiError(403, "Forbidden", "pods is forbidden")
    script = Script([[thing("x")], refused, [thing("x")]], [[TOO_OLD], []])
    async with following(script, told):
        assert script.asked == ["list", "10", "list", "list", "10"]
        assert told.taken() == [A]


async def test_what_a_role_does_not_allow_is_told(caplog: pytest.LogCaptureFixture) -> None:
    script = Script([ApiError(403, "Forbidden", "things is forbidden"), []], [[]])
    async with following(script, Told()):
        assert "the cache of Thing may be out of date: 403 Forbidden: things is forbidden" in caplog.text


async def test_a_refusal_that_lasts_is_told_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    forbidden = ApiError(403, "Forbidden", "things is forbidden")
    script = Script([*[forbidden] * 5, []], [[]])
    seen: list[str | None] = []
    informer = Informer(script, Selection("v1", "Thing", namespace="ml"), Told().cache)
    task = asyncio.create_task(informer.run())
    with caplog.at_level(logging.INFO):
        async with asyncio.timeout(60):
            while not script.done.is_set():
                seen.append(informer.refusal)
                await asyncio.sleep(0)
    task.cancel()
    assert set(seen) == {None, "403 Forbidden: things is forbidden"}
    assert informer.refusal is None
    assert [record.message for record in caplog.records] == [
        "the cache of Thing in namespace ml may be out of date: 403 Forbidden: things is forbidden",
        "the cache of Thing in namespace ml is up to date again",
    ]


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses of informers, which do not wait for them."""
    noted: list[float] = []
    sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        noted.append(seconds)
        await sleep(0)

    monkeypatch.setattr(informer_module, "_FIRST_PAUSE_SECONDS", 0.1)
    monkeypatch.setattr(informer_module.asyncio, "sleep", note)
    return noted


async def test_a_namespace_that_is_back_waits_for_no_second_pause(pauses: list[float]) -> None:
    """The version of its watch is too old by then."""
    forbidden = ApiError(403, "Forbidden", "things is forbidden")
    script = Script([[], []], [*[[forbidden]] * 20, [TOO_OLD], []])
    async with following(script, Told()):
        assert script.asked[-3:] == ["10", "list", "10"]
    assert 15 <= pauses[-2] <= 45
    assert pauses[-1] < 0.2


async def test_namespaces_that_the_api_server_refuses_are_named_and_the_others_are_cached() -> None:
    class Refusing(Script):
        async def pages(self, selection: Selection) -> AsyncIterator[tuple[list[Manifest], str]]:
            if selection.namespace == "gone":
                raise ApiError(403, "Forbidden", f"{selection.kind} is forbidden")
            yield [], "10"

        async def changes(
            self, selection: Selection, resource_version: str
        ) -> AsyncIterator[tuple[str, Manifest]]:
            await asyncio.Event().wait()
            yield "BOOKMARK", {}

    informers = Informers(Refusing([], []), ["ml", "gone", "ml"], *3 * [lambda _: None])
    assert informers.namespaces == ["ml", "gone"]
    informers.start()
    await asyncio.wait_for(informers.synced("ml"), 60)
    async with asyncio.timeout(60):
        while not informers.refused():
            await asyncio.sleep(0)
    assert list(informers.refused()) == ["gone"]
    assert informers.refused()["gone"].startswith("403 Forbidden: ")
    await informers.stop()


async def test_an_object_that_nobody_can_read_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    told = Told()
    changes: list[Step] = [("ADDED", thing("odd", "nonsense", version=11)), ("ADDED", thing("x", version=12))]
    script = Script([[thing("odder", "nonsense")]], [changes])
    with caplog.at_level(logging.ERROR):
        async with following(script, told):
            assert told.cache.of(A) == ("x: ",)
    assert "Thing ml/odd can't be read" in caplog.text
    assert "Thing ml/odder can't be read" in caplog.text


async def test_a_server_in_trouble_is_asked_more_and_more_seldom(pauses: list[float]) -> None:
    later = ApiError(429, "TooManyRequests", "later", 7.0)
    broken: list[Any] = [ApiError(500, "InternalError", "no")] * 20
    script = Script([later, *broken, []], [[("ADDED", thing("x", version=11)), CUT], []])
    async with following(script, Told()):
        pass
    assert pauses[0] == 7.0
    assert 15 <= pauses[20] <= 45
    assert pauses[21] < 0.2, "a watch that told something is no trouble"
