"""Benchmark of the operator with one big job, against a bare client that makes the same requests."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dtj.api.job import read_job
from dtj.api.manifest_check import check
from dtj.plan.job import plan_job
from tests.bench.api_client import ApiClient
from tests.bench.control_plane import ControlPlane
from tests.bench.crowd import namespace
from tests.bench.jobs import decisive, jobs_path, sized
from tests.bench.operator_process import WRITES, Operator, operating, until
from tests.bench.pod_mover import AT_ONCE, PodMover, Reports
from tests.bench.seen import Seen, watching
from tests.bench.targets import Target
from tests.cluster.progress import ClusterError, step

LARGEST = 0
"""Instead of a number of workers: as many as are accepted."""
_MOST = 10_000
_NAME = "big"
_WARM, _MADE, _BARE = "warm", "made", "bare"
_SECONDS_A_POD, _SECONDS = 0.2, 120.0
_LOOKS_SECONDS = 0.1
_RATIO = "operator's CPU by the bare client's"
_KB = "operator: memory a replica, kB"
_GROWTH = "CPU with 5,000 workers by that with 1,000"
TARGETS = (
    Target("cpu/same-requests", _RATIO, 2, of_a_ratio=True),
    Target("memory/20kB-a-replica", _KB, 20),
)
GROWTH = Target("big-job/cpu-5000/cpu-1000", _GROWTH, 5.5, of_a_ratio=True)


@dataclass(frozen=True)
class Size:
    """Of a job."""

    strategy: str
    workers: int
    """LARGEST: as many as are accepted."""

    @classmethod
    def read(cls, word: str) -> Size:
        """Horovod:1000, or ParameterServer:largest. Raises ValueError."""
        strategy, _, workers = word.partition(":")
        return cls(strategy, LARGEST if workers == "largest" else int(workers))

    def found(self) -> Size:
        """The same with a number of workers."""
        return self if self.workers else Size(self.strategy, largest(self.strategy))

    @property
    def told(self) -> str:
        """For a column."""
        return f"{self.strategy}, {self.workers:,} workers"

    def place(self, kind: str) -> str:
        """A namespace of its own: its name is part of each pod's address, so all have the same length."""
        return f"big-{kind}-{self.strategy[0].lower()}{self.workers:05}"


def largest(strategy: str) -> int:
    """The most workers with which a job of the strategy is accepted in a namespace of `Size.place`."""

    def accepted(workers: int) -> bool:
        manifest = sized(_NAME, Size(strategy, workers).place(_MADE), strategy, workers)
        manifest["metadata"]["uid"] = "0-0"
        return not check(manifest)[1]

    least, most = 1, _MOST + 1
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (middle, most) if accepted(middle) else (least, middle)
    return least


class _Life:
    """The life of one big job as its user and the kubelets see it: made, run, one pod lost, run again, ended."""

    def __init__(self, api: ApiClient, place: str, size: Size, seen: Seen, mover: PodMover) -> None:
        self._api, self._place, self._size, self._seen, self._mover = api, place, size, seen, mover
        manifest = sized(_NAME, place, size.strategy, size.workers)
        manifest["metadata"]["uid"] = "0-0"
        plan = plan_job(read_job(manifest))
        self.pods = frozenset(replica.name for replica in plan.shape.replicas)
        self._victim = f"{_NAME}-{'worker' if size.strategy == 'Horovod' else 'ps'}-0"
        self._again = plan.shape.restarts_with[self._victim] if plan.shape.restarts_with else self.pods
        self.seconds: dict[str, float] = {}

    async def live(self) -> None:
        """All of it, and how long each part took."""
        manifest = sized(_NAME, self._place, self._size.strategy, self._size.workers)
        begun = time.perf_counter()
        await self._api.create(jobs_path(self._place), manifest)
        there = self._seen.there[_NAME]
        await self._until("all pods", lambda: there >= self.pods)
        self.seconds["applied to all pods made, s"] = time.perf_counter() - begun
        await self._until("Running", lambda: self._seen.phase.get(_NAME) == "Running")
        begun = time.perf_counter()
        await self._mover.fail(self._victim)
        made = self._seen.pods[_NAME]
        await self._until("the restart", lambda: all(made[name] > begun for name in self._again))
        await self._until("Running again", lambda: self._seen.phase.get(_NAME) == "Running")
        self.seconds["a pod lost to Running again, s"] = time.perf_counter() - begun
        begun = time.perf_counter()
        await self._mover.succeed(decisive(_NAME, self._size.strategy))
        await self._until("its end", lambda: self._seen.phase.get(_NAME) == "Succeeded")
        await self._until("the end of its pods", lambda: len(there) <= 1)
        self.seconds["last pod's end to all pods gone, s"] = time.perf_counter() - begun

    async def _until(self, what: str, there: Any) -> None:
        def look() -> bool:
            self._mover.check()
            self._seen.check()
            if self._seen.phase.get(_NAME) == "Failed":
                raise ClusterError(f"one job, {self._size.told}: it failed before {what}")
            return bool(there())

        seconds = _SECONDS + _SECONDS_A_POD * len(self.pods)
        await until(f"{what} of {self._size.told}", look, seconds, _LOOKS_SECONDS)


async def big_job(plane: ControlPlane, admin: ApiClient, size: Size) -> dict[str, float]:
    """The figures of one: of an operator of its own, then of the bare client."""
    reports = Reports()
    async with (
        reports.served(),
        namespace(admin, size.place(_WARM)) as warm,
        namespace(admin, size.place(_MADE)) as place,
        operating(plane) as operator,
    ):
        # What the first job of all costs is no cost of a replica.
        await _of_the_operator(admin, warm, Size(size.strategy, 2), operator)
        others, earlier = await operator.counts()
        with step(f"one job, {size.told}"):
            life, figures = await _of_the_operator(admin, place, size, operator)
            own, passes = await operator.counts()
            own -= others
            figures["passes"] = passes - earlier
            if (lag := await operator.event_loop_lag()) is not None:
                figures["operator: its event loop was late by at most, s"] = lag
            figures["operator: writes a replica"] = _writes(own) / len(life.pods)
    async with namespace(admin, size.place(_BARE)) as place:
        with step("the same requests by a bare client"):
            figures |= await _of_the_client(plane, admin, place, size, own)
    return figures | {_RATIO: figures["operator: CPU, s"] / figures["bare client: CPU, s"]}


async def _of_the_operator(
    admin: ApiClient, place: str, size: Size, operator: Operator
) -> tuple[_Life, dict[str, float]]:
    before, cpu = operator.bytes, operator.cpu_seconds
    mover = PodMover(admin, place, AT_ONCE, random.Random(1))
    async with watching(admin, place, mover) as seen:
        life = _Life(admin, place, size, seen, mover)
        await life.live()
    await until("an empty queue", operator.idle, _SECONDS)
    figures = {"pods": float(len(life.pods)), **life.seconds}
    figures["operator: CPU, s"] = operator.cpu_seconds - cpu
    figures["operator: memory before the job, MB"] = before / 1e6
    figures["operator: peak memory, MB"] = operator.peak_bytes / 1e6
    figures[_KB] = (operator.peak_bytes - before) / len(life.pods) / 1e3
    return life, figures


async def _of_the_client(
    plane: ControlPlane, admin: ApiClient, place: str, size: Size, own: Mapping[tuple[str, str], int]
) -> dict[str, float]:
    asked = {
        "url": plane.url,
        "authority": str(plane.authority),
        "token": plane.operator_token,
        "namespace": place,
        "requests": [[*of, count] for of, count in own.items()],
    }
    # A process of its own, as the operator is one: the benchmark's part in the job's life is not its work.
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.bench.bare_client"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(asked).encode() + b"\n")
        if (await process.stdout.readline()).strip() != b"ready":
            raise ClusterError("the bare client ended before it began")
        mover = PodMover(admin, place, AT_ONCE, random.Random(1))
        async with watching(admin, place, mover) as seen:
            life = _Life(admin, place, size, seen, mover)
            await life.live()
        said = json.loads(await process.stdout.readline())
        await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return {
        "bare client: applied to all pods made, s": life.seconds["applied to all pods made, s"],
        "bare client: CPU, s": said["cpu"],
        "bare client: writes a replica": said["writes"] / len(life.pods),
    }


def growth(columns: Mapping[Size, Mapping[str, float]]) -> dict[str, float]:
    """The processor time of 5,000 workers by that of 1,000, where both were measured."""
    small, large = (columns.get(Size("Horovod", workers)) for workers in (1_000, 5_000))
    return {_GROWTH: large["operator: CPU, s"] / small["operator: CPU, s"]} if small and large else {}


def _writes(own: Counter[tuple[str, str]]) -> int:
    return sum(count for (verb, _), count in own.items() if verb in WRITES)
