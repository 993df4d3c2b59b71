"""`python -m tests.bench.ended_jobs 10000`: megabytes that an operator holds for jobs that have ended.

The operator's own caches and passes, without a cluster: the first job lives in the cluster of the tests, and its
objects are copied under other names.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import sys
import time
from typing import Any, cast

from dtj.api.identity import KIND
from dtj.api.job import Manifest
from dtj.plan.job import PlanCache, plan_job
from dtj.reconcile.informers import Informers, Lister
from dtj.reconcile.metrics import OperatorMetrics
from dtj.reconcile.progress import ProgressPoller
from dtj.reconcile.reconciler import Reconciler
from dtj.reconcile.view import Key
from tests.bench.operator_process import memory
from tests.cluster.progress import ClusterError
from tests.unit.support.world import FakeProgress, World

_KINDS = (KIND, "Pod", "Service", "ConfigMap")


async def megabytes_of_ended(count: int) -> float:
    """Measure in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.bench.ended_jobs", str(count)), stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    if process.returncode:
        raise ClusterError(f"the ended jobs could not be measured: {process.returncode}")
    return float(said)


async def _lived() -> tuple[list[Manifest], World]:
    """The objects of a job of 4 pods that has succeeded and was looked at to the end."""
    world = World(replicaSpecs={"worker": {"replicas": 3}}, artifacts={"uri": "s3://bucket/prefix"})
    await world.until(lambda: world.phase == "Succeeded")
    await world.rest()
    return [made for (kind, *_), made in world.cluster.objects.items() if kind in _KINDS], world


def _renamed(objects: list[Manifest], number: int) -> list[Manifest]:
    text = json.dumps(objects).replace("mnist", f"job-{number}")
    for made in objects:
        uid = made["metadata"]["uid"]
        text = text.replace(f'"{uid}"', f'"{uid}-{number}"')
    copies: list[Manifest] = json.loads(text)
    return copies


class _ReadOnly:
    """A cluster that nothing is written to: what has ended needs no request."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"a pass over a job that has ended asks for {name}")


async def _measure(count: int) -> float:
    objects, world = await _lived()
    informers = Informers(cast(Any, _ReadOnly()), (), _ignore, _ignore, _ignore)
    caches: dict[str, Any] = {
        KIND: informers.jobs,
        "Pod": informers.pods,
        "Service": informers.services,
        "ConfigMap": informers.configs,
    }
    reconciler = Reconciler(
        cast(Any, _ReadOnly()),
        Lister(informers),
        cast(ProgressPoller, FakeProgress()),
        OperatorMetrics(),
        lambda: world.cluster.now,
        PlanCache(plan_job),
        elapsed=time.monotonic,
    )
    before = _held()
    for number in range(count):
        for made in _renamed(objects, number):
            caches[made["kind"]].put(made)
        await reconciler.reconcile(("ml", f"job-{number}"))
    return (_held() - before) / 1e6


def _ignore(_: Key) -> None:
    pass


def _held() -> int:
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return memory(os.getpid(), "VmRSS")


if __name__ == "__main__":
    print(asyncio.run(_measure(int(sys.argv[1]))))
