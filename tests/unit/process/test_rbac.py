"""The roles of the operator: every right is necessary, and no right is missing.

* every scenario of the operator's life with exactly its rights
* every right of docs/security.md taken away
* all namespaces, two namespaces, the webhook
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from dtj.api.identity import KIND
from dtj.api.job import Manifest
from dtj.api.mpijob import MPIJOB_KIND
from dtj.api.names import pod_name
from tests.unit.support.authorizer import Authorizer, Right, rights_of
from tests.unit.support.http_cluster import HttpCluster, http_cluster
from tests.unit.support.jobs import manifest
from tests.unit.support.kubelet import Ending, succeed_after_two_steps
from tests.unit.support.operator_process import operating
from tests.unit.support.waiting import until

ROOT = Path(__file__).parents[3]
PATIENCE = 120.0
ELECT = ("--leader-elect", "--lease-namespace=dtj-system", "--lease-duration=120",
         "--renew-deadline=90", "--retry-period=0.3", "--job-network-policies")  # fmt: skip
WEBHOOK = "dtj-operator-webhook"
Scenario = Callable[[HttpCluster, str], Awaitable[None]]
KINDS = {"Service": "{}", "ConfigMap": "{}-config", "Pod": "{}-worker-0"}


def webhook_flags() -> tuple[str, ...]:
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    return f"--webhook-port={port}", f"--webhook-name={WEBHOOK}", "--webhook-namespace=dtj-system"


def rights(account: str, *files: Path) -> frozenset[Right]:
    objects = [made for file in files for made in yaml.safe_load_all(file.read_text()) if made]
    return frozenset(rights_of(account, [made for made in objects if made["kind"] != "Kustomization"]))


GOLDEN = ROOT / "tests/chart/golden"
BY_DEFAULT = rights("dtj-system/dtj-operator", *(ROOT / "manifests/rbac").glob("*.yaml"))
WITH_WEBHOOK = rights("dtj-system/dtj-operator", GOLDEN / "webhook/expected.yaml")
TWO_NAMESPACES = rights("dtj-system/training", GOLDEN / "two-namespaces/expected.yaml")


# --- what the operator lives through, each with a job of its own -------------------------------------


async def it_leads(server: HttpCluster, namespace: str) -> None:
    """It takes the Lease and renews it."""

    def times() -> list[str]:
        return [lease["spec"]["renewTime"] for lease in server.cluster.of_kind("Lease")]

    await until(lambda: len(times()) == 1, PATIENCE)
    first = times()
    await until(lambda: times() != first, PATIENCE)


async def a_job_lives(server: HttpCluster, namespace: str) -> None:
    """It runs, ends, and goes when its time is over."""
    apply(server, namespace, "lives", runPolicy={"ttlSecondsAfterFinished": 0})
    await until(lambda: (KIND, namespace, "lives") not in server.cluster.objects, PATIENCE)
    assert "JobSucceeded" in [event["reason"] for event in server.cluster.of_kind("Event")]


async def a_pod_is_lost(server: HttpCluster, namespace: str) -> None:
    """Before all pods are made anew, the operator lists them: it may be only its own cache that misses one."""
    apply(server, namespace, "loses")
    await until(lambda: status(server, namespace, "loses").get("phase") == "Running", PATIENCE)
    server.cluster.remove(("Pod", namespace, pod_name("loses", "worker", 1)))
    await ends(server, namespace, "loses")
    assert status(server, namespace, "loses")["restarts"]["infrastructure"] == 1


def a_name_is_taken(kind: str) -> Scenario:
    """A job finds another's object under the name of its own, and says so; then that goes."""

    async def scenario(server: HttpCluster, namespace: str) -> None:
        job = f"waits-for-{kind.lower()}"
        theirs = {"namespace": namespace, "name": KINDS[kind].format(job)}
        spec = {"containers": [{"name": "theirs"}]} if kind == "Pod" else {}
        server.cluster.add({"apiVersion": "v1", "kind": kind, "metadata": theirs, "spec": spec})
        apply(server, namespace, job)
        await until(lambda: "NameTaken" in str(status(server, namespace, job)), PATIENCE)
        server.cluster.remove((kind, namespace, theirs["name"]))
        await ends(server, namespace, job)

    return scenario


async def a_job_grows(server: HttpCluster, namespace: str) -> None:
    """It is suspended and resumed with more workers."""
    apply(server, namespace, "grows")
    await until(lambda: status(server, namespace, "grows").get("phase") == "Running", PATIENCE)
    change(server, namespace, "grows", runPolicy={"suspend": True})
    await until(lambda: status(server, namespace, "grows").get("phase") == "Suspended", PATIENCE)
    change(server, namespace, "grows", runPolicy={}, replicaSpecs={"worker": {"replicas": 3}})
    await ends(server, namespace, "grows")


async def gangs_are_placed(server: HttpCluster, namespace: str) -> None:
    """Jobs whose pods are members of a PodGroup; it goes when they have ended."""
    for gang in ("Coscheduling", "Volcano"):
        apply(server, namespace, gang.lower(), runPolicy={"schedulingPolicy": {"gang": gang}})
        await ends(server, namespace, gang.lower())
        group = ("PodGroup", namespace, gang.lower())
        await until(lambda group=group: group not in server.cluster.objects, PATIENCE)  # type: ignore[misc]


BOARD = {"artifacts": {"uri": "s3://training/jobs"}, "tensorboard": {"enabled": True}}


async def a_tensorboard_comes_and_goes(server: HttpCluster, namespace: str) -> None:
    """A job has one, and then it is turned off."""
    apply(server, namespace, "shows", **BOARD)
    name = "Deployment", namespace, "shows-tensorboard"
    await until(lambda: name in server.cluster.objects, PATIENCE)
    change(server, namespace, "shows", tensorboard={"enabled": False})
    await until(lambda: server.cluster.objects[name]["spec"]["replicas"] == 0, PATIENCE)


async def a_deployments_name_is_taken(server: HttpCluster, namespace: str) -> None:
    """A job trains without its TensorBoard, and has one when the name is free."""
    theirs = {"namespace": namespace, "name": "hides-tensorboard"}
    server.cluster.add({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": theirs, "spec": {}})
    apply(server, namespace, "hides", **BOARD)
    await until(lambda: "another object" in board(server, namespace, "hides").get("message", ""), PATIENCE)
    await ends(server, namespace, "hides")
    server.cluster.remove(("Deployment", namespace, theirs["name"]))
    await until(lambda: "message" not in board(server, namespace, "hides"), PATIENCE)


def board(server: HttpCluster, namespace: str, name: str) -> Manifest:
    return dict(status(server, namespace, name).get("tensorboard") or {})


async def a_job_is_handed_over(server: HttpCluster, namespace: str) -> None:
    """It runs as an MPIJob, which goes at its end."""
    policy = {"cleanPodPolicy": "All"}
    apply(server, namespace, "handed", horovod={"launcher": "MPIJob"}, runPolicy=policy)
    await ends(server, namespace, "handed")
    await until(lambda: (MPIJOB_KIND, namespace, "handed") not in server.cluster.objects, PATIENCE)


async def the_webhook_gets_its_certificate(server: HttpCluster, namespace: str) -> None:
    """The operator makes one, keeps it in the chart's Secret, and has the API server trust it."""
    there = {"metadata": {"name": WEBHOOK, "namespace": "dtj-system"}}
    server.cluster.add({"apiVersion": "v1", "kind": "Secret", **there})
    configuration = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": WEBHOOK, "namespace": ""},
        "webhooks": [{"clientConfig": {}}],
    }
    server.cluster.add(configuration)

    def trusted() -> bool:
        (made,) = server.cluster.of_kind("ValidatingWebhookConfiguration")
        return "caBundle" in made["webhooks"][0]["clientConfig"]

    await until(trusted, PATIENCE)


LIVES: dict[str, Scenario] = {
    "it leads": it_leads,
    "a job lives": a_job_lives,
    "a pod is lost": a_pod_is_lost,
    "a job grows": a_job_grows,
    "gangs are placed": gangs_are_placed,
    "a TensorBoard comes and goes": a_tensorboard_comes_and_goes,
    "a Deployment's name is taken": a_deployments_name_is_taken,
    "a job is handed over": a_job_is_handed_over,
    "a Service's name is taken": a_name_is_taken("Service"),
    "a ConfigMap's name is taken": a_name_is_taken("ConfigMap"),
    "a pod's name is taken": a_name_is_taken("Pod"),
}
SCENARIOS = LIVES | {"the webhook gets its certificate": the_webhook_gets_its_certificate}


def apply(server: HttpCluster, namespace: str, name: str, **spec: Any) -> None:
    server.cluster.add(manifest(**spec) | {"metadata": {"name": name, "namespace": namespace}})


def change(server: HttpCluster, namespace: str, name: str, **spec: Any) -> None:
    server.cluster.change((KIND, namespace, name), lambda job: job["spec"].update(spec))


def status(server: HttpCluster, namespace: str, name: str) -> Manifest:
    return dict(server.cluster.objects.get((KIND, namespace, name), {}).get("status") or {})


async def ends(server: HttpCluster, namespace: str, name: str) -> None:
    await until(lambda: status(server, namespace, name).get("phase") == "Succeeded", PATIENCE)


def program(pod: Manifest, ran: int) -> Ending | None:
    """What is to be disturbed in its first attempt does not end in it."""
    labels = pod["metadata"].get("labels", {})
    first = labels.get("dtj.dev/job") in ("loses", "grows") and labels["dtj.dev/attempt"] == "1"
    return None if first or not labels else succeed_after_two_steps(pod, ran)


# --- what it is allowed --------------------------------------------------------------------------------

TABLE = re.findall(
    r"^\| `([a-z/]+)` \| (\w+) \| [^|]+ \| ([^|]+) \|$", (ROOT / "docs/security.md").read_text(), re.MULTILINE
)
"""Resource, verb, and the scenario that shows it."""
FOR_A_JOB = [
    row for row in TABLE if row[1] not in ("list", "watch") and row[2] in LIVES and row[2] != "it leads"
]
"""The rows whose requests go to the namespace of one job."""


@pytest.mark.parametrize(
    ("allowed", "scenarios", "namespaces", "flags"),
    [
        (WITH_WEBHOOK, SCENARIOS, ["ml"], webhook_flags),
        (TWO_NAMESPACES, LIVES, ["team-a", "team-b"],
         lambda: ("--namespace=team-a", "--namespace=team-b", "--lease-name=training")),
    ],
    ids=["all namespaces, with the webhook", "two namespaces"],
)  # fmt: skip
async def test_it_asks_for_all_that_it_may_and_for_nothing_else(
    allowed: frozenset[Right],
    scenarios: Mapping[str, Scenario],
    namespaces: list[str],
    flags: Callable[[], tuple[str, ...]],
    tmp_path: Path,
) -> None:
    async with http_cluster() as server:
        server.kubelet.program = program
        authorizer = server.fault = Authorizer(allowed)
        async with operating(server.url, tmp_path, *ELECT, *flags()) as process:
            await asyncio.gather(
                *(scenario(server, place) for scenario in scenarios.values() for place in namespaces)
            )
        assert process.returncode == 0
    assert authorizer.forbidden == set()
    assert authorizer.unused() == set(), "nothing needs them"


def any_of(resource: str, verb: str) -> set[Right]:
    return {right for right in WITH_WEBHOOK if right.short == (resource, verb)}


@pytest.mark.parametrize(("resource", "verb", "scenario"), [row for row in TABLE if row not in FOR_A_JOB])
async def test_it_misses_what_it_is_not_allowed(
    resource: str, verb: str, scenario: str, tmp_path: Path
) -> None:
    async with http_cluster() as server:
        server.kubelet.program = program
        authorizer = server.fault = Authorizer(WITH_WEBHOOK - any_of(resource, verb))
        flags = webhook_flags() if "webhook" in scenario else ()
        async with operating(server.url, tmp_path, *ELECT, *flags):
            story = asyncio.ensure_future(SCENARIOS[scenario](server, "ml"))
            await until(lambda: bool(authorizer.forbidden) or story.done(), PATIENCE)
            story.cancel()
    assert {right.short for right in authorizer.forbidden} == {(resource, verb)}


async def test_it_misses_what_it_is_not_allowed_in_the_namespace_of_a_job(tmp_path: Path) -> None:
    places = {f"without-{number}": row for number, row in enumerate(FOR_A_JOB)}
    denied = {
        replace(right, namespace=place)
        for place, (resource, verb, _) in places.items()
        for right in any_of(resource, verb)
    }
    async with http_cluster() as server:
        server.kubelet.program = program
        authorizer = server.fault = Authorizer(WITH_WEBHOOK, frozenset(denied))
        async with operating(server.url, tmp_path, *ELECT):
            stories = {
                place: asyncio.ensure_future(SCENARIOS[scenario](server, place))
                for place, (_, _, scenario) in places.items()
            }

            def missed() -> set[tuple[str, tuple[str, str]]]:
                return {(right.namespace, right.short) for right in authorizer.forbidden}

            def over() -> bool:
                noticed = {place for place, _ in missed()}
                return all(place in noticed or story.done() for place, story in stories.items())

            await until(over, PATIENCE)
            for story in stories.values():
                story.cancel()
    assert missed() == {(place, (resource, verb)) for place, (resource, verb, _) in places.items()}


def test_every_right_is_in_the_table() -> None:
    rows = [(resource, verb) for resource, verb, _ in TABLE]
    assert len(rows) == len(set(rows))
    assert set(rows) == {right.short for right in WITH_WEBHOOK}
    assert {scenario for _, _, scenario in TABLE} <= SCENARIOS.keys()


def test_who_sees_one_namespace_has_the_same_rights_in_it() -> None:
    def within(rights: frozenset[Right], namespace: str) -> set[tuple[str, str]]:
        return {right.short for right in rights if right.namespace == namespace}

    assert within(TWO_NAMESPACES, "") == set()
    for namespace in ("team-a", "team-b"):
        assert within(TWO_NAMESPACES, namespace) == within(BY_DEFAULT, "")


@pytest.mark.parametrize(
    ("asked", "allowed"),
    [
        (Right("get", "leases", "coordination.k8s.io", "dtj-system", "dtj-operator"), True),
        (Right("get", "leases", "coordination.k8s.io", "dtj-system", "another"), False),
        (Right("get", "leases", "coordination.k8s.io", "ml", "dtj-operator"), False),
        (Right("list", "leases", "coordination.k8s.io", "dtj-system"), False),
        (Right("create", "secrets", "", "ml"), True),
        (Right("get", "secrets", "", "ml", "theirs"), False),
        (Right("list", "secrets", "", "ml"), False),
        (Right("get", "pods/log", "", "ml", "mnist-worker-0"), False),
        (Right("patch", "distributedtrainingjobs", "dtj.dev", "ml", "mnist"), False),
    ],
)
def test_what_the_roles_say_of_a_request(asked: Right, allowed: bool) -> None:
    assert any(right.allows(asked) for right in BY_DEFAULT) is allowed
