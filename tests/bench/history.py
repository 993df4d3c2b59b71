"""Benchmark of the history of 10,000 ended jobs in a bucket: `make bench-history`.

The bucket is in the object store of `dtj run` on this machine. Each measurement runs in a process of its own, as a
command does. The times are those of the SDK's calls: the start of Python and its imports are a figure of their own.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from dtj.api.status import Phase
from dtj.client import History, HistoryQuery, SortBy
from dtj_trainer.artifacts import s3
from dtj_trainer.artifacts.store import open_store
from tests.bench.checkpoint_transfer import BUCKET, object_store
from tests.bench.figures import shown
from tests.bench.machine import machine
from tests.bench.targets import Target
from tests.cluster.progress import note
from tests.unit.support.past_jobs import put_many

JOBS = 10_000
ROUNDS = 9
"""Of a measurement of milliseconds: the median counts."""
NEWEST = 50
Figures = dict[str, float]

TARGETS = (
    Target("cold, newest 50, ms", "cold, newest 50, ms", 500, of_a_ratio=True),
    Target("cold, newest 50, S3 requests", "cold, newest 50, S3 requests", 60, of_a_ratio=True),
    Target("cache filled, s", "cache filled, s", 60, of_a_ratio=True),
    Target("calls of progress", "calls of progress", 10, at_least=True, of_a_ratio=True),
    Target("memory at most (RSS), MB", "memory at most (RSS), MB", 300, of_a_ratio=True),
    Target("warm, sort over all, ms", "warm, sort over all, ms", 100, of_a_ratio=True),
    Target("warm, filter over all, ms", "warm, filter over all, ms", 100, of_a_ratio=True),
)


@contextmanager
def counted() -> Iterator[list[str]]:
    """The S3 requests of the clients that this process makes from now on."""
    requests: list[str] = []
    make: Callable[..., Any] = s3.make_client

    def watched(*arguments: Any) -> Any:
        client = make(*arguments)
        client.meta.events.register("before-send.s3", lambda **_: requests.append(""))
        return client

    with patch.object(s3, "make_client", watched):
        yield requests


def cold(uri: str, environment: Mapping[str, str], cache: Path) -> Figures:
    """The newest jobs without a cache: with the making of the client, in a process that has imported boto3."""
    import boto3  # noqa: F401

    times, used = [], time.process_time()
    with counted() as requests:
        for number in range(ROUNDS):
            requests.clear()
            begun = time.perf_counter()
            with History(uri, environment, cache=cache / f"cold-{number}.sqlite") as history:
                found = history.jobs(limit=NEWEST)
            times.append((time.perf_counter() - begun) * 1000)
            assert len(found) == NEWEST
    return {
        "cold, newest 50, ms": median(times),
        "cold, newest 50, ms of a processor": (time.process_time() - used) * 1000 / ROUNDS,
        "cold, newest 50, S3 requests": len(requests),
    }


def fill(uri: str, environment: Mapping[str, str], cache: Path) -> Figures:
    """A query over all jobs fills the cache."""
    calls: list[int] = []
    begun, used = time.perf_counter(), time.process_time()
    with History(
        uri, environment, cache=cache / "warm.sqlite", on_progress=lambda done, _: calls.append(done)
    ) as history:
        history.jobs(HistoryQuery(sort_by=SortBy.DURATION), limit=NEWEST)
    return {
        "cache filled, s": time.perf_counter() - begun,
        "cache filled, s of a processor": time.process_time() - used,
        "calls of progress": len(calls),
        "memory at most (RSS), MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def warm(uri: str, environment: Mapping[str, str], cache: Path) -> Figures:
    """Queries over all jobs with a filled cache, each with the look at the index."""
    queries = {
        "warm, sort over all, ms": HistoryQuery(sort_by=SortBy.DURATION),
        "warm, filter over all, ms": HistoryQuery(
            namespace="ml", phases=[Phase.FAILED], sort_by=SortBy.ENDED
        ),
    }
    figures = {}
    with History(uri, environment, cache=cache / "warm.sqlite") as history:
        history.jobs(limit=1)  # Connect.
        for name, query in queries.items():
            times, used = [], time.process_time()
            for _ in range(ROUNDS):
                begun = time.perf_counter()
                history.jobs(query, limit=NEWEST)
                times.append((time.perf_counter() - begun) * 1000)
            figures[name] = median(times)
            figures[f"{name} of a processor"] = (time.process_time() - used) * 1000 / ROUNDS
    figures["size of the cache, MB"] = (cache / "warm.sqlite").stat().st_size / 1e6
    return figures


def main() -> None:
    """Exit code 1 if a goal was missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.history")
    parser.add_argument("--jobs", type=int, default=JOBS)
    count = parser.parse_args().jobs
    print(machine())
    figures: Figures = {}
    with TemporaryDirectory(prefix="dtj-history-") as folder, object_store(Path(folder)) as store:
        uri = f"s3://{BUCKET}/jobs"
        note(f"writing {count} jobs …")
        put_many(open_store(uri, store.environment), count)
        for step in (cold, fill, warm):
            note(step.__name__)
            # Each in a process of its own: the memory and the connections of one are not another's.
            with get_context("spawn").Pool(1) as pool:
                figures |= pool.apply(step, (uri, dict(store.environment), Path(folder)))
    for name in sorted(figures.keys() - {target.figure for target in TARGETS}):
        print(f"{name} {shown(figures[name])}")
    lines = [line for target in TARGETS if (line := target.verdict(figures))]
    print("\n".join(lines))
    print(f"load after {os.getloadavg()[0]:.1f}")
    sys.exit(1 if any(line.endswith("missed") for line in lines) else 0)


if __name__ == "__main__":
    main()
