"""The tables docs/threads*.md: every named test exists; also tests of entries that have no other place.

* the tables of docs/threads*.md and the tests that they name
* Services, sidecars, webhooks and rights of the operator
* watches that fall silent, and timeouts
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import aiohttp
import kopf
import pytest
import yaml
from aiohttp import web
from kubernetes.aio import client

from dtj.api.identity import API_VERSION, KIND, LABEL_JOB, LABEL_MANAGED_BY, MANAGER
from dtj.api.job import Manifest
from dtj.cluster import api
from dtj.kopf_settings import configure
from dtj.plan.job import plan_job
from dtj.reconcile.informers import Informers
from tests.unit.support.http_cluster import Answer, http_cluster
from tests.unit.support.jobs import job
from tests.unit.support.pods import running

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/threads.md").read_text()
TORCH_PAGE = (ROOT / "docs/threads-torch.md").read_text()
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE + TORCH_PAGE)
MANIFESTS = [
    manifest
    for file in sorted((ROOT / "manifests").rglob("*.yaml"))
    for manifest in yaml.safe_load_all(file.read_text())
    if "kind" in manifest  # the values of an overlay are none
]


def rows(page: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in page.splitlines()
        if line.startswith("| [")
    ]


@pytest.mark.parametrize(("path", "name"), sorted(set(NAMED)))
def test_every_test_that_the_page_names_exists(path: str, name: str) -> None:
    assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE)


def test_every_thread_of_the_table_is_linked_and_held_by_a_test() -> None:
    assert len(rows(PAGE)) > 40
    for threads, *_, held in rows(PAGE + TORCH_PAGE):
        for name, address in re.findall(r"\[([^\]]+)\]\(([^)]+)\)", threads):
            repository, number = name.split("#")
            assert re.fullmatch(rf"https://github\.com/[\w-]+/{repository}/issues/{number}", address)
        assert held
        assert all(re.fullmatch(r"`tests/[\w/]+\.py::test_\w+`", one) for one in held.split("<br>")), held


def test_each_trap_of_the_dynamic_rendezvous_has_a_row() -> None:
    _, _, traps = TORCH_PAGE.partition("## Twelve traps")
    traps, _, trackers = traps.partition("\n## ")

    assert len(rows(traps)) == 12
    assert len(rows(trackers)) >= 6


def test_no_thread_is_both_held_and_not_held() -> None:
    table, rest = PAGE.split("## Not held")
    link = r"\[([\w-]+#\d+)\]"

    assert set(re.findall(link, table + TORCH_PAGE)) & set(re.findall(link, rest)) == set()


# --- threads -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["Horovod", "ParameterServer", "TorchDistributed"])
def test_a_job_has_one_service_however_many_replicas(strategy: str) -> None:
    roles: Manifest = {"worker": {"replicas": 50}} | ({"ps": {}} if strategy == "ParameterServer" else {})
    plan = plan_job(job(strategy=strategy, replicaSpecs=roles))

    subdomains = {pod["spec"]["subdomain"] for pod in plan.pods}
    assert subdomains == {plan.service["metadata"]["name"]}
    assert plan.service["spec"]["clusterIP"] == "None"


@pytest.mark.parametrize("strategy", ["Horovod", "ParameterServer", "TorchDistributed"])
def test_nothing_of_dtj_has_to_run_before_a_pods_sidecars(strategy: str) -> None:
    """A mesh's proxy starts after all init containers: one that needs the network waits for ever."""
    roles: Manifest = {"worker": {"replicas": 2}} | (
        {"ps": {}, "evaluator": {}} if strategy == "ParameterServer" else {}
    )
    for pod in plan_job(job(strategy=strategy, replicaSpecs=roles)).pods:
        assert not pod["spec"].get("initContainers")
        assert [container["name"] for container in pod["spec"]["containers"]] == ["trainer"]


def test_nothing_of_dtj_stands_between_a_user_and_the_api_server() -> None:
    kinds = {manifest["kind"] for manifest in MANIFESTS}

    assert "CustomResourceDefinition" in kinds
    assert kinds.isdisjoint(
        {"ValidatingWebhookConfiguration", "MutatingWebhookConfiguration", "APIService", "Certificate"}
    )
    crd = next(manifest for manifest in MANIFESTS if manifest["kind"] == "CustomResourceDefinition")
    assert crd["spec"].get("conversion", {"strategy": "None"})["strategy"] == "None"


def test_the_operators_role_names_each_right() -> None:
    roles = [
        manifest
        for manifest in MANIFESTS
        if manifest["kind"] in ("Role", "ClusterRole")
        and manifest["metadata"]["name"].startswith("dtj-operator")
    ]
    assert len(roles) >= 2
    for rule in (rule for role in roles for rule in role["rules"]):
        for words in rule.values():
            assert "*" not in words
        if "secrets" in rule["resources"]:
            assert rule["verbs"] == ["create"]
        assert {"pods/exec", "pods/log", "nodes"}.isdisjoint(rule["resources"])


class DeafLine:
    """The first watch of pods is taken, and nothing ever comes on it: a router has forgotten the connection."""

    def __init__(self) -> None:
        self.deaf = False

    async def __call__(self, request: web.Request, answer: Answer) -> web.StreamResponse:
        if request.query.get("watch") and request.match_info["plural"] == "pods" and not self.deaf:
            response = web.StreamResponse()
            await response.prepare(request)
            self.deaf = True
            await asyncio.Event().wait()
        return await answer()


def test_no_request_and_no_watch_is_waited_for_longer_than_a_healthy_one_takes() -> None:
    settings = kopf.OperatorSettings()
    configure(settings)
    watching, networking = settings.watching, settings.networking

    # Longer than the minute between bookmarks, else healthy watches were cut.
    assert (watching.connect_timeout, watching.inactivity_timeout) == (10, 70)
    assert (networking.connect_timeout, networking.request_timeout) == (10, 60)
    # The API server takes whole seconds. It ends the watch first: with nothing lost, and no error.
    assert (watching.server_timeout, watching.client_timeout) == (600, 630)
    assert isinstance(watching.server_timeout, int)
    of_children = api._WATCH_TIMEOUT
    assert (of_children.sock_connect, of_children.sock_read, of_children.total) == (10, 70, 630)


async def test_a_watch_of_jobs_that_falls_silent_is_opened_anew() -> None:
    settings = kopf.OperatorSettings()
    configure(settings)
    settings.watching.inactivity_timeout = 0.3
    registry, seen, stop = kopf.OperatorRegistry(), asyncio.Event(), asyncio.Event()

    async def login(**_: Any) -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(server=server.url)

    async def event(**_: Any) -> None:
        seen.set()

    kopf.on.login(registry=registry)(login)
    kopf.on.event("", "v1", "pods", registry=registry)(event)
    async with asyncio.timeout(360), http_cluster(moves=False) as server:
        line = server.fault = DeafLine()
        operator = asyncio.create_task(
            kopf.operator(
                registry=registry, settings=settings, standalone=True, clusterwide=True, stop_flag=stop
            )
        )
        while not line.deaf:
            await asyncio.sleep(0.01)
        server.cluster.put({"kind": "Pod", **running("mnist-worker-0")})

        await seen.wait()
        stop.set()
        await operator


async def test_a_watch_of_their_pods_that_falls_silent_is_opened_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(api, "_WATCH_TIMEOUT", aiohttp.ClientTimeout(sock_read=0.3))
    seen = asyncio.Event()
    async with asyncio.timeout(360), http_cluster(moves=False) as server:
        line = server.fault = DeafLine()
        cluster = api.KubernetesApi(client.ApiClient(client.Configuration(host=server.url)))
        informers = Informers(cluster, [], *3 * [lambda key: seen.set()])
        informers.start()
        while not line.deaf:
            await asyncio.sleep(0.01)
        pod = running("mnist-worker-0")
        pod["metadata"]["labels"] |= {LABEL_JOB: "mnist", LABEL_MANAGED_BY: MANAGER}
        job = {"apiVersion": API_VERSION, "kind": KIND, "name": "mnist", "uid": "1", "controller": True}
        pod["metadata"]["ownerReferences"] = [job]
        server.cluster.put({"kind": "Pod", **pod})

        await seen.wait()
        assert [pod.view.name for pod in informers.pods.of(("ml", "mnist"))] == ["mnist-worker-0"]
        await informers.stop()
        await cluster.close()
