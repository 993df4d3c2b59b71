"""Reference clients for the operator: one that only creates objects, and one with mpi-operator's rate limits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from tests.bench.api_client import ApiClient, Manifest
from tests.bench.jobs import collection, objects

# mpi-operator's --kube-api-qps and --kube-api-burst, as its Deployment has them by default.
QPS, BURST = 5.0, 10
# Of a job with 2 workers that mpi-operator runs: Service, ConfigMap, Secret, 2 pods and the launcher's Job; then the
# ConfigMap as workers run, the status as it changes, and an event.
_LATER_WRITES = 4


async def ceiling(
    api: ApiClient, namespace: str, strategy: str, names: Sequence[str], at_once: int
) -> tuple[float, float]:
    """Objects and jobs a second of a client that creates what the operator would, so many jobs at a time."""
    jobs = [objects(name, namespace, strategy) for name in names]
    left = iter(jobs)

    async def work() -> None:
        for made in left:
            for manifest in made:
                await api.create(collection(namespace, manifest["kind"]), manifest)

    begun = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(at_once)))
    seconds = time.perf_counter() - begun
    return sum(map(len, jobs)) / seconds, len(jobs) / seconds


async def limited(api: ApiClient, namespace: str, names: Sequence[str]) -> float:
    """Jobs a second, once its burst is used up, of a client that may write no more than mpi-operator by default."""
    bucket = Bucket(QPS, BURST, time.perf_counter)
    ends = []
    for name in names:
        made = objects(name, namespace, "Horovod")
        for manifest in made:
            await asyncio.sleep(bucket.wait())
            await api.create(collection(namespace, manifest["kind"]), manifest)
        for number in range(_LATER_WRITES):
            await asyncio.sleep(bucket.wait())
            patch: Manifest = {"metadata": {"annotations": {"bench": str(number)}}}
            await api.merge(f"{collection(namespace, 'ConfigMap')}/{made[2]['metadata']['name']}", patch)
        ends.append(time.perf_counter())
    return (len(ends) - 1) / (ends[-1] - ends[0])


class Bucket:
    """client-go's token bucket: so many requests at once, then so many a second."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float]) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._tokens, self._at = float(burst), clock()

    def wait(self) -> float:
        """Take a token; seconds until it may be used."""
        now = self._clock()
        self._tokens = min(self._tokens + (now - self._at) * self._rate, self._burst) - 1.0
        self._at = now
        return max(-self._tokens / self._rate, 0.0)
