"""Whole lives of jobs against a strict API server in memory.

* the happy path and its requests
* failures, retries, evictions and deadlines
* an operator that dies at any request
* a cache that lags behind
* refusals and errors of the API server
* jobs that are deleted, created again or edited
* progress
* ssh keys and pods of somebody else
* the fake API server itself
"""

from __future__ import annotations

import copy
import itertools
import json
import random
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal

import pytest

from dtj.api.job import Manifest, read_job
from dtj.api.status import ArtifactsStatus, ProgressStatus
from dtj.cluster.interface import ApiError
from dtj.status.observed import ProgressReport, read_report
from dtj.status.restart_policy import may_restore
from tests.unit.support.fake_cluster import Call, FakeCluster
from tests.unit.support.jobs import manifest
from tests.unit.support.programs import endless, fails
from tests.unit.support.world import KEY, METRICS, World

WORKERS = ["mnist-worker-0", "mnist-worker-1"]
EVERYTHING = ["mnist-launcher-0", *WORKERS]
JOB = ("DistributedTrainingJob", "ml", "mnist")

PARAMETER_SERVERS = {
    "strategy": "ParameterServer",
    "replicaSpecs": {"worker": {"replicas": 2}, "ps": {"replicas": 1}},
}


def dying(world: World, call: int, when: Literal["before", "after"]) -> World:
    world.cluster.die_at, world.cluster.die_when = call, when
    return world


# --- the happy path -----------------------------------------------------------------------------


async def test_a_job_succeeds_with_exactly_the_objects_it_needs() -> None:
    world = World()

    await world.rest()

    assert world.phase == "Succeeded"
    made = [(call.kind, call.name) for call in world.cluster.calls if call.verb == "create"]
    assert [entry for entry in made if entry[0] != "Event"] == [
        ("Secret", world.status["sshSecret"]),
        ("Service", "mnist"),
        ("ConfigMap", "mnist-config"),
        ("Pod", "mnist-worker-0"),
        ("Pod", "mnist-worker-1"),
        ("Pod", "mnist-launcher-0"),
    ]
    assert world.events() == ["JobRunning", "JobSucceeded"]
    assert world.pod_names() == ["mnist-launcher-0"]


@pytest.mark.bound(
    "operator",
    "Who may create jobs",
    "Writes of a job that trains undisturbed",
    "20 for a Horovod job of two workers, 10 of them of the status",
)
async def test_an_undisturbed_job_costs_few_writes() -> None:
    world = World()

    await world.rest()

    status = [call for call in world.cluster.writes if call.kind == "DistributedTrainingJob"]
    print(f"{len(world.cluster.writes)} writes, {len(status)} of them of the status")
    # Service, Secret, ConfigMap, three pods, two events, two workers told to end.
    assert len(world.cluster.writes) - len(status) == 10
    # One for each step of a pod that the status shows; here every one of them comes alone.
    assert len(status) <= 10


async def test_a_finished_job_costs_nothing_more() -> None:
    world = World()
    await world.rest()
    world.cluster.calls.clear()

    for _ in range(5):
        await world.step()
    world.start_operator()
    await world.step()

    assert world.cluster.calls == []


async def test_an_edit_of_a_finished_job_is_observed_and_changes_nothing() -> None:
    world = World()
    await world.rest()
    world.cluster.change(JOB, lambda job: job["spec"].update(args=["--lr=2"]))
    before = world.status
    world.cluster.calls.clear()

    await world.rest()

    assert world.status == before | {"observedGeneration": 2}
    assert [(call.verb, call.kind) for call in world.cluster.calls] == [("patch", "DistributedTrainingJob")]


@pytest.mark.parametrize(("failing", "end"), [(0, "Succeeded"), (99, "Failed")])
async def test_a_job_that_ended_is_not_begun_again_when_what_is_left_of_it_goes(
    failing: int, end: str
) -> None:
    world = World(runPolicy={"backoffLimit": 0, "cleanPodPolicy": "None"})
    world.kubelet.program = fails(failing)
    await world.rest()
    assert world.phase == end
    world.cluster.calls.clear()

    for kind in ("Pod", "Service", "Secret", "ConfigMap"):
        for left in world.cluster.of_kind(kind):
            world.cluster.remove((kind, "ml", left["metadata"]["name"]))
            await world.rest()
    world.start_operator()
    await world.rest()

    assert [call for call in world.cluster.calls if call.kind != "DistributedTrainingJob"] == []
    assert (world.phase, world.status["attempt"], world.pod_names()) == (end, 1, [])


async def test_a_running_job_costs_nothing_while_nothing_happens() -> None:
    world = World()
    world.kubelet.program = endless
    await world.rest()
    assert world.phase == "Running"
    world.cluster.calls.clear()

    for _ in range(20):
        await world.step()

    assert world.cluster.calls == []


async def test_the_launcher_is_made_as_soon_as_all_workers_run() -> None:
    world = World()
    world.kubelet.hold, world.kubelet.unready = {WORKERS[1]}, set(WORKERS)
    await world.rest()
    assert world.pod_names() == WORKERS

    world.kubelet.hold.clear()
    await world.until(lambda: "mnist-launcher-0" in world.pod_names())

    assert world.phase == "Starting"


FROM_ANOTHER_JOB = {"uri": "s3://bucket", "resume": "FromURI", "resumeUri": "s3://bucket/other"}


async def test_a_launcher_does_not_wait_while_workers_restore_a_checkpoint() -> None:
    world = World(artifacts=FROM_ANOTHER_JOB)
    world.kubelet.unready = {WORKERS[1]}
    await world.rest()
    assert world.pod_names() == WORKERS

    world.kubelet.unready.clear()
    await world.rest()

    assert world.phase == "Succeeded"


@pytest.mark.parametrize(
    ("status", "artifacts", "may"),
    [
        ({}, {"uri": "s3://bucket"}, False),
        ({"attempt": 1}, None, False),
        ({"attempt": 2}, {"uri": "s3://bucket"}, True),
        ({"artifacts": {"checkpoint": {"step": 7, "uri": "s3://bucket/7"}}}, {"uri": "s3://bucket"}, True),
        ({}, FROM_ANOTHER_JOB, True),
    ],
)
def test_what_a_job_may_have_to_restore(status: Manifest, artifacts: Manifest | None, may: bool) -> None:
    spec = {"artifacts": artifacts} if artifacts else {}

    assert may_restore(read_job({**manifest(**spec), "status": status})) is may


async def test_a_worker_deleted_before_the_launcher_is_made_again_and_not_counted() -> None:
    world = World()
    await world.until(
        lambda: len(world.pod_names()) == 2 and "nodeName" in world.cluster.pod(WORKERS[0])["spec"]
    )

    world.cluster.end_pod(world.cluster.pod("mnist-worker-0"))
    await world.rest()

    assert world.phase == "Succeeded"
    assert world.status["attempt"] == 1
    assert world.status["restarts"] == {"application": 0, "infrastructure": 0}
    assert world.cluster.created_pods.count(("mnist-worker-0", "1")) == 2


async def test_no_launcher_is_started_over_a_worker_that_is_about_to_go() -> None:
    world = World()
    world.kubelet.end_steps = 5
    await world.until(
        lambda: (
            [world.cluster.pod(name)["status"].get("phase") for name in world.pod_names()] == ["Running"] * 2
        )
    )

    world.cluster.end_pod(world.cluster.pod("mnist-worker-0"))
    await world.rest()

    assert world.phase == "Succeeded"
    assert world.status["restarts"] == {"application": 0, "infrastructure": 0}


# --- failures -------------------------------------------------------------------------------------


async def test_a_program_that_fails_once_is_tried_again_and_succeeds() -> None:
    world = World()
    world.kubelet.program = fails(1)

    await world.rest()

    assert world.phase == "Succeeded"
    assert world.status["attempt"] == 2
    assert world.status["restarts"] == {"application": 1, "infrastructure": 0}
    assert sorted(world.cluster.created_pods) == sorted((name, n) for name in EVERYTHING for n in "12")
    assert world.events() == ["JobRunning", "JobRestarting", "JobRunning", "JobSucceeded"]


@pytest.mark.parametrize(
    ("policy", "left"), [("Running", ["mnist-launcher-0"]), ("All", []), ("None", EVERYTHING)]
)
async def test_a_program_that_keeps_failing_fails_the_job_and_its_pods_go_by_policy(
    policy: str, left: list[str]
) -> None:
    world = World(runPolicy={"backoffLimit": 2, "cleanPodPolicy": policy})
    world.kubelet.program = fails(99)

    await world.rest()

    assert world.phase == "Failed"
    assert world.condition("Failed")["reason"] == "BackoffLimitExceeded"
    assert world.condition("Failed")["message"] == "attempt 3: mnist-launcher-0: it broke"
    assert world.status["attempt"] == 3
    assert world.status["restarts"]["application"] == 2
    assert world.pod_names() == left
    assert all(pod["metadata"]["labels"]["dtj.dev/attempt"] == "3" for pod in world.cluster.of_kind("Pod"))


@pytest.mark.parametrize("code", [1, 127, 137, 143])
@pytest.mark.parametrize(
    ("spec", "role"),
    [({}, "launcher"), (PARAMETER_SERVERS, "chief"), (PARAMETER_SERVERS, "worker")],
    ids=["Horovod", "chief", "worker"],
)
async def test_whatever_code_a_program_ends_with_its_retries_are_as_many_as_the_limit_says(
    spec: dict[str, Any], role: str, code: int
) -> None:
    name = f"mnist-{role}-0"
    world = World(runPolicy={"backoffLimit": 2}, **spec)
    world.kubelet.program = lambda pod, ran: (
        (code, "") if (pod["metadata"]["name"], ran) == (name, 3) else None
    )

    await world.rest()

    assert (world.phase, world.condition("Failed")["reason"]) == ("Failed", "BackoffLimitExceeded")
    assert world.status["restarts"] == {"application": 2, "infrastructure": 0}
    assert world.status["failure"]["exitCode"] == code
    assert [made for made, _ in world.cluster.created_pods].count(name) == 3
    assert world.condition("Restarting")["status"] == "False"
    assert world.pod_names() == [name]


async def test_a_worker_lost_while_running_restarts_the_attempt_and_is_not_the_programs_fault() -> None:
    world = World(runPolicy={"backoffLimit": 0})
    world.kubelet.program = endless
    await world.until(lambda: world.phase == "Running")

    world.cluster.end_pod(world.cluster.pod("mnist-worker-1"))
    world.kubelet.program = fails(0)
    await world.rest()

    assert world.phase == "Succeeded"
    assert world.status["restarts"] == {"application": 0, "infrastructure": 1}
    assert world.status["attempt"] == 2


async def test_an_evicted_worker_ends_its_attempt_with_all_its_pods_and_the_next_one_is_whole() -> None:
    world = World(runPolicy={"backoffLimit": 0})
    world.kubelet.program = endless
    await world.until(lambda: world.phase == "Running")

    # The kubelet leaves the pod of a container that it ended for want of memory.
    evicted = {"phase": "Failed", "reason": "Evicted", "message": "low on memory"}
    world.cluster.change(("Pod", "ml", "mnist-worker-1"), lambda pod: pod["status"].update(evicted))
    world.kubelet.program = fails(0)
    await world.rest()

    assert world.phase == "Succeeded"
    assert "completionTime" in world.status
    assert world.status["restarts"] == {"application": 0, "infrastructure": 1}
    assert sorted(world.cluster.created_pods) == sorted((name, n) for name in EVERYTHING for n in "12")
    assert world.pod_names() == ["mnist-launcher-0"]


async def test_the_next_attempt_waits_until_the_pods_of_the_last_one_ended() -> None:
    world = World()
    world.kubelet.program, world.kubelet.end_steps = fails(1), 10
    await world.until(lambda: world.status.get("attempt") == 2)

    for _ in range(6):
        await world.step()
        assert {attempt for _, attempt in world.cluster.created_pods} == {"1"}
    assert world.condition("Running")["reason"] == "PodsEnding"
    await world.rest()

    assert world.phase == "Succeeded"


async def test_a_deadline_ends_the_job_even_when_pods_are_kept() -> None:
    world = World(runPolicy={"activeDeadlineSeconds": 30, "cleanPodPolicy": "None"})
    world.kubelet.program = endless

    await world.rest()

    assert world.phase == "Failed"
    assert world.condition("Failed")["reason"] == "DeadlineExceeded"
    assert world.pod_names() == []


# --- an operator that dies --------------------------------------------------------------------------

CALLS = 50


@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_operator_that_dies_at_any_request_changes_nothing_in_the_end(
    when: Literal["before", "after"],
) -> None:
    undisturbed = World()
    undisturbed.kubelet.program = fails(1)
    await undisturbed.rest()
    requests = len(undisturbed.cluster.calls)

    for call in range(1, requests + 1):
        world = dying(World(), call, when)
        world.kubelet.program = fails(1)
        await world.rest()

        assert world.deaths == 1, f"request {call}"
        assert world.phase == "Succeeded", f"died {when} request {call}"
        assert world.status["restarts"] == {"application": 1, "infrastructure": 0}, f"request {call}"
        assert world.status["attempt"] == 2
        assert sorted(world.cluster.created_pods) == sorted(undisturbed.cluster.created_pods), (
            f"died {when} request {call}: a pod was made twice"
        )
        assert world.pod_names() == ["mnist-launcher-0"]
        secrets = {secret["metadata"]["name"] for secret in world.cluster.of_kind("Secret")}
        assert world.status["sshSecret"] in secrets
        assert len(secrets) <= 2, (
            "one more where the operator died before it could tell the name of the first"
        )
        assert len(world.events()) == len({e["message"] for e in world.cluster.of_kind("Event")})


async def test_an_operator_that_dies_at_every_third_request_still_brings_the_job_to_its_end() -> None:
    world = World()
    world.kubelet.program = fails(1)

    for _ in range(400):
        if world.cluster.die_at is None:
            world.cluster.die_at, world.cluster.die_when = 3, "after"
        await world.step()

    assert world.phase == "Succeeded"
    assert world.status["restarts"] == {"application": 1, "infrastructure": 0}
    assert len(world.cluster.created_pods) == 6


async def test_an_operator_that_dies_while_the_job_fails_for_good_counts_no_attempt_more() -> None:
    for call in range(1, CALLS):
        world = dying(World(runPolicy={"backoffLimit": 0}), call, "after")
        world.kubelet.program = fails(99)
        await world.rest()

        assert world.phase == "Failed"
        assert world.status["attempt"] == 1, f"request {call}"
        assert world.status["failure"]["message"] == "it broke"


async def test_an_operator_that_is_down_while_a_job_ends_tells_of_it_later() -> None:
    world = World()
    await world.until(lambda: world.phase == "Running")
    for _ in range(10):
        world.kubelet.step()

    world.start_operator()
    await world.rest()

    assert world.phase == "Succeeded"
    assert world.events() == ["JobRunning", "JobSucceeded"]


# --- a cache that lags behind -----------------------------------------------------------------------


@pytest.mark.parametrize("slow", ["Pod", "DistributedTrainingJob", "Service", "ConfigMap"])
@pytest.mark.parametrize("every", [3, 7])
async def test_a_cache_that_lags_behind_changes_nothing_in_the_end(slow: str, every: int) -> None:
    world = World()
    world.kubelet.program = fails(1)
    others = {"Pod", "DistributedTrainingJob", "Service", "ConfigMap"} - {slow}

    for step in range(250):
        world.view.deliver(*others)
        if step % every == 0:
            world.view.deliver(slow, count=1 if slow == "DistributedTrainingJob" else None)
        await world.turn()
        await world.turn()
        world.kubelet.step()

    assert world.phase == "Succeeded"
    assert world.status["attempt"] == 2
    assert world.status["restarts"] == {"application": 1, "infrastructure": 0}
    assert len(world.cluster.created_pods) == 6, world.cluster.created_pods


async def test_a_cache_behind_our_own_writes_makes_no_request_fail() -> None:
    world = World()
    world.view.deliver()
    written = 0

    for _ in range(12):
        world.view.deliver("Pod", "Service", "ConfigMap")
        # Never further than two writes behind, so that the cache shows versions of our own in between.
        written = len([change for change in world.cluster.log if change[0] == JOB])
        behind = max(0, written - 2 - world.view.seen("DistributedTrainingJob"))
        world.view.deliver("DistributedTrainingJob", count=behind)
        await world.reconciler.reconcile(KEY)  # would raise ApiError 409
        world.kubelet.step()

    assert written > 5
    assert world.phase == "Succeeded"


async def test_a_pass_over_a_stale_copy_of_the_job_does_nothing_but_try_again() -> None:
    world = World()
    await world.until(lambda: world.phase == "Running")
    world.start_operator()
    world.cluster.change(JOB, lambda job: job["metadata"].update(annotations={"a": "b"}))
    world.cluster.end_pod(world.cluster.pod("mnist-worker-0"))
    world.view.deliver("Pod")
    before = len(world.cluster.writes)

    with pytest.raises(ApiError) as caught:
        await world.reconciler.reconcile(KEY)

    assert caught.value.status == 409
    assert len(world.cluster.writes) == before + 1


@pytest.mark.parametrize("spec", [{}, PARAMETER_SERVERS])
async def test_an_operator_that_takes_over_before_it_has_seen_the_pods_gives_up_no_attempt(
    spec: Manifest,
) -> None:
    world = World(**spec)
    world.kubelet.program = endless
    await world.until(lambda: world.phase == "Running")

    world.start_operator(behind={"Pod": 99})
    await world.turn()
    assert world.again == 1.0
    await world.rest()

    assert world.phase == "Running"
    assert world.status["attempt"] == 1
    assert len(world.cluster.created_pods) == len(world.pod_names())


@pytest.mark.parametrize("workers", [1, 2, 3])
async def test_an_operator_that_has_not_seen_the_pods_of_the_attempt_before_makes_none_beside_them(
    workers: int,
) -> None:
    world = World()
    world.kubelet.program = endless
    world.kubelet.end_steps = 9
    await world.until(lambda: world.phase == "Running")
    world.cluster.change(JOB, lambda job: job["spec"]["replicaSpecs"]["worker"].update(replicas=workers))
    world.cluster.remove(("Pod", "ml", "mnist-worker-0"))
    await world.until(lambda: world.status["attempt"] == 2)
    made = len(world.cluster.created_pods)

    world.start_operator(behind={"Pod": 99})
    for _ in range(3):
        world.view.deliver("DistributedTrainingJob")
        await world.turn()
        assert world.again == 1.0
    assert len(world.cluster.created_pods) == made

    await world.until(lambda: world.phase == "Running")
    assert world.status["restarts"]["infrastructure"] == 1
    assert len(world.pod_names()) == workers + 1


# --- what the API server refuses --------------------------------------------------------------------


async def test_a_foreign_service_of_the_same_name_is_told_and_outlived() -> None:
    world = World()
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "mnist", "namespace": "ml"}}
    world.cluster.add(service)

    await world.until(lambda: world.condition("Running").get("reason") == "NameTaken")

    assert world.phase == "Pending"
    assert world.condition("Running")["message"] == (
        "Service mnist can't be made: another object of this name exists, and the job does not own it"
    )
    assert world.pod_names() == []
    assert world.again is not None
    assert world.again <= 14.0

    world.cluster.remove(("Service", "ml", "mnist"))
    await world.rest()
    assert world.phase == "Succeeded"


def quota(manifest: Manifest) -> ApiError | None:
    if manifest["kind"] != "Pod":
        return None
    name = manifest["metadata"]["name"]
    return ApiError(403, "Forbidden", f'pods "{name}" is forbidden: exceeded quota: q, requested: pods=1')


async def test_a_quota_is_told_until_there_is_room() -> None:
    world = World()
    world.cluster.refuse = quota
    await world.until(lambda: world.condition("Running").get("reason") == "QuotaExceeded")

    assert world.phase == "Pending"
    assert world.condition("Running")["message"] == (
        "Pod mnist-worker-0 can't be made: exceeded quota: q, requested: pods=1"
    )
    for _ in range(5):
        await world.step()
    assert world.events() == ["QuotaExceeded"]

    world.cluster.refuse = lambda manifest: None
    await world.rest()
    assert world.phase == "Succeeded"
    assert world.status["restarts"] == {"application": 0, "infrastructure": 0}


async def test_a_quota_of_secrets_is_told_too() -> None:
    world = World()
    world.cluster.refuse = lambda made: (
        ApiError(403, "Forbidden", "exceeded quota: q") if made["kind"] == "Secret" else None
    )

    await world.until(lambda: world.condition("Running").get("reason") == "QuotaExceeded")

    assert "Secret mnist-ssh-" in world.condition("Running")["message"]


@pytest.mark.parametrize("sidecars", [0, 1])
async def test_a_pod_whose_containers_have_ended_is_left_to_its_kubelet(sidecars: int) -> None:
    """The kubelet sets phase Succeeded a second or more after it told of the container's end: the log stays."""
    world = World()
    world.kubelet.program = lambda pod, ran: None
    await world.until(lambda: world.phase == "Running")

    def end(pod: Manifest) -> None:
        pod["spec"]["containers"] += [{"name": "sidecar"}] * sidecars
        done = {"terminated": {"exitCode": 0, "reason": "Completed", "finishedAt": "2026-11-21T12:00:09Z"}}
        states = [("trainer", done), ("sidecar", {"running": {}})][: 1 + sidecars]
        pod["status"]["containerStatuses"] = [{"name": name, "state": state} for name, state in states]

    world.cluster.change(("Pod", "ml", "mnist-launcher-0"), end)
    world.view.deliver()
    await world.turn()
    world.view.deliver()
    await world.turn()

    assert world.phase == "Succeeded"
    deleted = {call.name for call in world.cluster.calls if call.verb == "delete"}
    assert ("mnist-launcher-0" in deleted) == bool(sidecars), (
        "a classic sidecar runs on until it is told to end"
    )


@pytest.mark.parametrize("policy", ["Running", "All", "None"])
@pytest.mark.parametrize("refused", ["mnist-worker-1", "mnist-launcher-0"])
async def test_a_pod_that_the_server_finds_invalid_fails_the_job_and_leaves_no_pod(
    refused: str, policy: str
) -> None:
    world = World(runPolicy={"cleanPodPolicy": policy})
    world.cluster.refuse = lambda made: (
        ApiError(422, "Invalid", f'Pod "{refused}" is invalid: spec.containers[0].image: Required value')
        if made["metadata"]["name"] == refused
        else None
    )

    await world.rest()

    assert world.phase == "Failed"
    assert world.condition("Failed")["reason"] == "ValidationFailed"
    assert world.status["failure"]["class"] == "ValidationFailed"
    assert world.status["failure"]["message"] == (f"Pod {refused}: spec.containers[0].image: Required value")
    assert world.pod_names() == []


@pytest.mark.bound(
    "operator",
    "Who may create jobs",
    "The status of a job, by the wrong values that it quotes",
    "Each message is cut; 16 KiB with megabytes of wrong values",
)
async def test_a_long_wrong_value_makes_no_long_status() -> None:
    """etcd takes objects of 1.5 MiB: a status that quotes a value of that size would never be stored."""
    wrong = {"spec": {"containers": "A" * 700_000, "volumes": ["B" * 700_000]}}
    world = World(replicaSpecs={"worker": {"template": wrong}})

    await world.rest()

    assert world.phase == "Failed"
    assert "spec.containers" in world.status["failure"]["message"]
    assert len(json.dumps(world.status)) < 16_384


@pytest.mark.bound(
    "operator",
    "Who may create jobs",
    "The time that the check of a job takes",
    "A job of more than 20,000 fields and entries fails unread",
)
async def test_a_job_of_too_many_fields_fails_without_a_look_at_them() -> None:
    variables = [{"name": f"A{number}"} for number in range(20_000)]
    containers = [{"name": "trainer", "env": variables}]
    world = World(replicaSpecs={"worker": {"template": {"spec": {"containers": containers}}}})

    await world.rest()

    assert world.status["failure"]["message"] == (
        "spec: the job has more than 20000 fields and list entries; "
        "move large data to a ConfigMap or to the bucket"
    )


async def test_an_invalid_job_fails_with_every_fault_and_makes_nothing() -> None:
    world = World(image="No Image", command=[])

    await world.rest()

    assert world.phase == "Failed"
    assert "spec.image" in world.status["failure"]["message"]
    assert "spec.command" in world.status["failure"]["message"]
    assert {name[0] for name in world.cluster.objects} == {"DistributedTrainingJob", "Event"}


async def test_a_job_without_even_the_resources_form_is_refused_and_does_not_stop_the_operator() -> None:
    world = World()
    world.cluster.change(JOB, lambda job: job.update(spec={"strategy": "Horovod", "gone": True}))

    await world.rest()

    assert world.phase == "Failed"
    assert world.status["failure"]["message"] == (
        "spec.image: required; spec.replicaSpecs: required; spec.gone: unknown field"
    )


@pytest.mark.parametrize("status", [0, 429, 500, 503])
async def test_an_api_server_in_trouble_only_delays(status: int) -> None:
    world = World()
    dice = random.Random(status)
    world.cluster.refuse = lambda made: ApiError(status, "Trouble", "later") if dice.random() < 0.5 else None

    await world.rest()

    assert world.phase == "Succeeded"
    assert len(world.cluster.created_pods) == 3


@pytest.mark.parametrize("done", [False, True], ids=["refused", "answer lost"])
async def test_any_single_request_may_fail_and_is_made_up_for(
    done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one of several that belong together: nothing is repeated that was done, and nothing left out."""

    async def life(number: int | None) -> World:
        world = World()
        world.kubelet.program = fails(1)
        carry_out = world.cluster._carry_out

        def carried_out(verb: str, manifest: Manifest, do: Callable[[], Any]) -> Any:
            trouble = len(world.cluster.calls) == number
            result = carry_out(verb, manifest, do if done or not trouble else lambda: None)
            if trouble:
                raise ApiError(500 if done else 429, "Trouble", "try again")
            return result

        monkeypatch.setattr(world.cluster, "_carry_out", carried_out)
        await world.rest()
        return world

    undisturbed = await life(None)
    for number in range(len(undisturbed.cluster.calls)):
        world = await life(number)
        assert world.phase == "Succeeded", number
        assert world.status["restarts"] == {"application": 1, "infrastructure": 0}, number
        assert sorted(world.cluster.created_pods) == sorted(undisturbed.cluster.created_pods), number
        assert world.pod_names() == ["mnist-launcher-0"], number
        # What a status that was not stored had told may be over when the next one is.
        if done or undisturbed.cluster.calls[number].kind != JOB[0]:
            assert world.events() == undisturbed.events(), number
        # The one that failed, and those that a repeated pass asks once more.
        assert len(world.cluster.calls) <= len(undisturbed.cluster.calls) + 3, number


def no_events(status: int, reason: str = "Trouble") -> Callable[[Manifest], ApiError | None]:
    return lambda made: ApiError(status, reason, "no") if made["kind"] == "Event" else None


@pytest.mark.parametrize("status", [0, 429, 500])
async def test_events_that_can_not_be_told_now_hold_nothing_up_and_are_told_later_in_order(
    status: int,
) -> None:
    world, undisturbed = World(), World()
    await undisturbed.rest()
    world.cluster.refuse = no_events(status)

    await world.until(lambda: world.phase == "Succeeded")
    took = world.cluster.now - undisturbed.cluster.now
    for _ in range(600):
        await world.step()
    tried = [call for call in world.cluster.calls if call.kind == "Event"]
    world.cluster.refuse = lambda made: None
    await world.rest()

    assert took.total_seconds() <= 0
    # 1, 2, 4 … 300 s: one event for all.
    assert len(tried) <= 12
    assert world.events() == undisturbed.events() == ["JobRunning", "JobSucceeded"]
    told = world.cluster.of_kind("Event")
    assert [e["firstTimestamp"] for e in told] == [
        e["firstTimestamp"] for e in undisturbed.cluster.of_kind("Event")
    ], "an event carries the time at which it happened"


async def test_an_event_that_is_refused_for_good_is_not_tried_again() -> None:
    world = World()
    world.cluster.refuse = no_events(403, "Forbidden")

    await world.rest()

    assert world.phase == "Succeeded"
    assert len([call for call in world.cluster.calls if call.kind == "Event"]) == 2


async def test_an_end_that_was_stored_without_an_answer_is_told_and_counted_once() -> None:
    world = World()
    await world.until(lambda: world.phase == "Running")
    whose = {"job_namespace": "ml", "strategy": "Horovod"}
    ended = ("dtj_jobs_finished_total", whose | {"result": "succeeded", "reason": "JobSucceeded"})
    before = METRICS.registry.get_sample_value(*ended) or 0.0
    await world.until(lambda: world.cluster.pod("mnist-launcher-0")["status"]["phase"] == "Succeeded")

    world.cluster.die_at, world.cluster.die_when = 1, "after"
    world.cluster.fault = ApiError(0, "Unreachable", "no answer in time")
    world.view.deliver()
    await world.turn()
    world.cluster.fault, world.cluster.die_at = None, None
    assert (world.phase, world.events()) == ("Succeeded", ["JobRunning"])
    await world.rest()

    assert world.events() == ["JobRunning", "JobSucceeded"]
    assert METRICS.registry.get_sample_value(*ended) == before + 1


async def test_a_namespace_without_its_service_account_yet_only_delays() -> None:
    world = World()
    times = itertools.chain([True] * 3, itertools.repeat(False))
    world.cluster.refuse = lambda made: (
        ApiError(
            403,
            "Forbidden",
            'error looking up service account ml/default: serviceaccount "default" not found',
        )
        if made["kind"] == "Pod" and next(times)
        else None
    )

    await world.rest()

    assert world.phase == "Succeeded"
    assert "Forbidden" not in world.events()


async def test_a_service_account_that_does_not_exist_is_told() -> None:
    world = World()
    world.cluster.refuse = lambda made: (
        ApiError(
            403, "Forbidden", 'error looking up service account ml/tpyo: serviceaccount "tpyo" not found'
        )
        if made["kind"] == "Pod"
        else None
    )

    await world.until(lambda: world.condition("Running").get("reason") == "Forbidden")

    assert 'serviceaccount "tpyo" not found' in world.condition("Running")["message"]
    assert world.phase == "Pending"


# --- jobs that go, and come again -------------------------------------------------------------------


async def test_a_job_deleted_mid_run_leaves_nothing_and_nothing_more_is_made() -> None:
    world = World()
    world.kubelet.program = endless
    await world.until(lambda: world.phase == "Running")

    world.cluster.remove(JOB)
    world.cluster.calls.clear()
    for _ in range(10):
        await world.step()

    assert {name[0] for name in world.cluster.objects} == {"Event"}
    assert world.cluster.calls == []
    assert world.progress.followed == {}


async def test_a_job_that_waits_for_its_deletion_gets_nothing_new() -> None:
    world = World()
    world.cluster.change(JOB, lambda job: job["metadata"].update(deletionTimestamp="2026-11-21T12:00:00Z"))

    await world.step()

    assert world.cluster.calls == []


async def test_a_new_job_of_an_old_name_waits_for_the_old_pods_and_takes_nothing_of_theirs() -> None:
    world = World()
    world.kubelet.program, world.kubelet.end_steps = endless, 10
    await world.until(lambda: world.phase == "Running")
    old = world.cluster.job()["metadata"]["uid"]
    world.progress.reports[KEY] = ProgressReport(progress=ProgressStatus(step=70))
    world.cluster.remove(JOB)
    world.apply(manifest())
    world.kubelet.program = fails(0)

    await world.step()
    assert "progress" not in world.status
    await world.until(lambda: world.condition("Running").get("reason") == "NameTaken")
    assert "earlier job of this name" in world.condition("Running")["message"]
    await world.rest()

    assert world.phase == "Succeeded"
    assert world.status["attempt"] == 1
    assert world.status["restarts"] == {"application": 0, "infrastructure": 0}
    owners = {pod["metadata"]["ownerReferences"][0]["uid"] for pod in world.cluster.of_kind("Pod")}
    assert owners == {world.cluster.job()["metadata"]["uid"]}
    assert old not in owners


async def test_a_changed_spec_holds_from_the_next_attempt_on() -> None:
    world = World()
    world.kubelet.program = endless
    await world.until(lambda: world.phase == "Running")
    before = world.cluster.objects["ConfigMap", "ml", "mnist-config"]["data"]

    world.cluster.change(JOB, lambda job: job["spec"].update(args=["--lr=2"]))
    for _ in range(3):
        await world.step()
    assert world.cluster.objects["ConfigMap", "ml", "mnist-config"]["data"] == before
    assert world.phase == "Running"

    world.cluster.end_pod(world.cluster.pod("mnist-worker-0"))
    world.kubelet.program = fails(0)
    await world.rest()

    assert world.cluster.objects["ConfigMap", "ml", "mnist-config"]["data"] != before
    assert "--lr=2" in world.cluster.pod("mnist-launcher-0")["spec"]["containers"][0]["command"]


async def test_workers_that_a_running_job_is_to_have_besides_come_with_its_next_attempt() -> None:
    world = World()
    world.kubelet.program = endless
    await world.until(lambda: world.phase == "Running")

    world.cluster.change(JOB, lambda job: job["spec"]["replicaSpecs"]["worker"].update(replicas=3))
    await world.rest()
    assert world.pod_names() == EVERYTHING
    assert world.condition("Running")["status"] == "True"
    assert world.status["restarts"] == {"application": 0, "infrastructure": 0}
    world.cluster.end_pod(world.cluster.pod("mnist-worker-1"))
    await world.rest()

    assert world.pod_names() == [*EVERYTHING, "mnist-worker-2"]
    assert world.status["failure"]["pod"] == "mnist-worker-1"
    assert world.status["restarts"] == {"application": 0, "infrastructure": 1}


# --- progress ---------------------------------------------------------------------------------------


async def test_progress_is_asked_of_rank_0_while_the_job_runs_and_kept_at_its_end() -> None:
    world = World(artifacts={"uri": "s3://bucket/jobs"})
    await world.until(lambda: world.phase == "Running")
    assert world.progress.followed == {KEY: {"mnist-worker-0": "10.0.0.7"}}

    world.progress.reports[KEY] = ProgressReport(
        progress=ProgressStatus(step=5, total_steps=10, loss=0.5),
        artifacts=ArtifactsStatus(tensorboard="s3://bucket/jobs/x/tensorboard/"),
    )
    await world.rest()

    assert world.status["progress"] == {"step": 5, "totalSteps": 10, "loss": 0.5}
    assert world.status["artifacts"]["tensorboard"] == "s3://bucket/jobs/x/tensorboard/"
    assert world.status["artifacts"]["uri"].startswith("s3://bucket/jobs/ml/mnist-")
    assert world.progress.followed == {}


async def test_a_loss_that_is_no_number_does_not_keep_the_status_from_being_written() -> None:
    world = World()
    world.kubelet.program = endless
    await world.until(lambda: world.phase == "Running")

    report, _ = read_report('{"progress": {"step": 9, "loss": NaN}}')
    assert report is not None
    world.progress.reports[KEY] = report
    await world.rest()

    assert world.status["progress"] == {"step": 9}


async def test_each_end_and_each_new_attempt_is_counted_once() -> None:
    world = World()
    metrics = world.reconciler._metrics

    def counted() -> list[float]:
        sample = metrics.registry.get_sample_value
        whose = {"job_namespace": "ml", "strategy": "Horovod"}
        end, causes = {"result": "succeeded", "reason": "JobSucceeded"}, ("application", "infrastructure")
        return [
            sample("dtj_jobs_finished_total", whose | end) or 0,
            *(sample("dtj_job_restarts_total", whose | {"cause": cause}) or 0 for cause in causes),
        ]

    before = counted()
    world.kubelet.program = endless
    await world.until(lambda: world.phase == "Running")
    world.cluster.end_pod(world.cluster.pod("mnist-worker-1"))
    world.kubelet.program = fails(2)
    await world.rest()
    world.start_operator()
    await world.rest()

    assert world.status["restarts"] == {"application": 1, "infrastructure": 1}
    assert [now - then for now, then in zip(counted(), before, strict=True)] == [1, 1, 1]


async def test_the_ssh_key_is_one_pair_that_opens_the_workers() -> None:
    world = World()
    await world.rest()

    (secret,) = world.cluster.of_kind("Secret")
    data = secret["stringData"]
    assert data["ssh_key"].startswith("-----BEGIN OPENSSH PRIVATE KEY-----")
    assert data["authorized_keys"].startswith("ssh-ed25519 ")
    assert data["known_hosts"] == f"* {data['authorized_keys']}"


def test_the_fake_api_server_refuses_what_a_real_one_refuses() -> None:
    cluster = FakeCluster()
    cluster.add(manifest())

    with pytest.raises(ApiError, match="409 AlreadyExists"):
        cluster.add(manifest())
    assert cluster.job()["spec"]["runPolicy"]["backoffLimit"] == 3


async def test_the_fake_api_server_checks_the_version_and_the_schema_of_a_status() -> None:
    cluster = FakeCluster()
    version = cluster.add(manifest())["metadata"]["resourceVersion"]

    with pytest.raises(ApiError, match="409 Conflict"):
        await cluster.patch_status("ml", "mnist", "0", {"phase": "Running"})
    with pytest.raises(ApiError, match="422 Invalid"):
        await cluster.patch_status("ml", "mnist", version, {"phase": "Waiting"})
    with pytest.raises(ValueError, match="not JSON compliant"):
        await cluster.patch_status("ml", "mnist", version, {"progress": {"loss": float("nan")}})


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            ApiError(500, "InternalError", 'failed calling webhook "pods.example.com"'),
            "failed calling webhook",
        ),
        (ApiError(413, "RequestEntityTooLarge", "limit is 3145728"), "limit is 3145728"),
    ],
)
async def test_an_object_that_the_server_can_not_make_is_told_while_that_repeats(
    error: ApiError, told: str
) -> None:
    world = World()
    world.cluster.refuse = lambda made: error if made["kind"] == "Pod" else None

    await world.until(lambda: world.condition("Running").get("reason") == "ApiServerError")

    message = world.condition("Running")["message"]
    assert message.startswith("Pod mnist-worker-0 can't be made: the API server answers")
    assert told in message
    assert world.events() == ["ApiServerError"]

    world.cluster.refuse = lambda made: None
    await world.rest()
    assert world.phase == "Succeeded"


async def test_an_error_that_comes_once_is_not_told() -> None:
    world = World()
    answers = iter([ApiError(500, "InternalError", "etcd has no leader")])
    world.cluster.refuse = lambda made: next(answers, None) if made["kind"] == "Pod" else None

    await world.rest()

    assert world.phase == "Succeeded"
    assert "ApiServerError" not in world.events()


async def test_nobody_plants_a_key_before_a_job_makes_its_own() -> None:
    """Who may make Secrets, and no pods, could log in to the ranks by a Secret whose name can be guessed."""
    worlds = [World(), World()]
    for world in worlds:
        await world.rest()

    names = [world.status["sshSecret"] for world in worlds]
    assert names[0] != names[1]
    assert all(re.fullmatch(r"mnist-ssh-[0-9a-f]{8}", name) for name in names)


async def test_a_secret_that_is_there_already_is_never_taken() -> None:
    world = World()
    planted: list[str] = []

    def plant(call: Call, _: Manifest) -> None:
        if call.kind == "Secret" and call.verb == "create" and not planted:
            planted.append(call.name)
            world.cluster.add({"kind": "Secret", "metadata": {"name": call.name, "namespace": "ml"}})

    world.cluster.meanwhile = plant
    await world.rest()

    assert world.phase == "Succeeded"
    assert world.status["sshSecret"] not in planted


async def test_a_pod_with_a_jobs_labels_that_it_did_not_make_is_none_of_it() -> None:
    """Whoever may make pods may set any label."""
    world = World()
    world.kubelet.program = endless
    await world.until(lambda: world.phase == "Running")
    worker = copy.deepcopy(world.cluster.pod("mnist-worker-1"))
    uid = worker["metadata"]["ownerReferences"][0]["uid"]
    strange = [None, {"kind": "ReplicaSet", "uid": "r"}, {"kind": "Job", "uid": "j"}]
    for number, owner in enumerate(strange):
        metadata = {
            **worker["metadata"],
            "name": f"stranger-{number}",
            "uid": f"stranger-{number}",
            "ownerReferences": [{"name": "x", "controller": True} | owner] if owner else [],
        }
        metadata["labels"] = metadata["labels"] | {"dtj.dev/uid": uid}
        world.cluster.add(worker | {"metadata": metadata})
        name = ("Pod", "ml", f"stranger-{number}")
        world.cluster.change(name, lambda pod: pod.update(status={"phase": "Failed", "reason": "Evicted"}))

    for _ in range(5):
        await world.step()

    assert (world.phase, world.status["attempt"]) == ("Running", 1)
    assert [call for call in world.cluster.calls if call.verb == "delete"] == []


@pytest.mark.parametrize("kind", ["StatefulSet", "Job", "DistributedTrainingJob"])
async def test_pods_of_others_with_the_labels_are_never_force_deleted(kind: str) -> None:
    world = World()
    labels = {"app.kubernetes.io/managed-by": "dtj-operator", "dtj.dev/job": "mnist", "dtj.dev/uid": "other"}
    # Another API group may have a kind of the same name.
    owner = {"apiVersion": "example.com/v1", "kind": kind, "name": "db", "uid": "db", "controller": True}
    metadata = {"name": "db-0", "namespace": "ml", "labels": labels, "ownerReferences": [owner]}
    spec = {"containers": [{"name": "db"}], "nodeName": "n"}
    world.cluster.add({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    world.cluster.end_pod(world.cluster.pod("db-0"))
    world.kubelet.lost.add(world.cluster.pod("db-0")["metadata"]["uid"])

    await world.until(lambda: world.phase == "Succeeded")
    world.cluster.now += timedelta(hours=1)
    await world.step()

    assert "db-0" in world.pod_names()
    assert "db-0" not in {call.name for call in world.cluster.calls}
