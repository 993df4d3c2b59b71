"""A cluster, its kubelet and an operator, advanced together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from dtj.api.job import Job, Manifest
from dtj.cluster.interface import ApiError
from dtj.plan.job import PlanCache, plan_job
from dtj.plan.model import Plan
from dtj.plan.record import record_pod
from dtj.reconcile.executor import MOST_AT_ONCE
from dtj.reconcile.metrics import OperatorMetrics
from dtj.reconcile.progress import ProgressPoller
from dtj.reconcile.reconciler import Reconciler
from dtj.reconcile.record import RecordKeeper, RecordPlaces
from dtj.reconcile.view import Key
from dtj.status.observed import ProgressReport
from tests.unit.support.fake_cluster import FakeCluster, OperatorDied
from tests.unit.support.fake_view import FakeView
from tests.unit.support.jobs import manifest
from tests.unit.support.kubelet import Kubelet
from tests.unit.support.pods import START

KEY = ("ml", "mnist")
METRICS = OperatorMetrics()


class FakeProgress:
    """Returns prepared reports, and records the pods to poll."""

    def __init__(self) -> None:
        self.reports: dict[Key, ProgressReport | dict[str, ProgressReport]] = {}
        """Reports by job, or by job and pod for several pods."""
        self.followed: dict[Key, Mapping[str, str]] = {}
        self.asked_for_stacks: list[list[str]] = []

    def report(self, key: Key, pod: str) -> ProgressReport | None:
        known = self.reports.get(key)
        return known.get(pod) if isinstance(known, dict) else known

    def follow(self, key: Key, pods: Mapping[str, str], *, closely: bool = False) -> None:
        self.followed[key] = pods

    def answers(self, key: Key, pod: str) -> bool | None:
        return True if self.report(key, pod) else None

    def ask_for_stacks(self, pods: Mapping[str, str]) -> None:
        self.asked_for_stacks.append(sorted(pods))

    def leave(self, key: Key) -> None:
        self.followed.pop(key, None)
        self.reports.pop(key, None)


class World:
    """One job with its cluster. The clock advances one second a step."""

    plan: Callable[[Job], Plan] = staticmethod(plan_job)
    counts_after = 0.0
    at_once = MOST_AT_ONCE
    host_paths: Sequence[str] | None = None
    records = 0
    """The most record pods at a time; 0: the operator makes none."""

    def __init__(self, **spec: Any) -> None:
        self.cluster = FakeCluster()
        self.view = FakeView(self.cluster)
        self.kubelet = Kubelet(self.cluster)
        self.deaths = 0
        self.again: float | None = None
        self.start_operator()
        self.apply(manifest(**spec))

    def apply(self, job: Manifest) -> None:
        """Create a job as `kubectl apply` does."""
        fresh = {key: value for key, value in job["metadata"].items() if key in ("name", "namespace")}
        self.cluster.add(job | {"metadata": fresh})

    def start_operator(self, behind: Mapping[str, int] | None = None) -> None:
        """Start an operator with an empty memory, and with a filled cache.

        behind: the number of changes of a kind that the cache does not have yet.
        """
        self.view = FakeView(self.cluster)
        self.view.deliver(behind=behind or {})
        self.progress = FakeProgress()
        self.places = RecordPlaces(self.records, elapsed=self.elapsed)
        self.reconciler = Reconciler(
            self.cluster,
            self.view,
            cast(ProgressPoller, self.progress),
            self.new_metrics(),
            lambda: self.cluster.now,
            PlanCache(self.plan),
            elapsed=self.elapsed,
            counts_after=self.counts_after,
            at_once=self.at_once,
            host_paths=self.host_paths,
            recorder=RecordKeeper(partial(record_pod, image="tensorboard:1"), self.places)
            if self.records
            else None,
        )

    def elapsed(self) -> float:
        """Seconds on a clock that nobody sets."""
        return (self.cluster.now - START).total_seconds()

    def new_metrics(self) -> OperatorMetrics:
        """Return the metrics of a new operator."""
        return METRICS

    async def turn(self) -> None:
        """Run a pass. An operator that dies is restarted, and a pass with a fault is repeated later."""
        try:
            self.again = await self.reconciler.reconcile(KEY)
        except ApiError:
            self.again = 0.0
        except OperatorDied:
            self.deaths += 1
            self.cluster.die_at = None
            self.start_operator()
            self.again = 0.0

    async def step(self) -> bool:
        """Deliver all changes, run a pass, and advance the pods. Return whether anything happened."""
        before = len(self.cluster.log)
        self.view.deliver()
        await self.turn()
        self.kubelet.step()
        ending = any("deletionTimestamp" in pod["metadata"] for pod in self.cluster.of_kind("Pod"))
        return len(self.cluster.log) > before or self.again is not None or ending

    async def until(self, condition: Callable[[], bool], steps: int = 200) -> None:
        """Step until the condition holds."""
        for _ in range(steps):
            if condition():
                return
            await self.step()
        raise AssertionError(f"not within {steps} steps; status: {self.status}")

    async def rest(self, steps: int = 1500) -> None:
        """Step until nothing happens."""
        for _ in range(steps):
            if not await self.step():
                return
        raise AssertionError(f"no rest within {steps} steps; status: {self.status}")

    def lose_node_of(self, name: str, *, noticed: bool = True) -> None:
        """Lose the node of a pod. noticed: the node controller has marked the pod."""
        uid = self.cluster.pod(name)["metadata"]["uid"]
        self.kubelet.lost.add(uid)
        if noticed:
            told = [{"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "True"}]
            self.cluster.change(("Pod", "ml", name), lambda pod: pod["status"].update(conditions=told))

    @property
    def status(self) -> Manifest:
        status: Manifest = self.cluster.job().get("status", {})
        return status

    @property
    def phase(self) -> str | None:
        return self.status.get("phase")

    def condition(self, kind: str) -> Manifest:
        """Return the condition of that type; empty if the status does not have it."""
        return next((c for c in self.status.get("conditions", []) if c["type"] == kind), {})

    def pod_names(self) -> list[str]:
        return sorted(pod["metadata"]["name"] for pod in self.cluster.of_kind("Pod"))

    def events(self) -> list[str]:
        """Return the reasons of the events, in the order of their creation."""
        return [event["reason"] for event in self.cluster.of_kind("Event")]
