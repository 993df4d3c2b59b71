"""Jobs for which their namespace has no room in the operator's memory: new jobs wait, and running jobs go on."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest

from dtj.api.job import Manifest
from dtj.api.stored_job import read_stored_job
from dtj.reconcile import memory, reconciler
from dtj.reconcile import memory as memory_module
from dtj.reconcile.job_cache import no_room
from dtj.reconcile.kept_job import keep, without_spec
from dtj.reconcile.memory import Cost
from dtj.reconcile.view import Key
from tests.unit.support.fake_view import FakeView
from tests.unit.support.programs import endless, fails
from tests.unit.support.world import World


class Full(FakeView):
    """The operator's view, in which the namespace has room or not."""

    full = False

    def job(self, key: Key) -> Mapping[str, Any] | None:
        job = super().job(key)
        if job is None:
            return None
        kept = keep(job)
        return without_spec(kept, no_room("ml", 64_000_000)) if self.full else kept


class FullWorld(World):
    """A job in a namespace that is full or not."""

    @property
    def view(self) -> FakeView:
        return self._view

    @view.setter
    def view(self, _: FakeView) -> None:
        self._view = Full(self.cluster)

    def fill(self, *, full: bool) -> None:
        Full.full = full


@pytest.fixture(autouse=True)
def empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Full, "full", False)


async def test_a_new_job_waits_says_why_and_starts_when_there_is_room() -> None:
    world = FullWorld()
    world.fill(full=True)
    await world.rest()

    assert world.phase == "Pending"
    for kind in ("Created", "Running"):
        assert world.condition(kind)["reason"] == "NamespaceFull"
        assert world.condition(kind)["message"].startswith(
            "spec: the jobs of namespace ml take more than 64 MB"
        )
    assert "startTime" not in world.status
    assert world.events() == ["NamespaceFull"]
    assert world.pod_names() == []
    assert not world.cluster.of_kind("ConfigMap")

    world.fill(full=False)
    await world.rest()
    assert world.phase == "Succeeded"


async def test_a_new_leader_writes_nothing_of_a_job_that_waits() -> None:
    world = FullWorld()
    world.fill(full=True)
    await world.rest()
    written = len(world.cluster.writes)
    world.start_operator()
    await world.rest()
    assert len(world.cluster.writes) == written


@pytest.mark.parametrize("spec", [{}, {"strategy": "TorchDistributed"}], ids=["Horovod", "TorchDistributed"])
async def test_the_pods_of_a_running_job_stay_and_the_job_ends_as_usual(spec: Manifest) -> None:
    world = FullWorld(**spec)
    world.kubelet.program = endless
    await world.until(lambda: world.phase == "Running")
    pods = {pod["metadata"]["uid"] for pod in world.cluster.of_kind("Pod")}

    world.fill(full=True)
    world.start_operator()
    await world.rest()
    assert world.phase == "Running"
    assert world.condition("Created")["reason"] == "NamespaceFull"
    assert {pod["metadata"]["uid"] for pod in world.cluster.of_kind("Pod")} == pods

    world.kubelet.program = lambda _pod, _ran: (0, "")
    await world.rest()
    assert world.phase == "Succeeded"


async def test_a_loss_is_counted_and_the_next_attempt_waits_for_room() -> None:
    world = FullWorld()
    usual, world.kubelet.program = world.kubelet.program, endless
    await world.until(lambda: world.phase == "Running")
    world.fill(full=True)
    world.kubelet.program = fails(1)
    await world.until(lambda: world.status["attempt"] == 2)
    await world.rest()
    assert world.pod_names() == []
    assert world.condition("Created")["reason"] == "NamespaceFull"

    world.kubelet.program = usual
    world.fill(full=False)
    await world.rest()
    assert (world.phase, world.status["attempt"]) == ("Succeeded", 2)


async def test_a_long_spec_is_checked_and_planned_outside_of_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[bool] = []
    count = Cost.count

    async def counted(self: Cost, do: Any, pods: int = 0) -> Any:
        def told() -> Any:
            threads.append(threading.current_thread() is threading.main_thread())
            return do()

        return await count(self, told, pods)

    monkeypatch.setattr(memory_module.Cost, "count", counted)
    await FullWorld(args=["x"]).rest()
    assert all(threads)
    threads.clear()
    await FullWorld(args=["x" * 20_000]).rest()
    assert len(threads) > 3
    assert not any(threads)


@pytest.mark.bound(
    "operator",
    "Who may create jobs",
    "Memory, and pauses of the event loop, while nothing happens",
    "Between passes, specs of 64 kB stay as data, and 32 MB of them in all",
)
@pytest.mark.parametrize(
    ("tolerations", "most", "stays"), [(10, None, True), (10, 0, False), (2_000, None, False)]
)
async def test_small_specs_stay_as_data_from_one_pass_to_the_next(
    monkeypatch: pytest.MonkeyPatch, tolerations: int, most: int | None, *, stays: bool
) -> None:
    reads = 0

    def read(*given: Any) -> Any:
        nonlocal reads
        reads += 1
        return read_stored_job(*given)

    monkeypatch.setattr(memory, "read_stored_job", read)
    if most is not None:
        monkeypatch.setattr(reconciler, "_MOST_BYTES", most)
    template = {"spec": {"tolerations": [{"operator": "Exists"}] * tolerations}}
    world = FullWorld(replicaSpecs={"worker": {"replicas": 1, "template": template}})
    await world.until(lambda: world.phase == "Running")

    assert (reads == 1) == stays
