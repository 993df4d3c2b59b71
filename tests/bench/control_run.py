"""One measurement of the operator with N jobs."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import sqrt

from tests.bench.api_client import ApiClient
from tests.bench.comparisons import ceiling, limited
from tests.bench.control_plane import ControlPlane
from tests.bench.crowd import Crowd, crowd, namespace
from tests.bench.figures import percentile
from tests.bench.jobs import objects
from tests.bench.operator_process import WRITES, Operator, cpu_seconds, operating, until
from tests.bench.pod_mover import AT_ONCE, Delays, Reports
from tests.bench.same_requests import same_requests
from tests.cluster.progress import step

OPERATOR_WORKERS = 16
"""Passes at a time, as the operator has them by default: the ceiling has as many jobs in hand."""
_SETTLED_SECONDS = 3.0
# Longer than the operator lets counts of pods wait, and kopf an object that has changed.
_LIVED_SECONDS = 7.0
_QUEUE_SECONDS = 120.0
_START_SECONDS = 300.0
_SINGLE, _LIVES, _LIMITED = 10, 5, 5
_MOST_OF_CEILING = 500
_WRITE = re.compile(r'^apiserver_request_total\{.*verb="(?:POST|PUT|PATCH|DELETE)".*\} (\S+)$', re.MULTILINE)
_READS = ("get", "list")


@dataclass(frozen=True)
class Options:
    """What is asked for besides the number of jobs."""

    strategy: str = "Horovod"
    idle_seconds: float = 40.0
    """Of each look while they train: longer than the 33 s in which 100 jobs are asked for their progress."""
    delays: Delays | None = AT_ONCE
    """Of the many jobs' pods; those whose requests are counted always have nodes' delays."""


@dataclass
class Requests:
    """What was asked of the API server, as the operator and as the server count it."""

    own: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By verb and kind."""
    server: float = 0.0
    """Writes of others than the benchmark."""
    passes: float = 0.0

    def of(self, verbs: Iterable[str]) -> int:
        """Requests of these verbs, as the operator counts them."""
        return sum(count for (verb, _), count in self.own.items() if verb in verbs)


class Run:
    """The parts of a measurement; each adds its figures."""

    def __init__(self, plane: ControlPlane, admin: ApiClient, count: int, options: Options) -> None:
        self._plane = plane
        self._admin = admin
        self._count = count
        self._options = options
        self._reports = Reports()
        self.figures: dict[str, float] = {"jobs": count}
        self.a_job: dict[str, float] = {}
        """Requests of one undisturbed job, by verb and kind."""

    async def measure(self) -> None:
        """Everything, one after the other."""
        names = [f"job-{number}" for number in range(self._count)]
        with step("the same requests by a bare client"):
            await self._same("before")
        async with self._reports.served(), namespace(self._admin, f"many-{self._count}") as place:
            async with operating(self._plane) as operator:
                self.figures["operator: memory before the first job, MB"] = operator.bytes / 1e6
                with step(f"{_LIVES} jobs with nodes' delays"):
                    await self._lives(operator)
                with step(f"{_SINGLE} jobs, one after the other"):
                    await self._singles()
                async with crowd(
                    self._admin, place, self._options.strategy, names, self._options.delays
                ) as jobs:
                    with step(f"{self._count} jobs at once"):
                        await self._burst(operator, jobs)
                with step("they train"):
                    await self._idle(operator)
                peak = operator.peak_bytes
            begun = time.perf_counter()
            async with operating(self._plane) as operator:
                with step("the operator starts again"):
                    await self._started(operator, begun)
                async with crowd(
                    self._admin, place, self._options.strategy, names, self._options.delays
                ) as jobs:
                    with step("all jobs end"):
                        await self._ends(operator, jobs)
                self.figures["operator: peak memory, MB"] = max(peak, operator.peak_bytes) / 1e6
        with step("the same objects by a bare client"):
            await self._ceiling()
        with step("the same requests by a bare client, once more"):
            await self._same("after")
        self._beside_same()

    async def _lives(self, operator: Operator) -> None:
        """What an undisturbed job costs in requests, from its creation to the end of its pods."""
        names = [f"life-{number}" for number in range(_LIVES)]
        async with (
            namespace(self._admin, f"lives-{self._count}") as place,
            crowd(self._admin, place, self._options.strategy, names, Delays()) as jobs,
        ):
            before = await self._counted(operator)
            await jobs.apply()
            await jobs.phase("Running")
            await asyncio.sleep(_SETTLED_SECONDS)
            await jobs.succeed()
            await jobs.phase("Succeeded")
            await jobs.ended_pods()
            await asyncio.sleep(_LIVED_SECONDS)
            after = await self._counted(operator)
        spent = Requests(after.own - before.own, after.server - before.server, after.passes - before.passes)
        self.a_job = {f"{verb} {kind}": n / _LIVES for (verb, kind), n in sorted(spent.own.items())}
        self.figures |= {
            "API writes a job": spent.server / _LIVES,
            "API writes a job, as the operator counts": spent.of(WRITES) / _LIVES,
            "API reads a job": spent.of(_READS) / _LIVES,
            "passes a job": spent.passes / _LIVES,
        }

    async def _singles(self) -> None:
        made_ms = []
        async with namespace(self._admin, f"single-{self._count}") as place:
            for number in range(_SINGLE):
                name = f"single-{number}"
                async with crowd(self._admin, place, self._options.strategy, [name], AT_ONCE) as jobs:
                    applied = await jobs.apply()
                    made_ms.append(((await jobs.made())[name] - applied[name]) * 1000)
                    await jobs.phase("Running")
                    await jobs.succeed()
                    await jobs.phase("Succeeded")
        self.figures["one job: applied to all pods made, p50, ms"] = percentile(made_ms, 0.5)

    async def _burst(self, operator: Operator, jobs: Crowd) -> None:
        made_of = len(objects("any", "any", self._options.strategy))
        cpu, server, own = operator.cpu_seconds, self._server_cpu(), time.process_time()
        objects_made = self._count * made_of
        begun = time.perf_counter()
        made_ms, rate = await _all_run(jobs)
        await until("an empty queue", operator.idle, _QUEUE_SECONDS)
        cpu, server, own = operator.cpu_seconds - cpu, self._server_cpu() - server, time.process_time() - own
        self.figures |= {
            "applied to all pods made, p50, ms": percentile(made_ms, 0.5),
            "applied to all pods made, p99, ms": percentile(made_ms, 0.99),
            "jobs/s": rate,
            "objects/s": rate * made_of,
            "all run after, s": time.perf_counter() - begun,
            "operator: CPU until all run, s": cpu,
            "API server and etcd: CPU until all run, s": server,
            "benchmark: CPU until all run, s": own,
            "all of them: CPU for each object, ms": (cpu + server + own) / objects_made * 1000,
            "operator: memory with all running, MB": operator.bytes / 1e6,
        }

    async def _idle(self, operator: Operator) -> None:
        for moving, what in ((False, "nothing changes"), (True, "progress is reported")):
            self._reports.moving = moving
            await asyncio.sleep(_LIVED_SECONDS)
            cpu, begun = operator.cpu_seconds, time.perf_counter()
            await asyncio.sleep(self._options.idle_seconds)
            share = (operator.cpu_seconds - cpu) / (time.perf_counter() - begun)
            self.figures[f"operator: CPU while all run and {what}, % of a core"] = share * 100
        self._reports.moving = False

    async def _started(self, operator: Operator, begun: float) -> None:
        async def caught_up() -> bool:
            # Metrics of many jobs cost the operator more than its passes do: they are asked for last.
            return await operator.idle() and (await operator.counts())[1] >= self._count

        await until("a pass over every job", caught_up, _START_SECONDS)
        self.figures["start-up until every job was looked at, s"] = time.perf_counter() - begun
        self.figures["operator: CPU of the start-up, s"] = operator.cpu_seconds

    async def _ends(self, operator: Operator, jobs: Crowd) -> None:
        begun, cpu = time.perf_counter(), operator.cpu_seconds
        told = await jobs.succeed()
        succeeded = await jobs.phase("Succeeded")
        ended_ms = [(succeeded[name] - told[name]) * 1000 for name in jobs.names]
        await until("an empty queue", operator.idle, _QUEUE_SECONDS)
        self.figures |= {
            "last pod's end to Succeeded, p50, ms": percentile(ended_ms, 0.5),
            "last pod's end to Succeeded, p99, ms": percentile(ended_ms, 0.99),
            "ends/s": self._count / (max(succeeded.values()) - begun),
            "operator: CPU of all ends, s": operator.cpu_seconds - cpu,
        }

    async def _ceiling(self) -> None:
        names = [f"bare-{number}" for number in range(min(self._count, _MOST_OF_CEILING))]
        async with (
            namespace(self._admin, f"bare-{self._count}") as place,
            ApiClient.as_operator(self._plane) as api,
        ):
            cpu = self._server_cpu() + time.process_time()
            rate, jobs = await ceiling(api, place, self._options.strategy, names, OPERATOR_WORKERS)
            cpu = self._server_cpu() + time.process_time() - cpu
        made = len(names) * len(objects("any", "any", self._options.strategy))
        self.figures |= {
            "ceiling: CPU of client and servers for each object, ms": cpu / made * 1000,
            "ceiling: objects/s": rate,
            "ceiling: jobs/s": jobs,
            "objects/s by the ceiling's": self.figures["objects/s"] / rate,
        }

    async def _same(self, when: str) -> None:
        """Before the operator's jobs and after them: a machine that others use too is not the same for long."""
        names = [f"same-{number}" for number in range(self._count)]
        strategy = self._options.strategy
        async with (
            namespace(self._admin, f"same-{when}-{self._count}") as place,
            ApiClient.as_operator(self._plane) as api,
            crowd(self._admin, place, strategy, names, self._options.delays) as jobs,
            same_requests(api, place, strategy, OPERATOR_WORKERS),
        ):
            server = self._server_cpu()
            made_ms, rate = await _all_run(jobs)
            server = self._server_cpu() - server
        self.figures |= {
            f"same requests, {when}: applied to all pods made, p99, ms": percentile(made_ms, 0.99),
            f"same requests, {when}: API server and etcd: CPU a job until it runs, ms": server
            / len(names)
            * 1000,
            f"same requests, {when}: jobs/s": rate,
        }

    def _beside_same(self) -> None:
        """The operator's figures by the bare client's, of which the middle of both times counts."""
        (rate, made_ms) = (
            sqrt(
                self.figures[f"same requests, before: {figure}"]
                * self.figures[f"same requests, after: {figure}"]
            )
            for figure in ("jobs/s", "applied to all pods made, p99, ms")
        )
        self.figures |= {
            "jobs/s by those of the same requests": self.figures["jobs/s"] / rate,
            "all pods made, p99, by that of the same requests": self.figures[
                "applied to all pods made, p99, ms"
            ]
            / made_ms,
        }

    async def _counted(self, operator: Operator) -> Requests:
        own, passes = await operator.counts()
        before = self._admin.writes
        writes = sum(map(float, _WRITE.findall(await self._admin.text("/metrics"))))
        return Requests(own, writes - before, passes)

    def _server_cpu(self) -> float:
        return sum(map(cpu_seconds, self._plane.pids.values()))


async def _all_run(jobs: Crowd) -> tuple[list[float], float]:
    """Apply them and wait until they run: milliseconds until each had its pods, and jobs a second."""
    begun = time.perf_counter()
    applied = await jobs.apply()
    made = await jobs.made()
    await jobs.phase("Running")
    rate = len(jobs.names) / (max(made.values()) - begun)
    return [(made[name] - applied[name]) * 1000 for name in jobs.names], rate


async def limited_rate(plane: ControlPlane, admin: ApiClient) -> float:
    """Jobs a second of a client held to mpi-operator's default limits."""
    names = [f"limited-{number}" for number in range(_LIMITED)]
    async with namespace(admin, "limited") as place, ApiClient.as_operator(plane) as api:
        with step("a client with mpi-operator's limits"):
            return await limited(api, place, names)
