"""`python -m tests.bench.control --jobs 100`: the speed of the operator on an API server of the benchmark."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Mapping, Sequence

from tests.bench import big_jobs
from tests.bench.api_client import ApiClient
from tests.bench.big_jobs import LARGEST, Size, big_job
from tests.bench.control_plane import ControlPlane, control_plane
from tests.bench.control_run import Options, Run, limited_rate
from tests.bench.figures import slope, table
from tests.bench.hostile_bytes import TARGETS as BYTES
from tests.bench.hostile_bytes import hostile_bytes
from tests.bench.hostile_crowd import TARGETS as CROWD
from tests.bench.hostile_crowd import hostile_crowd
from tests.bench.jobs import STRATEGIES
from tests.bench.machine import machine
from tests.bench.neighbours import TARGETS as NEIGHBOURS
from tests.bench.neighbours import neighbours
from tests.bench.pod_mover import AT_ONCE, Delays
from tests.bench.targets import Target, verdicts
from tests.cluster.progress import ClusterError, note

TARGETS = (
    Target(
        "jobs-per-s/same-requests",
        "jobs/s by those of the same requests",
        0.85,
        at_least=True,
        of_a_ratio=True,
    ),
    Target(
        "jobs-made-p99/same-requests",
        "all pods made, p99, by that of the same requests",
        1.3,
        of_a_ratio=True,
    ),
    Target("writes-per-job/14", "API writes a job", 14),
    Target("passes-per-job/12", "passes a job", 12),
    Target("memory/120MB+60kB", "operator: peak memory, MB", lambda run: 120 + 0.06 * run["jobs"]),
    Target("idle-cpu/3%", "operator: CPU while all run and nothing changes, % of a core", 3),
    Target("progress-cpu/3%", "operator: CPU while all run and progress is reported, % of a core", 3),
    Target("start-up/5s", "start-up until every job was looked at, s", 5),
)
ROWS = ("jobs", "big", "neighbours", "bytes", "crowd")
BIG = (
    Size("Horovod", 1_000),
    Size("Horovod", 5_000),
    Size("ParameterServer", 1_000),
    Size("ParameterServer", LARGEST),
)
_GROWS = "all run after, s"
# The start of a run weighs more than its length with fewer.
_FEWEST_TO_GROW_FROM = 100


async def measure(plane: ControlPlane, given: argparse.Namespace) -> list[str]:
    """Print the rows that are asked for and need a usual API server, each when measured; return the verdicts."""
    judged: list[str] = []
    if "jobs" in given.rows:
        options = Options(given.strategy, given.idle_seconds, Delays() if given.slow_pods else AT_ONCE)
        runs = await many_jobs(plane, given.jobs, options)
        tell(*told(runs))
        judged += [line for run in runs for line in lines(run.figures)]
        judged += growth_of([run.figures for run in runs])
    if "big" in given.rows:
        columns = await one_big_job(plane, [size.found() for size in given.big])
        tell("One big job:", table({size.told: figures for size, figures in columns.items()}))
        judged += big_lines(columns)
    if "neighbours" in given.rows:
        async with ApiClient.as_admin(plane) as admin:
            times = await neighbours(plane, admin, given.neighbours)
        tell(f"{given.neighbours} jobs of other tenants:", table(times))
        judged += verdicts(NEIGHBOURS, times["a hostile tenant"])
    return judged


async def measure_bytes(plane: ControlPlane, part: float) -> list[str]:
    """Print the row "bytes"; return the verdicts: of both operators beside the hostile tenant, and of ended jobs."""
    async with ApiClient.as_admin(plane) as admin:
        columns = await hostile_bytes(plane, admin, part)
    tell("Hostile bytes:", table(columns))
    return [
        f"{column.replace(' ', '-')}/{line}"
        for column, figures in columns.items()
        for line in verdicts(BYTES, figures)
    ]


def tell(*parts: str) -> None:
    """Print paragraphs, at once: the next row may take minutes, or not be measured."""
    print(*parts, sep="\n\n", end="\n\n", flush=True)


async def one_big_job(plane: ControlPlane, sizes: Sequence[Size]) -> dict[Size, dict[str, float]]:
    """The figures of each."""
    async with ApiClient.as_admin(plane) as admin:
        return {size: await big_job(plane, admin, size) for size in sizes}


def big_lines(columns: Mapping[Size, Mapping[str, float]]) -> list[str]:
    """The verdicts of each, and that of the growth."""
    each = [
        f"{size.strategy}-{size.workers}/{line}"
        for size, figures in columns.items()
        for line in verdicts(big_jobs.TARGETS, figures)
    ]
    return each + verdicts([big_jobs.GROWTH], big_jobs.growth(columns))


async def many_jobs(plane: ControlPlane, counts: Sequence[int], options: Options) -> list[Run]:
    """A run for each number of jobs."""
    runs = []
    async with ApiClient.as_admin(plane) as admin:
        rate = await limited_rate(plane, admin)
        for count in counts:
            note(f"--- {count} jobs")
            run = Run(plane, admin, count, options)
            await run.measure()
            run.figures["jobs/s at mpi-operator's default limits"] = rate
            runs.append(run)
    return runs


def told(runs: Sequence[Run]) -> list[str]:
    """The tables."""
    return [
        table({f"{run.figures['jobs']:.0f} jobs": run.figures for run in runs}),
        "Requests of one undisturbed job:\n\n" + table({"a job": runs[-1].a_job}),
    ]


def conclusion(judged: Sequence[str]) -> str:
    """Which verdicts say that a target was missed."""
    missed = [line.split()[0] for line in judged if line.endswith(" missed")]
    if not missed:
        return f"All {len(judged)} targets are met."
    return f"{len(missed)} of {len(judged)} targets are MISSED: {', '.join(missed)}"


def lines(figures: Mapping[str, float]) -> list[str]:
    """A run's verdicts; where there are several runs, each of its own number of jobs."""
    return [f"{figures['jobs']:.0f}-jobs/{line}" for line in verdicts(TARGETS, figures)]


def growth_of(runs: Sequence[Mapping[str, float]]) -> list[str]:
    """Whether twice the jobs take twice the time, if that can be told."""
    large = [figures for figures in runs if figures["jobs"] >= _FEWEST_TO_GROW_FROM]
    if len(large) < 2:
        return []
    power = slope([each["jobs"] for each in large], [each[_GROWS] for each in large])
    grows = Target("growth/linear", "power", 1.1, of_a_ratio=True)
    return verdicts([grows], {"power": power})


def main() -> int:
    """Measure and print; 1 with the reason where it can't."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", choices=ROWS, nargs="+", default=ROWS, help="(default: all)")
    parser.add_argument("--jobs", type=int, nargs="+", default=[100], metavar="N")
    parser.add_argument(
        "--big",
        type=Size.read,
        nargs="+",
        default=BIG,
        metavar="STRATEGY:WORKERS",
        help="sizes of the one big job; largest: as many workers as are accepted",
    )
    parser.add_argument(
        "--neighbours",
        type=int,
        default=1_000,
        metavar="N",
        help="jobs of other tenants beside a hostile one (default: %(default)s)",
    )
    parser.add_argument(
        "--hostile-part",
        type=float,
        default=1.0,
        metavar="PART",
        help="of the large objects of the row bytes, for a slow machine (default: all)",
    )
    parser.add_argument("--strategy", choices=STRATEGIES, default=Options.strategy)
    parser.add_argument(
        "--slow-pods",
        action="store_true",
        help="all pods take the time that nodes take, not only the counted ones",
    )
    parser.add_argument(
        "--idle-seconds",
        type=float,
        default=Options.idle_seconds,
        help="of each look (default: %(default)s)",
    )
    given = parser.parse_args()
    tell(machine())
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was started is ended then too
    try:
        judged: list[str] = []
        if set(given.rows) - {"bytes", "crowd"}:
            with control_plane() as plane:
                judged += asyncio.run(measure(plane, given))
        if "bytes" in given.rows:
            with control_plane(watch_cache=False) as plane:
                judged += asyncio.run(measure_bytes(plane, given.hostile_part))
        if "crowd" in given.rows:
            columns = asyncio.run(hostile_crowd())
            tell("Hostile crowd:", table(columns))
            judged += verdicts(CROWD, columns["beside"])
        tell("\n".join(judged), conclusion(judged))
    except ClusterError as error:
        note(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
