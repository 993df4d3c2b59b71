"""`python -m tests.bench.soak --minutes 30`: memory of the operator while jobs come and go."""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys

from tests.bench.api_client import ApiClient
from tests.bench.control_plane import ControlPlane, control_plane
from tests.bench.crowd import Crowd, namespace
from tests.bench.figures import table
from tests.bench.jobs import STRATEGIES
from tests.bench.machine import machine
from tests.bench.operator_process import Operator, operating, until
from tests.bench.pod_mover import Delays, PodMover, Reports
from tests.bench.seen import Seen, watching
from tests.bench.targets import Target, verdicts
from tests.cluster.progress import ClusterError, note

TARGETS = (
    Target("soak/memory-at-the-end/after-warm-up", "memory", 1.1, of_a_ratio=True),
    Target("soak/open-files-at-the-end/before", "open files", 1.0, of_a_ratio=True),
    Target("soak/tasks-at-the-end/before", "tasks", 1.0, of_a_ratio=True),
    Target("soak/objects-left", "objects", 0, of_a_ratio=True),
    Target("soak/jobs-queued-at-the-end", "queued", 0, of_a_ratio=True),
    Target("soak/jobs-that-did-not-succeed", "lost", 0, of_a_ratio=True),
)
_TRAINS_SECONDS = (5.0, 30.0)
_WARM_SHARE = 0.2
SAMPLES = 10
_LOOKS_SECONDS = 0.5
# The last connections of a pool and the workers of kopf's objects end some seconds after their last use.
_SETTLED_SECONDS = 30.0
Sample = dict[str, float]


class Lives:
    """Jobs from their creation to their deletion, each for itself."""

    def __init__(
        self, api: ApiClient, place: str, strategy: str, seen: Seen, mover: PodMover, rng: random.Random
    ) -> None:
        self.begun = self.ended = 0
        self._api, self._place, self._strategy, self._seen, self._mover = api, place, strategy, seen, mover
        self._rng = rng
        self._tasks: set[asyncio.Task[None]] = set()

    async def come(self, a_minute: float, seconds: float) -> None:
        """Have jobs come for so long, at moments that have nothing to do with each other."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while (wait := self._rng.expovariate(a_minute / 60)) < end - loop.time():
            await asyncio.sleep(wait)
            self.begun += 1
            task = asyncio.create_task(self._live(f"job-{self.begun}"))
            self._tasks.add(task)
            task.add_done_callback(self._gone)

    async def gone(self) -> None:
        """Wait until the last has gone. Raises what went wrong with one."""
        await asyncio.gather(*self._tasks)

    def _gone(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is None:
            self._tasks.discard(task)

    async def _live(self, name: str) -> None:
        job = Crowd(self._api, self._place, self._strategy, [name], self._seen, self._mover, _LOOKS_SECONDS)
        await job.apply()
        await job.phase("Running")
        await asyncio.sleep(self._rng.uniform(*_TRAINS_SECONDS))
        await job.succeed()
        await job.phase("Succeeded")
        await job.ended_pods()
        await job.delete()
        self.ended += 1


async def held(operator: Operator, lives: Lives) -> Sample:
    """What the operator holds now."""
    health = await operator.health()
    return {
        "jobs that came": lives.begun,
        "jobs that went": lives.ended,
        "memory, MB": operator.bytes / 1e6,
        "open files": operator.open_files,
        **{name: health[name] for name in ("tasks", "objects", "queued")},
        "CPU since the start, s": operator.cpu_seconds,
    }


async def soak(plane: ControlPlane, strategy: str, a_minute: float, seconds: float) -> list[Sample]:
    """Samples: before the first job, after a warm-up, on the way, at the end, and after the last job has gone."""
    reports = Reports()
    reports.moving = True
    async with (
        reports.served(),
        ApiClient.as_admin(plane) as admin,
        namespace(admin, "soak") as place,
        operating(plane) as operator,
    ):
        mover = PodMover(admin, place, Delays(), random.Random(1))
        async with watching(admin, place, mover) as seen:
            lives = Lives(admin, place, strategy, seen, mover, random.Random(2))
            samples = [await held(operator, lives)]
            coming = asyncio.create_task(lives.come(a_minute, seconds))
            try:
                await asyncio.sleep(seconds * _WARM_SHARE)
                samples.append(await held(operator, lives))
                for _ in range(SAMPLES):
                    await asyncio.sleep(seconds * (1 - _WARM_SHARE) / SAMPLES)
                    samples.append(await held(operator, lives))
                    note(", ".join(f"{name} {value:.0f}" for name, value in samples[-1].items()))
                await coming
                await lives.gone()
            finally:
                coming.cancel()
        await until("an empty queue", operator.idle, 60.0)
        await asyncio.sleep(_SETTLED_SECONDS)
        return [*samples, await held(operator, lives)]


def told(samples: list[Sample]) -> str:
    """The table, and the verdicts."""
    names = ["before", "warmed up", *(f"{n + 1}/{SAMPLES}" for n in range(SAMPLES)), "all gone"]
    before, warm, *_, loaded, last = samples
    figures = {
        "memory": loaded["memory, MB"] / warm["memory, MB"],
        "open files": last["open files"] / before["open files"],
        "tasks": last["tasks"] / before["tasks"],
        "objects": last["objects"],
        "queued": last["queued"],
        "lost": last["jobs that came"] - last["jobs that went"],
    }
    columns = {
        figure: {name: sample[figure] for name, sample in zip(names, samples, strict=True)}
        for figure in before
    }
    return "\n\n".join([table(columns), "\n".join(verdicts(TARGETS, figures))])


def main() -> int:
    """Measure and print; 1 with the reason where it can't."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="(default: %(default)s)")
    parser.add_argument("--jobs-a-minute", type=float, default=200.0, help="(default: %(default)s)")
    parser.add_argument("--strategy", choices=STRATEGIES, default=STRATEGIES[0])
    given = parser.parse_args()
    on = machine()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was started is ended then too
    try:
        with control_plane() as plane:
            samples = asyncio.run(soak(plane, given.strategy, given.jobs_a_minute, given.minutes * 60))
    except ClusterError as error:
        note(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        return 130
    print(f"{on}\n\n{given.jobs_a_minute:g} jobs a minute, {given.minutes:g} minutes:\n\n{told(samples)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
