"""`python -m tests.bench.bare_client`: the operator's requests for one big job, without the operator.

The client plans the job as the operator does, before the measurement of processor time. Then the client creates the
objects, writes as many statuses as the operator wrote, restarts pods that a lost pod affects, and deletes the rest.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from dtj.api.job import read_job
from dtj.plan.job import plan_job
from dtj.plan.model import Plan
from dtj.reconcile.executor import slow_start
from tests.bench.api_client import ApiClient, Manifest
from tests.bench.jobs import collection, jobs_path, secret_of
from tests.bench.same_requests import bare_event, bare_status


class BareClient:
    """The requests of one job's life."""

    def __init__(self, api: ApiClient, namespace: str, requests: Mapping[tuple[str, str], int]) -> None:
        """requests: of the operator for the same job, by verb and kind."""
        self._api = api
        self._namespace = namespace
        self._requests = requests
        self._pods: dict[str, str] = {}
        """Phase of each that is there, by name."""
        self._changed = asyncio.Event()
        self._come: asyncio.Future[Manifest] = asyncio.get_running_loop().create_future()
        self._name = ""
        self._phase = "Pending"
        self._made = 0
        self._told_every = 1

    async def follow_jobs(self, since: str) -> None:
        """See the job come."""
        async for _, manifest in self._api.watch(jobs_path(self._namespace), since):
            if not self._come.done():
                self._come.set_result(manifest)

    async def follow_pods(self, since: str) -> None:
        """See what becomes of its pods."""
        async for kind, pod in self._api.watch(collection(self._namespace, "Pod"), since):
            name = pod["metadata"]["name"]
            if kind == "DELETED":
                self._pods.pop(name, None)
            else:
                self._pods[name] = (pod.get("status") or {}).get("phase", "")
            self._changed.set()

    async def follow_others(self, kind: str) -> None:
        """Have the API server tell what the operator is told too."""
        async for _ in self._api.watch(collection(self._namespace, kind)):
            pass

    async def live(self) -> float:
        """All of it; seconds of processor time."""
        begun = time.process_time()
        job = await self._come
        planning = time.process_time()
        manifest = {**job, "metadata": {**job["metadata"]}}
        plan = plan_job(read_job(manifest))
        pods = {pod["metadata"]["name"]: pod for pod in plan.pods}
        owner = next(iter(pods.values()))["metadata"]["ownerReferences"]
        assert owner[0]["uid"] == job["metadata"]["uid"]
        self._name = job["metadata"]["name"]
        secret = secret_of(job)
        planned = time.process_time() - planning
        await self._train(plan, pods, secret)
        return time.process_time() - begun - planned

    async def _train(self, plan: Plan, pods: Mapping[str, Manifest], secret: Manifest | None) -> None:
        again = await self._begin(plan, pods, secret)
        for _ in range(self._reads):
            await self._api.names(collection(self._namespace, "Pod"))
        await self._tell("Restarting")
        await self._end(again)
        await self._make_pods(plan, pods, again)
        await self._tell("Running")
        (ended,) = plan.shape.decisive
        await self._until(lambda: self._pods.get(ended) == "Succeeded")
        await self._tell("Succeeded")
        await self._end(pods.keys() - {ended})

    async def _begin(
        self, plan: Plan, pods: Mapping[str, Manifest], secret: Manifest | None
    ) -> Collection[str]:
        """Until it runs and loses a pod: what that takes with it."""
        creations = self._requests.get(("create", "Pod"), len(pods))
        statuses = self._requests.get(("patch", "DistributedTrainingJob"), 4)
        self._told_every = max(creations // max(statuses - 4, 1), 1)
        await self._tell("Pending")
        for made in (plan.service, *([secret] if secret else []), plan.config):
            await self._api.create(collection(self._namespace, made["kind"]), made)
        await self._make_pods(plan, pods, pods)
        await self._tell("Running")
        await self._api.create(
            f"/api/v1/namespaces/{self._namespace}/events", bare_event(self._name, self._namespace)
        )
        await self._until(lambda: "Failed" in self._pods.values())
        lost = next(name for name, phase in self._pods.items() if phase == "Failed")
        return plan.shape.restarts_with[lost] if plan.shape.restarts_with else pods.keys()

    @property
    def _reads(self) -> int:
        return sum(count for (verb, kind), count in self._requests.items() if (verb, kind) == ("list", "Pod"))

    async def _make_pods(self, plan: Plan, pods: Mapping[str, Manifest], which: Collection[str]) -> None:
        path = collection(self._namespace, "Pod")

        async def make(name: str) -> None:
            await self._api.create(path, pods[name])
            self._made += 1
            if self._made % self._told_every == 0:
                await self._tell(self._phase)

        for stage in plan.shape.stage_names:
            wanted = [name for name in stage if name in which]
            await slow_start(make, wanted)
            await self._until(lambda of=wanted: all(self._pods.get(name) == "Running" for name in of))

    async def _end(self, names: Collection[str]) -> None:
        async def end(name: str) -> None:
            await self._api.delete(f"{collection(self._namespace, 'Pod')}/{name}")

        await slow_start(end, list(names))
        await self._until(lambda: not self._pods.keys() & set(names))

    async def _tell(self, phase: str) -> None:
        self._phase = phase
        path = f"{jobs_path(self._namespace)}/{self._name}/status"
        await self._api.merge(path, {"status": bare_status(phase)})

    async def _until(self, there: Any) -> None:
        while not there():
            self._changed.clear()
            await self._changed.wait()
            # To look at each of thousands of events would be work that no request asks for.
            await asyncio.sleep(0.1)


async def _run(asked: Mapping[str, Any]) -> None:
    place = asked["namespace"]
    requests = {(verb, kind): count for verb, kind, count in asked["requests"]}
    async with ApiClient(asked["url"], Path(asked["authority"]), asked["token"]) as api:
        client = BareClient(api, place, requests)
        jobs_since, pods_since = [
            await api.version(path) for path in (jobs_path(place), collection(place, "Pod"))
        ]
        async with asyncio.TaskGroup() as tasks:
            others: Iterable[Any] = map(client.follow_others, ("Service", "ConfigMap"))
            followed = (client.follow_jobs(jobs_since), client.follow_pods(pods_since), *others)
            watches = [tasks.create_task(watch) for watch in followed]
            print("ready", flush=True)
            cpu = await client.live()
            print(json.dumps({"cpu": cpu, "writes": api.writes}), flush=True)
            for watch in watches:
                watch.cancel()


if __name__ == "__main__":
    asyncio.run(_run(json.loads(sys.stdin.readline())))
