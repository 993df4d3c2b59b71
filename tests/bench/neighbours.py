"""Benchmark of jobs of several tenants, first undisturbed, then beside a tenant that attacks the operator."""

from __future__ import annotations

import asyncio
import random
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import cycle, pairwise
from typing import Any

from dtj.api.identity import LABEL_JOB
from dtj.api.job import read_job
from dtj.api.shape import Replica
from dtj.plan.job import plan_job
from dtj.reconcile.election import Timing
from dtj.reconcile.executor import MOST_AT_ONCE, slow_start
from tests.bench.api_client import ApiClient, Manifest
from tests.bench.big_jobs import largest
from tests.bench.control_plane import LEASE_NAMESPACE, ControlPlane
from tests.bench.crowd import Crowd, at_once
from tests.bench.figures import percentile
from tests.bench.jobs import collection, decisive, job, jobs_path, pods_in, sized
from tests.bench.nonsense import MESSAGES, REPORTS
from tests.bench.operator_process import Operator, cpu_seconds, operating, until
from tests.bench.pod_mover import AT_ONCE, OTHER_ADDRESS, PodMover, Reports
from tests.bench.same_requests import bare_event, bare_status
from tests.bench.seen import Seen, watching
from tests.bench.targets import Target
from tests.cluster.progress import step

_STRATEGY = "Horovod"
_A_SECOND = 4.0
"""Jobs that come, and as many that end."""
_SECONDS = 30.0
_WINDOWS = 3
_REFUSED = 200
LONG_EVERY = 20
_ASKS_SECONDS = 0.25
_LOOKS_SECONDS = 0.25
_TRAINS_SECONDS = 1.0
_SETTLED_SECONDS = 10.0
_WAIT_SECONDS = 300.0
_LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{LEASE_NAMESPACE}/leases"
_MADE, _ENDED = "applied to all pods made, p99, ms", "last pod's end to Succeeded, p99, ms"
_GAP, _WRONG = "Lease: longest time between two renewals, s", "/healthz: answers other than 200"
_JUDGED = "hostile tenant: refused jobs that ended as Failed"
_BY_ALONE, _BY_BARE = "by that alone", "by that beside a bare client's load"


def _by(figure: str, what: str) -> str:
    """The name of a figure's ratio."""
    return f"{figure.removesuffix(', ms')}, {what}"


TARGETS = (
    Target("neighbours/made-p99/bare-load", _by(_MADE, _BY_BARE), 2, of_a_ratio=True),
    Target("neighbours/end-seen-p99/bare-load", _by(_ENDED, _BY_BARE), 2, of_a_ratio=True),
    Target("neighbours/lease-gap/duration", _GAP, Timing.lease_duration),
    Target("neighbours/healthz-wrong", _WRONG, 0, of_a_ratio=True),
    Target(f"neighbours/refused/{_REFUSED}", _JUDGED, _REFUSED, at_least=True),
)
Figures = dict[str, float]


@dataclass
class _Watched:
    """What is seen of the operator from outside."""

    renewals: list[float] = field(default_factory=list)
    """Seconds since the epoch, by the Lease."""
    answers: list[tuple[int, float]] = field(default_factory=list)
    """Of /healthz: HTTP status, 0 for none, and seconds."""

    def begin(self) -> None:
        """Forget what was, but for the last renewal."""
        self.renewals[:] = self.renewals[-1:]
        self.answers.clear()

    def figures(self) -> Figures:
        """Since it began."""
        renewals = [*self.renewals, time.time()]
        return {
            _GAP: max(later - earlier for earlier, later in pairwise(renewals)),
            "/healthz: answers": len(self.answers),
            _WRONG: sum(status != 200 for status, _ in self.answers),
            "/healthz: longest answer, ms": max((seconds for _, seconds in self.answers), default=0.0) * 1000,
        }


class Neighbours:
    """Jobs that train, of which some end and others come."""

    def __init__(self, api: ApiClient, place: str, alive: list[str], seen: Seen, mover: PodMover) -> None:
        self._api, self._place, self._alive, self._seen, self._mover = api, place, deque(alive), seen, mover
        # Each time ends as many: of those that train from the start.
        self._a_second = min(_A_SECOND, len(alive) / _WINDOWS / _SECONDS)

    async def live(self, prefix: str) -> Figures:
        """Have jobs come and end for a while, at a steady rate."""
        sent: dict[str, float] = {}
        answered: list[float] = []
        told: dict[str, float] = {}

        async def come(name: str) -> None:
            sent[name] = time.perf_counter()
            await self._api.create(jobs_path(self._place), job(name, self._place, _STRATEGY))
            answered.append(time.perf_counter() - sent[name])

        async def end(name: str) -> None:
            told[name] = time.perf_counter()
            await self._mover.succeed(decisive(name, _STRATEGY))

        begun = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for number in range(int(self._a_second * _SECONDS)):
                await asyncio.sleep(max(begun + number / self._a_second - time.perf_counter(), 0))
                tasks.create_task(come(f"{prefix}-{number}"))
                tasks.create_task(end(self._alive.popleft()))
        pods, made, ended = pods_in(_STRATEGY), self._seen.made, self._seen.phases

        def done() -> bool:
            self._seen.check()
            self._mover.check()
            return all(made(name, pods) for name in sent) and all("Succeeded" in ended[name] for name in told)

        await until("the neighbours' jobs", done, _WAIT_SECONDS)
        made_ms = [((made(name, pods) or 0) - at) * 1000 for name, at in sent.items()]
        ended_ms = [(ended[name]["Succeeded"] - at) * 1000 for name, at in told.items()]
        return {
            "jobs that came, and as many that ended": len(sent),
            "a second": self._a_second,
            "applied to all pods made, p50, ms": percentile(made_ms, 0.5),
            _MADE: percentile(made_ms, 0.99),
            "last pod's end to Succeeded, p50, ms": percentile(ended_ms, 0.5),
            _ENDED: percentile(ended_ms, 0.99),
            "API server: creation of a job answered, p99, ms": percentile(answered, 0.99) * 1000,
        }


class Hostile:
    """One tenant with two namespaces: of pods like others', and of pods that report nonsense."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._place, self._babel = "hostile", "hostile-nonsense"
        self._seen = self._heard = Seen()
        self._ended_with_nonsense = 0

    async def work(self, tasks: asyncio.TaskGroup, stack: Any) -> list[asyncio.Task[None]]:
        """Begin with all of it."""
        movers = {}
        for place, address in ((self._place, None), (self._babel, OTHER_ADDRESS)):
            await self._api.create("/api/v1/namespaces", _namespace(place))
            rng = random.Random(1)
            movers[place] = PodMover(self._api, place, AT_ONCE, rng, *([address] if address else []))
        self._seen = await stack.enter_async_context(watching(self._api, self._place, movers[self._place]))
        self._heard = await stack.enter_async_context(watching(self._api, self._babel, movers[self._babel]))
        return [
            tasks.create_task(work)
            for work in (self._biggest(), self._refused(), self._nonsense(movers[self._babel]))
        ]

    def figures(self) -> Figures:
        """What came of it so far."""
        failed = [name for name in self._seen.phase if self._seen.phase[name] == "Failed"]
        return {
            "hostile tenant: pods of the largest job made": len(self._seen.pods["largest"]),
            _JUDGED: len(failed),
            "hostile tenant: pods that ended with nonsense": self._ended_with_nonsense,
        }

    async def judged(self) -> None:
        """Wait until all that is to be refused was."""
        await until(
            "the refused jobs",
            lambda: self.figures()[_JUDGED] >= _REFUSED,
            _WAIT_SECONDS,
        )

    async def _biggest(self) -> None:
        manifest = sized("largest", self._place, _STRATEGY, largest(_STRATEGY))
        await self._api.create(jobs_path(self._place), manifest)

    async def _refused(self) -> None:
        async def create(name: str) -> None:
            await self._api.create(jobs_path(self._place), refused(name, self._place))

        await at_once([f"refused-{number}" for number in range(_REFUSED)], create)

    async def _nonsense(self, mover: PodMover) -> None:
        name = "nonsense"
        manifest = sized(name, self._babel, _STRATEGY, len(MESSAGES))
        manifest["spec"]["runPolicy"] = {"backoffLimit": 10_000}
        await self._api.create(jobs_path(self._babel), manifest)
        workers = [f"{name}-worker-{number}" for number in range(len(MESSAGES))]

        def made_since(begun: float) -> bool:
            made = self._heard.pods[name]
            return self._heard.phase.get(name) == "Running" and all(
                made.get(worker, 0.0) > begun for worker in workers
            )

        begun = 0.0
        while True:
            await until("its next attempt", partial(made_since, begun), _WAIT_SECONDS, _LOOKS_SECONDS)
            await asyncio.sleep(_TRAINS_SECONDS)
            begun = time.perf_counter()
            # The operator may take the others away as soon as it sees the first that failed.
            ends = await asyncio.gather(*map(mover.fail, workers, MESSAGES), return_exceptions=True)
            self._ended_with_nonsense += ends.count(None)


class Nonsense(Reports):
    """What the hostile tenant's pods say: another nonsense each time."""

    def __init__(self) -> None:
        super().__init__(OTHER_ADDRESS)
        self._bodies = cycle(REPORTS)

    def _body(self) -> bytes:
        return next(self._bodies)


async def neighbours(plane: ControlPlane, admin: ApiClient, count: int) -> dict[str, Figures]:
    """The figures of both times. Nothing is cleared away: the API server ends with it."""
    names = [f"job-{number}" for number in range(count)]
    reports, place = Reports(), "neighbours"
    await admin.create("/api/v1/namespaces", _namespace(place))
    mover = PodMover(admin, place, AT_ONCE, random.Random(1))
    flags = ("--leader-elect", f"--lease-namespace={LEASE_NAMESPACE}")
    async with (
        reports.served(),
        Nonsense().served(),
        watching(admin, place, mover) as seen,
        operating(plane, *flags) as operator,
        _watched(admin, operator) as watched,
    ):
        crowd = Crowd(admin, place, _STRATEGY, names, seen, mover, _LOOKS_SECONDS)
        with step(f"{count} jobs of other tenants"):
            await crowd.apply()
            await crowd.made()
            await crowd.phase("Running")
            reports.moving = True
            await until("an empty queue", operator.idle, _WAIT_SECONDS)
            await asyncio.sleep(_SETTLED_SECONDS)
        others = Neighbours(admin, place, names, seen, mover)
        with step("they live alone"):
            alone = await _window(plane, operator, watched, others, "alone")
        with step("they live beside a bare client that makes the hostile tenant's requests"):
            async with bare_load(plane, admin):
                bare = await _window(plane, operator, watched, others, "bare")
        hostile = Hostile(admin)
        with step("they live beside a hostile tenant"):
            async with _beside(hostile):
                beside = await _window(plane, operator, watched, others, "beside")
                await hostile.judged()
                beside |= watched.figures() | hostile.figures()
    for figure in (_MADE, _ENDED):
        bare[_by(figure, _BY_ALONE)] = bare[figure] / alone[figure]
        beside[_by(figure, _BY_ALONE)] = beside[figure] / alone[figure]
        beside[_by(figure, _BY_BARE)] = beside[figure] / bare[figure]
    return {"alone": alone, "a bare client's load": bare, "a hostile tenant": beside}


@asynccontextmanager
async def bare_load(plane: ControlPlane, admin: ApiClient) -> AsyncIterator[None]:
    """The requests of the hostile tenant and of an operator for it, of which the operator hears nothing.

    What the API server and the machine are slower by beside them is none of the operator's doing.
    """
    place = "bare-load"
    await admin.create("/api/v1/namespaces", _namespace(place))
    mover = PodMover(admin, place, AT_ONCE, random.Random(1))
    manifest = sized("largest", place, _STRATEGY, largest(_STRATEGY))
    manifest["metadata"]["uid"] = "0-0"
    plan = plan_job(read_job(manifest))

    async def refuse(name: str) -> None:
        manifest = refused(name, place)
        manifest["spec"]["runPolicy"] = {"managedBy": "tests.bench.example.com/bare"}
        await admin.create(jobs_path(place), manifest)
        for phase in ("Pending", "Failed"):
            await api.merge(f"{jobs_path(place)}/{name}/status", {"status": bare_status(phase)})
        await api.create(f"/api/v1/namespaces/{place}/events", bare_event(name, place))

    async def refuse_all() -> None:
        await at_once([f"refused-{number}" for number in range(_REFUSED)], refuse, MOST_AT_ONCE)

    async def make(replica: Replica) -> None:
        pod = plan.pod(replica)
        metadata = {"name": replica.name, "labels": {LABEL_JOB: "largest"}}
        await api.create(collection(place, "Pod"), {**pod, "metadata": metadata})

    async with (
        ApiClient.as_operator(plane) as api,
        watching(admin, place, mover),
        asyncio.TaskGroup() as tasks,
    ):
        works = [tasks.create_task(work) for work in (refuse_all(), slow_start(make, plan.shape.replicas))]
        yield
        for work in works:
            work.cancel()


@asynccontextmanager
async def _beside(hostile: Hostile) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
        works = await hostile.work(tasks, stack)
        yield
        for work in works:
            work.cancel()


async def _window(
    plane: ControlPlane, operator: Operator, watched: _Watched, others: Neighbours, prefix: str
) -> Figures:
    watched.begin()

    def cpu() -> Figures:
        servers = sum(map(cpu_seconds, plane.pids.values()))
        return {
            "operator": operator.cpu_seconds,
            "API server and etcd": servers,
            "benchmark": time.process_time(),
        }

    before, begun = cpu(), time.perf_counter()
    figures = await others.live(prefix)
    seconds = time.perf_counter() - begun
    figures |= {
        f"{who}: CPU, % of a core": (spent - before[who]) / seconds * 100 for who, spent in cpu().items()
    }
    figures["operator: memory, MB"] = operator.bytes / 1e6
    if (lag := await operator.event_loop_lag()) is not None:
        figures["operator: its event loop was late by at most so far, s"] = lag
    return figures | watched.figures()


@asynccontextmanager
async def _watched(admin: ApiClient, operator: Operator) -> AsyncIterator[_Watched]:
    watched = _Watched()
    since = await admin.version(_LEASES)

    async def leases() -> None:
        async for _, lease in admin.watch(_LEASES, since):
            renewed = datetime.fromisoformat(lease["spec"]["renewTime"])
            watched.renewals.append(renewed.astimezone(UTC).timestamp())

    task = asyncio.create_task(leases())
    with _asked(operator.health_url, watched.answers):
        yield watched
    if task.done():
        task.result()
    task.cancel()


@contextmanager
def _asked(url: str, answers: list[tuple[int, float]]) -> Iterator[None]:
    """Ask for /healthz again and again, in a thread: the benchmark's own work is not in the times."""
    ended = threading.Event()

    def ask() -> None:
        while not ended.wait(_ASKS_SECONDS):
            begun = time.perf_counter()
            try:
                with urllib.request.urlopen(url, timeout=30) as answer:
                    status = answer.status
            except urllib.error.HTTPError as error:
                status = error.code
            except OSError:
                status = 0
            answers.append((status, time.perf_counter() - begun))

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _namespace(name: str) -> Manifest:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def refused(name: str, place: str) -> Manifest:
    """Most ask for a TF_CONFIG that no process takes, some for a ConfigMap that no cluster stores."""
    if int(name.rpartition("-")[2]) % LONG_EVERY:
        manifest = sized(name, place, "ParameterServer", 10_000)
        manifest["spec"]["replicaSpecs"]["ps"] = {"replicas": 10_000}
        return manifest
    manifest = job(name, place, _STRATEGY)
    manifest["spec"]["env"] = [{"name": f"N{number}", "value": "x" * 32_000} for number in range(36)]
    return manifest
