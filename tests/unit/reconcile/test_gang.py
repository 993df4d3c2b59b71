"""Jobs with gang scheduling: their PodGroups, and whole lives in a queue of Kueue.

* PodGroups: before the pods, of another size, not served, of somebody else
* Kueue: admission, eviction, deactivation, finalizers, deletion
* an operator that dies while it creates the group
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dtj.api.job import Manifest
from dtj.cluster.interface import ApiError
from tests.unit.support.kubelet import Ending
from tests.unit.support.kueue import Kueue
from tests.unit.support.programs import decides
from tests.unit.support.world import World

GROUP = ("PodGroup", "ml", "mnist")
JOB = ("DistributedTrainingJob", "ml", "mnist")
KUEUE = {"schedulingPolicy": {"gang": "Kueue", "queue": "research"}}
PS = {"strategy": "ParameterServer", "replicaSpecs": {"worker": {"replicas": 2}, "ps": {"replicas": 1}}}

TORCH = {"strategy": "TorchDistributed"}


def endless(pod: Manifest, ran: int) -> Ending | None:
    return None


def decisive_ends(pod: Manifest, ran: int) -> Ending | None:
    """A program whose success is the job's success comes to its end."""
    return (0, "") if ran >= 3 and decides(pod) else None


def made(world: World) -> list[str]:
    return [call.name for call in world.cluster.calls if (call.verb, call.kind) == ("create", "Pod")]


class Queue:
    """A job in a queue of Kueue."""

    def __init__(self, **spec: Any) -> None:
        self.world = World(**{"runPolicy": KUEUE} | spec)
        self.world.kubelet.program = decisive_ends
        self.kueue = Kueue(self.world.cluster)

    async def until(self, condition: Callable[[], bool], steps: int = 300) -> None:
        for _ in range(steps):
            if condition():
                return
            await self.world.step()
            self.kueue.step()
        raise AssertionError(f"not within {steps} steps: {self.world.status}")

    async def rest(self) -> None:
        """Let the operator and Kueue do what they still have to do."""
        for _ in range(20):
            await self.world.step()
            self.kueue.step()

    def edit(self, **policy: Any) -> None:
        """Change the job's run policy, as a user does."""

        def change(job: Manifest) -> None:
            job["spec"]["runPolicy"] = job["spec"]["runPolicy"] | policy
            job["metadata"]["generation"] += 1

        self.world.cluster.change(JOB, change)

    @property
    def attempts(self) -> set[str]:
        return {pod["metadata"]["labels"]["dtj.dev/attempt"] for pod in self.world.cluster.of_kind("Pod")}

    @property
    def reason(self) -> str | None:
        return self.world.condition("Running").get("reason")


# --- PodGroups ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("gang", ["Coscheduling", "Volcano"])
async def test_the_pod_group_is_there_before_its_pods_and_goes_with_the_job(gang: str) -> None:
    world = World(runPolicy={"schedulingPolicy": {"gang": gang}})

    await world.until(lambda: world.phase == "Running")

    created = [call.kind for call in world.cluster.calls if call.verb == "create" and call.kind != "Event"]
    assert created.index("PodGroup") < created.index("Pod")
    assert created.count("PodGroup") == 2, "once more for the launcher, and it was there"
    owner = world.cluster.objects[GROUP]["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["controller"]) == ("DistributedTrainingJob", True)
    await world.rest()
    assert world.phase == "Succeeded"
    assert GROUP not in world.cluster.objects, "a scheduler keeps room for a group that is there"


async def test_a_suspended_job_has_no_pod_group() -> None:
    world = World(runPolicy={"schedulingPolicy": {"gang": "Volcano"}})
    world.kubelet.program = endless
    await world.until(lambda: world.phase == "Running")

    world.cluster.change(JOB, lambda job: job["spec"]["runPolicy"].update(suspend=True))
    await world.until(lambda: world.phase == "Suspended" and GROUP not in world.cluster.objects)

    world.cluster.change(JOB, lambda job: job["spec"]["runPolicy"].update(suspend=False))
    world.cluster.change(JOB, lambda job: job["spec"]["replicaSpecs"]["worker"].update(replicas=3))
    await world.until(lambda: world.phase == "Running")
    assert world.cluster.objects[GROUP]["spec"]["minMember"] == 3


async def test_a_pod_group_of_another_size_is_brought_to_the_plan() -> None:
    world = World(runPolicy={"schedulingPolicy": {"gang": "Volcano"}})
    world.kubelet.hold = {"mnist-worker-0"}
    await world.until(lambda: world.phase == "Starting")

    world.cluster.change(JOB, lambda job: job["spec"]["replicaSpecs"]["worker"].update(replicas=3))
    await world.until(lambda: "mnist-worker-2" in world.pod_names())

    assert world.cluster.objects[GROUP]["spec"]["minMember"] == 3


async def test_where_the_kind_is_not_served_the_job_says_so_waits_and_goes_on() -> None:
    world = World(runPolicy={"schedulingPolicy": {"gang": "Volcano"}})
    missing = ApiError(404, "Error", "404 page not found")
    world.cluster.refuse = lambda made: missing if made["kind"] == "PodGroup" else None

    await world.until(lambda: world.condition("Running").get("reason") == "SchedulerMissing")

    assert world.condition("Running")["message"] == (
        "PodGroup mnist can't be made: the cluster does not serve scheduling.volcano.sh/v1beta1, and "
        "runPolicy.schedulingPolicy.gang is Volcano; the job continues after the scheduler is installed"
    )
    assert (world.phase, world.pod_names()) == ("Pending", [])
    assert "SchedulerMissing" in world.events()
    world.cluster.refuse = lambda made: None
    await world.rest()
    assert world.phase == "Succeeded"


async def test_a_pod_group_of_somebody_else_stays_theirs() -> None:
    world = World(runPolicy={"schedulingPolicy": {"gang": "Volcano"}})
    theirs = {"kind": "PodGroup", "metadata": {"name": "mnist", "namespace": "ml"}, "spec": {"minMember": 9}}
    world.cluster.add(theirs)

    await world.until(lambda: world.condition("Running").get("reason") == "NameTaken")
    world.cluster.change(JOB, lambda job: job["spec"]["runPolicy"].update(suspend=True))
    await world.until(lambda: world.phase == "Suspended")

    assert world.cluster.objects[GROUP]["spec"] == {"minMember": 9}
    assert world.pod_names() == []


async def test_without_a_gang_nobody_is_asked_for_a_pod_group() -> None:
    world = World()
    await world.rest()
    assert {call.kind for call in world.cluster.calls} & {"PodGroup"} == set()


# --- Kueue ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [{}, PS, TORCH], ids=["horovod", "parameter-server", "torch-distributed"])
async def test_a_queued_job_has_all_its_pods_and_runs_when_it_is_admitted(spec: Any) -> None:
    queue = Queue(**spec)
    queue.kueue.open = False
    await queue.until(lambda: queue.reason == "Queued")
    pods = queue.world.pod_names()
    for _ in range(20):
        await queue.world.step()
        queue.kueue.step()
    assert queue.world.pod_names() == pods
    assert queue.world.phase == "Pending"

    queue.kueue.open = True
    await queue.until(lambda: queue.world.phase == "Succeeded")

    assert queue.world.status["restarts"] == {"application": 0, "infrastructure": 0}
    assert "Queued" in queue.world.events()
    assert "NotQueued" not in queue.world.events()


@pytest.mark.parametrize("spec", [{}, PS, TORCH], ids=["horovod", "parameter-server", "torch-distributed"])
async def test_an_evicted_job_goes_back_to_the_queue_as_a_new_group(spec: Any) -> None:
    queue = Queue(**spec)
    queue.world.kubelet.program = endless
    await queue.until(lambda: queue.world.phase == "Running")
    queue.kueue.open = False

    queue.kueue.evict()
    await queue.until(lambda: queue.reason == "Queued" and queue.attempts == {"2"})
    queue.kueue.open = True
    queue.world.kubelet.program = decisive_ends
    await queue.until(lambda: queue.world.phase == "Succeeded")

    assert queue.world.status["restarts"] == {"application": 0, "infrastructure": 1}
    assert [name.rsplit("-", 1)[1] for name in queue.kueue.admitted] == ["1", "2"]


@pytest.mark.parametrize("spec", [{}, PS, TORCH], ids=["horovod", "parameter-server", "torch-distributed"])
@pytest.mark.parametrize("victim", ["mnist-worker-0", "mnist-worker-1"])
async def test_no_finalizer_of_kueue_ever_stands_in_the_way_of_the_next_attempt(
    spec: Any, victim: str
) -> None:
    queue = Queue(**spec)
    await queue.until(lambda: victim in queue.world.pod_names() and bool(queue.kueue.admitted))
    queue.world.cluster.end_pod(queue.world.cluster.pod(victim))

    await queue.until(lambda: queue.world.phase == "Succeeded")

    assert queue.world.status["attempt"] == 2


@pytest.mark.parametrize("spec", [{}, PS, TORCH], ids=["horovod", "parameter-server", "torch-distributed"])
async def test_a_job_whose_workload_is_deactivated_comes_back_when_the_user_says_so(spec: Any) -> None:
    queue = Queue(**spec)
    queue.world.kubelet.program = endless
    await queue.until(lambda: queue.world.phase == "Running")

    queue.kueue.deactivate()
    await queue.until(lambda: queue.world.phase == "Suspended")
    await queue.rest()

    assert (queue.attempts, len(queue.kueue.admitted)) == (set(), 1)
    suspended = queue.world.condition("Suspended")
    assert (suspended["status"], suspended["reason"]) == ("True", "WorkloadDeactivated")
    assert (
        "The workload is deactivated); attempt 2 is next: Kueue queues it after you resume the job"
        in suspended["message"]
    )
    assert "startTime" not in queue.world.status
    assert queue.world.status["restarts"] == {"application": 0, "infrastructure": 0}
    assert queue.world.events()[-2:] == ["WorkloadDeactivated", "WorkloadDeactivated"]

    for suspend in (True, False):
        queue.edit(suspend=suspend)
        await queue.rest()
    queue.world.kubelet.program = decisive_ends
    await queue.until(lambda: queue.world.phase == "Succeeded")
    assert queue.world.status["attempt"] == 2


async def test_a_resumption_that_the_operator_sees_late_counts_too() -> None:
    queue = Queue()
    queue.world.kubelet.program = endless
    await queue.until(lambda: queue.world.phase == "Running")
    queue.kueue.deactivate()
    await queue.until(lambda: queue.world.phase == "Suspended")

    queue.edit(suspend=True)
    queue.edit(suspend=False)

    await queue.until(lambda: queue.world.phase == "Running")


async def test_a_job_deleted_in_the_queue_leaves_nothing() -> None:
    queue = Queue()
    queue.kueue.open = False
    await queue.until(lambda: queue.reason == "Queued")

    queue.world.cluster.remove(JOB)
    await queue.until(lambda: queue.world.pod_names() == [])


@pytest.mark.parametrize("call", range(1, 12))
async def test_an_operator_that_dies_while_it_makes_the_group_completes_it(call: int) -> None:
    queue = Queue()
    queue.world.cluster.die_at = call
    await queue.until(lambda: queue.world.phase == "Succeeded")
    assert queue.world.status["attempt"] == 1
    assert len(made(queue.world)) <= 4, "no pod but the one at hand is asked for twice"


async def test_where_kueue_takes_no_pods_a_warning_says_so_once() -> None:
    world = World(runPolicy=KUEUE)
    await world.rest()
    assert world.phase == "Succeeded"
    assert world.events().count("NotQueued") == 1
