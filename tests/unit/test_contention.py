"""Two jobs on a cluster with room for one and a half, and what the operator sees of others' jobs."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, cast

import pytest

from dtj.api.job import Manifest
from dtj.cluster.port import ApiError
from dtj.reconcile.contention import contender
from dtj.reconcile.progress import ProgressPoller
from dtj.reconcile.reconciler import Reconciler
from dtj.reconcile.view import Key
from tests.unit.support.fake_cluster import FakeCluster, FakeView, Kubelet
from tests.unit.support.jobs import manifest
from tests.unit.support.pods import running, scheduled, unschedulable, views
from tests.unit.support.world import METRICS, FakeProgress

PATIENCE = 60.0
GPUS = {"worker": {"replicas": 3, "gpus": 1}}
PS = {"strategy": "ParameterServer", "replicaSpecs": {"worker": {"replicas": 2}, "ps": {"replicas": 1}}}


class Both:
    """Jobs `one`, the older, and `two`, and an operator for them."""

    def __init__(self, places: int, *, patience: float = PATIENCE, **spec: Any) -> None:
        self.cluster = FakeCluster()
        self.view = FakeView(self.cluster)
        self.kubelet = Kubelet(self.cluster, places=places)
        self.reconciler = Reconciler(
            self.cluster,
            self.view,
            cast(ProgressPoller, FakeProgress()),
            METRICS,
            lambda: self.cluster.now,
            give_way_after=patience,
        )
        for name in ("one", "two"):
            self.cluster.add(manifest(**spec) | {"metadata": {"name": name, "namespace": "ml"}})

    def status(self, name: str) -> Manifest:
        status: Manifest = self.cluster.objects["DistributedTrainingJob", "ml", name].get("status", {})
        return status

    def phases(self) -> set[str | None]:
        return {self.status(name).get("phase") for name in ("one", "two")}

    def events(self, name: str) -> list[str]:
        events = self.cluster.of_kind("Event")
        return [event["reason"] for event in events if event["involvedObject"]["name"] == name]

    async def steps(self, number: int) -> None:
        """The pods of the jobs are made in turns: each gets a part."""
        for _ in range(number):
            for key in cast(list[Key], [("ml", "one"), ("ml", "two")]):
                self.view.deliver()
                with suppress(ApiError):
                    await self.reconciler.reconcile(key)
            self._in_turns()
            if self.phases() == {"Succeeded"}:
                return

    def _in_turns(self) -> None:
        """The scheduler takes a pod of the one job, then one of the other."""
        pods = self.cluster.of_kind("Pod")
        for pod in sorted(pods, key=lambda pod: pod["metadata"]["name"].rsplit("-", 1)[1]):
            name = ("Pod", "ml", pod["metadata"]["name"])
            self.cluster.objects[name] = self.cluster.objects.pop(name)
        self.kubelet.step()


@pytest.mark.parametrize("spec", [{"replicaSpecs": GPUS}, PS], ids=["horovod", "parameter-server"])
async def test_two_jobs_with_room_for_one_and_a_half_both_come_to_their_end(spec: Any) -> None:
    both = Both(4, **spec)
    both.kubelet.program = lambda pod, ran: (
        (0, "") if pod["metadata"]["labels"]["dtj.dev/role"] in ("launcher", "chief") and ran >= 3 else None
    )

    await both.steps(600)

    assert both.phases() == {"Succeeded"}
    assert both.status("one")["attempt"] == 1, "the older keeps what it has"
    assert both.status("two")["restarts"] == {"application": 0, "infrastructure": 1}
    assert both.events("two").count("GaveWay") == 1
    assert "gaveWay" not in both.status("two")


async def test_without_the_check_both_wait_for_ever() -> None:
    both = Both(4, patience=0, replicaSpecs=GPUS)
    await both.steps(600)
    assert both.phases() == {"Pending"}


async def test_one_that_gave_way_is_pending_and_says_whom_it_waits_for() -> None:
    both = Both(4, replicaSpecs=GPUS)
    both.kubelet.program = lambda pod, ran: None

    await both.steps(75)

    status = both.status("two")
    running_now = next(c for c in status["conditions"] if c["type"] == "Running")
    assert (status["phase"], status["attempt"], running_now["reason"]) == ("Pending", 2, "GaveWay")
    assert running_now["message"] == "waits for its turn: it gave its nodes back"
    assert both.status("one")["phase"] == "Running"


# --- who takes part ----------------------------------------------------------------------------------------


def seen(*pods: Manifest, status: Manifest | None = None, **spec: Any) -> Any:
    made = manifest(**spec)
    made["metadata"]["creationTimestamp"] = "2026-11-21T12:00:00Z"
    for pod in pods:
        for told in pod["status"].get("conditions", []):
            told["lastTransitionTime"] = "2026-11-21T12:00:10Z"
    return contender(("ml", "mnist"), made | {"status": {"phase": "Pending", **(status or {})}}, views(*pods))


HALF = (scheduled("mnist-worker-0"), unschedulable("mnist-worker-1", "full"))


def test_a_job_with_a_part_of_its_nodes_is_stuck_since_the_scheduler_did_something_last() -> None:
    found = seen(*HALF)
    assert found.stuck_since is not None
    assert found.stuck_since.isoformat() == "2026-11-21T12:00:10+00:00"
    assert found.starved_since is None


def test_a_job_without_a_node_is_starved_and_one_that_is_placed_is_neither() -> None:
    assert seen(unschedulable("mnist-worker-1", "full")).starved_since is not None
    placed = seen(scheduled("mnist-worker-0"), running("mnist-worker-1"))
    assert (placed.stuck_since, placed.starved_since) == (None, None)


@pytest.mark.parametrize(
    ("spec", "status"),
    [
        ({}, {"phase": "Running"}),
        ({}, {"phase": "Restarting", "allRunningTime": "2026-11-21T12:00:00Z"}),
        ({"runPolicy": {"suspend": True}}, {}),
        ({"runPolicy": {"managedBy": "kueue.x-k8s.io/multikueue"}}, {}),
        ({"runPolicy": {"schedulingPolicy": {"gang": "Volcano"}}}, {}),
    ],
    ids=["running", "trained-before", "suspended", "of-another", "of-a-gang"],
)
def test_jobs_that_run_or_that_others_place_take_no_part(spec: Manifest, status: Manifest) -> None:
    assert seen(*HALF, status=status, **spec) is None


def test_jobs_compete_by_the_rarest_that_they_want() -> None:
    requests = {"resources": {"requests": {"cpu": 1, "rdma/hca": 1}}}
    assert seen(*HALF).kinds == {"cpu"}
    assert seen(*HALF, replicaSpecs={"worker": {"gpus": 1}}).kinds == {"nvidia.com/gpu"}
    other = {
        "accelerator": {"resourceName": "amd.com/gpu"},
        "replicaSpecs": {"worker": {"gpus": 1, **requests}},
    }
    assert seen(*HALF, **other).kinds == {"amd.com/gpu", "rdma/hca"}
