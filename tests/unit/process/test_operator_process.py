"""`dtj-operator` as a process: two processes take turns, and each ends on a signal.

* two replicas: takeover after a kill, a normal end, a freeze
* a leader that cannot renew its Lease, and a pass that blocks the event loop
* the CRD that is missing at first, or older than the operator
* one replica without a Lease
* jobs nested too deeply, clocks that differ, namespaces
* flags, tolerations and the role of the Lease
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import pytest
import yaml
from aiohttp import web

from dtj.api.crd import custom_resource_definition
from dtj.api.identity import KIND, PLURAL
from dtj.cluster.api import KubernetesApi
from dtj.cluster.interface import ApiError
from dtj.cluster.kubernetes_client import client
from dtj.local.machine import free_ports
from dtj.operator_flags import read_flags
from dtj.plan.pods import LOST_NODE_SECONDS
from dtj.process import _what_lacks
from dtj_trainer.contract.distribution import version
from tests import warm
from tests.unit.support.api_answers import refused
from tests.unit.support.http_cluster import Answer, HttpCluster, http_cluster
from tests.unit.support.jobs import stored
from tests.unit.support.kubeconfig import write_kubeconfig
from tests.unit.support.operator_process import PROGRAM

PATIENCE = 200.0
"""Seconds for what has to come, also on a busy machine."""
MANIFESTS = Path(__file__).parents[3] / "manifests"
LEASE = "dtj-operator"
ELECT = (
    *("--leader-elect", "--lease-namespace=dtj-system", "--retry-period=0.5"),
    # No leader loses its lease because the machine is busy.
    *("--lease-duration=600", "--renew-deadline=500"),
)


@dataclass
class Operator:
    """A process of the operator, with a token of its own."""

    token: str
    process: Process
    health_port: int
    metrics_port: int

    async def ask(self, port: int, path: str) -> str | None:
        """The answer, if it is 200."""
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://127.0.0.1:{port}{path}") as answer,
            ):
                return await answer.text() if answer.status == 200 else None
        except aiohttp.ClientError:
            return None

    async def healthy(self) -> str:
        async with asyncio.timeout(PATIENCE):
            while (text := await self.ask(self.health_port, "/healthz")) is None:
                assert self.process.returncode is None, (await self.process.communicate())[1].decode()
                await asyncio.sleep(0.05)
        return text

    async def metrics(self) -> str:
        return await self.ask(self.metrics_port, "/metrics") or ""

    async def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal; its exit code and what it said."""
        self.process.send_signal(warm.KILL if number == signal.SIGKILL else number)
        return await self.ended()

    async def ended(self) -> tuple[int, str]:
        async with asyncio.timeout(PATIENCE):
            _, said = await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode, said.decode()


Start = Callable[..., "asyncio.Future[Operator]"]


@pytest.fixture
async def api() -> AsyncIterator[HttpCluster]:
    async with http_cluster(moves=False) as server:
        yield server


@pytest.fixture
async def start(api: HttpCluster, tmp_path: Path) -> AsyncIterator[Callable[..., object]]:
    begun: list[Process] = []

    async def begin(token: str, *flags: str, program: str = PROGRAM, python: str = "") -> Operator:
        kubeconfig = tmp_path / token
        write_kubeconfig(kubeconfig, api.url, token)
        while True:
            ports = free_ports(2)
            process = await asyncio.create_subprocess_exec(
                python or warm.python("operator"), "-c", program, *flags,
                f"--health-port={ports[0]}", f"--metrics-port={ports[1]}",
                env=os.environ | {"KUBECONFIG": str(kubeconfig)}, stdout=PIPE, stderr=PIPE,
            )  # fmt: skip
            begun.append(process)
            operator = Operator(token, process, *ports)
            try:
                await operator.healthy()
            except AssertionError as error:
                # Another process bound the port after free_ports had returned it.
                if "address already in use" not in str(error).lower():
                    raise
            else:
                return operator

    yield begin
    for process in begun:
        if process.returncode is None:
            process.kill()
            _, said = await process.communicate()
            print(said.decode()[-6000:])  # Shown when the test fails.


async def until(there: Callable[[], object]) -> None:
    """Wait for a condition. This timeout shows which condition; the timeout of pytest shows the event loop."""
    async with asyncio.timeout(PATIENCE):
        while not there():
            await asyncio.sleep(0.02)


def apply(api: HttpCluster, name: str) -> None:
    api.cluster.put(stored(name, artifacts=None))


def pods(api: HttpCluster, job: str) -> dict[str, str]:
    """Their uids by name."""
    return {
        name: manifest["metadata"]["uid"]
        for (kind, _, name), manifest in api.cluster.objects.items()
        if kind == "Pod" and name.startswith(f"{job}-")
    }


def expire(api: HttpCluster) -> None:
    """Let the lease run out a second after the others see it. Its holder must not run any more."""
    lease = ("Lease", "dtj-system", LEASE)
    api.cluster.change(lease, lambda there: there["spec"].update(leaseDurationSeconds=1))


async def test_two_operators_take_turns_and_make_no_pod_twice(api: HttpCluster, start: Start) -> None:
    first = await start("first", *ELECT)
    await until(lambda: "first" in api.watchers)
    second = await start("second", *ELECT)
    apply(api, "one")
    await until(lambda: len(pods(api, "one")) == 2)
    before = pods(api, "one")

    assert "dtj_leader 1.0" in await first.metrics()
    assert '"queued"' in await first.healthy()
    async with asyncio.timeout(PATIENCE):
        # The job's pods may be made before the second operator has measured its event loop for the first time.
        while "dtj_event_loop_lag_seconds_count 0.0" in (waiting := await second.metrics()):
            await asyncio.sleep(0.02)
    assert "dtj_leader 0.0" in waiting
    assert "dtj_jobs" not in waiting, "zeros of one that does not look would be lies"
    assert "dtj_event_loop_lag_seconds_count" in waiting
    assert "dtj_event_loop_lag_seconds_count 0.0" not in waiting
    assert await second.healthy() == "{}"
    assert "second" not in api.watchers

    holder = api.holder(LEASE)
    await first.end(signal.SIGKILL)
    expire(api)
    apply(api, "two")
    await until(lambda: pods(api, "two"))

    assert api.holder(LEASE) != holder
    assert api.cluster.objects["Lease", "dtj-system", LEASE]["spec"]["leaseTransitions"] == 1
    assert "dtj_leader 1.0" in await second.metrics()
    assert pods(api, "one") == before
    assert not any(token == "second" and "/pods/one-" in path for token, path in api.posts)


async def test_a_leader_that_is_told_to_end_gives_the_lease_back(api: HttpCluster, start: Start) -> None:
    # The lease does not expire in the time of this test.
    first = await start("first", *ELECT)
    await until(lambda: "first" in api.watchers)
    second = await start("second", *ELECT)

    code, said = await first.end()

    assert (code, "Traceback" in said) == (0, False), said
    await until(lambda: "second" in api.watchers)
    assert (await second.end())[0] == 0


async def test_a_standby_that_is_told_to_end_does(api: HttpCluster, start: Start) -> None:
    await start("first", *ELECT)
    await until(lambda: api.holder(LEASE))
    second = await start("second", *ELECT)

    code, said = await second.end()

    assert (code, "Traceback" in said) == (0, False), said
    assert api.holder(LEASE)


async def test_a_leader_that_can_not_renew_ends_with_an_error(api: HttpCluster, start: Start) -> None:
    first = await start("first", *ELECT, "--renew-deadline=3")
    # A busy machine makes a leader's renewals late, which only brings the same end sooner.
    await until(lambda: "first" in api.watchers or first.process.returncode is not None)
    api.held["first"] = ""

    code, said = await first.ended()

    assert code == 1
    assert "dtj-operator: the lease was not renewed for 3 s" in said


async def test_a_leader_that_was_frozen_past_its_lease_writes_nothing_when_it_wakes(
    api: HttpCluster, start: Start
) -> None:
    first = await start("first", *ELECT, "--lease-duration=8", "--renew-deadline=7", python=sys.executable)
    await until(lambda: "first" in api.watchers)
    await start("second", *ELECT)
    # In the middle of a pass, which has made the ssh Secret and writes the status: the answer lies there when it
    # wakes, before it has looked at a clock. The lease is renewed until then.
    api.held["first"] = f"/{PLURAL}/one"
    apply(api, "one")
    await until(lambda: ("first", "PATCH") in api.waiting)
    first.process.send_signal(signal.SIGSTOP)
    before = [path for token, path in api.posts if token == "first"]
    api.held.clear()
    # The lease expires by itself: a second process that takes the lease sooner breaks the rule under test.
    await until(lambda: "second" in api.watchers and len(pods(api, "one")) == 2)

    code, _ = await first.end(signal.SIGCONT)

    assert code == 1
    assert [path for token, path in api.posts if token == "first"] == before
    assert not any("/pods/" in path for path in before)


async def test_a_pass_that_holds_the_event_loop_loses_no_lease_and_is_told(
    api: HttpCluster, start: Start, tmp_path: Path
) -> None:
    go_on = tmp_path / "go-on"
    held = f"""
import pathlib, signal, time
def a_long_pass(*_):
    while not pathlib.Path({str(go_on)!r}).exists():
        time.sleep(0.01)
signal.signal(signal.SIGUSR1, a_long_pass)  # Python runs it in the thread of the event loop.
"""
    first = await start("first", *ELECT, program=held + PROGRAM, python=sys.executable)
    await until(lambda: "first" in api.watchers)

    def version() -> int:
        return int(api.cluster.objects["Lease", "dtj-system", LEASE]["metadata"]["resourceVersion"])

    first.process.send_signal(signal.SIGUSR1)
    before = version()
    # Each 0.5 s after the one before.
    await until(lambda: version() >= before + 6)
    go_on.touch()
    await first.healthy()
    apply(api, "one")
    await until(lambda: pods(api, "one"))

    code, said = await first.end()
    assert code == 0, said
    told = [line for line in said.splitlines() if "the event loop has been blocked" in line]
    # On a busy machine the loop may also stand still elsewhere.
    assert [line for line in told if "a_long_pass (<string>:" in line], said


async def test_who_waits_for_the_resource_is_healthy_and_ends_when_told_to(
    api: HttpCluster, start: Start
) -> None:
    api.installed = False
    operator = await start("first", *ELECT)

    code, said = await operator.end()

    assert code == 0, said
    assert not api.holder(LEASE)


async def test_an_api_server_without_an_answer_is_not_taken_for_one_without_the_resource(
    api: HttpCluster,
) -> None:
    (port,) = free_ports(1)
    for url, told in (
        (f"http://127.0.0.1:{port}", "the API server does not answer: "),
        (api.url, "kubectl apply -k"),
    ):
        cluster = KubernetesApi(
            client.ApiClient(client.Configuration(host=url)), lambda *_: None, lambda: True
        )
        api.installed = False
        said = await _what_lacks(cluster)
        await cluster.close()
        assert said is not None
        assert told in said


async def test_one_that_runs_by_hand_needs_no_lease_and_tells_of_an_old_crd(
    api: HttpCluster, start: Start
) -> None:
    api.published = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    del api.published["properties"]["spec"]["properties"]["code"]
    progress = api.published["properties"]["status"]["properties"]["progress"]["properties"]
    del progress["stepsPerSecond"]
    api.held["first"] = "/openapi/"
    operator = await start("first")
    apply(api, "one")
    await until(lambda: pods(api, "one"))
    api.held.clear()
    assert operator.process.stderr is not None
    async with asyncio.timeout(PATIENCE):
        while (line := await operator.process.stderr.readline()) and b"the API server drops" not in line:
            pass
    assert b"drops spec.code, status.progress.stepsPerSecond: upgrade the CRD" in line

    assert "dtj_leader 1.0" in await operator.metrics()
    assert not api.cluster.of_kind("Lease")
    assert api.user_agents == {f"dtj-operator/{version()}"}, "of its requests and of kopf's"
    code, said = await operator.end(signal.SIGINT)
    assert (code, "Traceback" in said) == (0, False), said


async def test_a_job_that_is_nested_without_end_hides_no_other(api: HttpCluster, start: Start) -> None:
    for levels in (250, 950, 9_000):
        api.texts[f"nested-{levels}"] = '{"a":' * levels + "1" + "}" * levels

    def nested(name: str, levels: int) -> None:
        job = stored(name, artifacts=None)
        job["spec"]["replicaSpecs"]["worker"]["template"] = f"nested-{levels}"
        api.cluster.put(job)

    def failed(name: str) -> bool:
        status = api.cluster.objects[KIND, "ml", name].get("status", {})
        return status.get("phase") == "Failed" and "spec.replicaSpecs.worker.template: nested" in str(status)

    apply(api, "listed")
    nested("listed-deep", 9_000)
    nested("listed-less-deep", 950)
    operator = await start("first")
    await until(lambda: pods(api, "listed") and failed("listed-deep") and failed("listed-less-deep"))
    nested("watched-deep", 9_000)
    nested("watched-less-deep", 950)
    nested("watched-even-less-deep", 250)
    apply(api, "watched")
    await until(lambda: pods(api, "watched"))
    for depth in ("deep", "less-deep", "even-less-deep"):
        await until(lambda depth=depth: failed(f"watched-{depth}"))  # type: ignore[misc]

    code, said = await operator.end()
    assert (code, "Traceback" in said) == (0, False), said


async def test_a_large_job_waits_until_its_namespace_has_room(api: HttpCluster, start: Start) -> None:
    def large(name: str, namespace: str) -> None:
        job = stored(name, artifacts=None, args=["x" * 30_000] * 12)
        job["metadata"] |= {"namespace": namespace, "uid": f"uid-{namespace}-{name}"}
        api.cluster.put(job)

    def reason(name: str) -> str:
        conditions = api.cluster.objects[KIND, "evil", name].get("status", {}).get("conditions", [])
        return next((str(each["reason"]) for each in conditions if each["type"] == "Running"), "")

    def made(namespace: str, name: str) -> bool:
        return ("Pod", namespace, f"{name}-worker-0") in api.cluster.objects

    for number in range(5):
        large(f"evil-{number}", "evil")
    large("good", "ml")
    await start("first", "--namespace-memory=1")
    await until(lambda: made("ml", "good") and made("evil", "evil-0"))
    await until(lambda: [reason(f"evil-{number}") for number in range(1, 5)] == ["NamespaceFull"] * 4)
    assert not any(made("evil", f"evil-{number}") for number in range(1, 5))

    api.cluster.remove((KIND, "evil", "evil-0"))

    await until(lambda: made("evil", "evil-1"))
    assert reason("evil-2") == "NamespaceFull"


@pytest.mark.parametrize("hours", [-5, 5])
async def test_times_are_those_of_the_api_server(api: HttpCluster, start: Start, hours: int) -> None:
    api.ahead = timedelta(hours=hours)
    begin = datetime.now(UTC).replace(microsecond=0)
    await start("first")
    apply(api, "one")
    await until(lambda: api.cluster.objects[KIND, "ml", "one"].get("status", {}).get("startTime"))

    written = datetime.fromisoformat(api.cluster.objects[KIND, "ml", "one"]["status"]["startTime"])
    slack = timedelta(seconds=2)  # a Date has whole seconds
    assert begin + api.ahead - slack <= written <= datetime.now(UTC) + api.ahead + slack


async def test_one_of_two_namespaces_asks_nothing_of_the_rest_of_the_cluster(
    api: HttpCluster, start: Start
) -> None:
    await start("first", "--namespace=ml", "--namespace=vision")
    for namespace in ("ml", "elsewhere", "vision"):
        job = stored("one", artifacts=None)
        job["metadata"] = job["metadata"] | {"namespace": namespace, "uid": f"uid-{namespace}"}
        api.cluster.put(job)
    await until(lambda: {"ml", "vision"} <= {name[1] for name in api.cluster.objects if name[0] == "Pod"})

    assert not [name for name in api.cluster.objects if name[1] == "elsewhere" and name[0] != KIND]
    assert {path.split("/namespaces/")[-1].split("/")[0] for path in api.listed} == {"ml", "vision"}


QUICK = "from dtj.reconcile import informer; informer._LONGEST_PAUSE_SECONDS = 0.2; " + PROGRAM
"""The operator, which does not wait long before it asks again."""


async def test_a_namespace_that_is_gone_holds_up_no_other_and_is_served_when_it_is_back(
    api: HttpCluster, start: Start
) -> None:
    there = False

    async def forbid(request: web.Request, answer: Answer) -> web.StreamResponse:
        if there or "/namespaces/gone/" not in request.path:
            return await answer()
        return refused(403, "Forbidden", f"{request.match_info['plural']} is forbidden")

    def put(namespace: str, name: str) -> None:
        job = stored(name, artifacts=None)
        job["metadata"] = job["metadata"] | {"namespace": namespace, "uid": f"uid-{namespace}-{name}"}
        api.cluster.put(job)

    def served(namespace: str, name: str) -> bool:
        return any(kind == "Pod" and at == namespace and pod.startswith(f"{name}-")
                   for kind, at, pod in api.cluster.objects)  # fmt: skip

    api.fault = forbid
    operator = await start("first", "--namespace=ml", "--namespace=gone", program=QUICK)
    for namespace in ("ml", "gone"):
        put(namespace, "one")
    await until(lambda: served("ml", "one"))
    health = json.loads(await operator.healthy())
    assert list(health["refused"]) == ["gone"]
    assert "403 Forbidden: " in health["refused"]["gone"]
    assert "dtj_namespaces_refused 1.0" in await operator.metrics()
    assert not served("gone", "one")

    there = True
    await until(lambda: served("gone", "one"))
    async with asyncio.timeout(PATIENCE):
        while "dtj_namespaces_refused 0.0" not in await operator.metrics():
            await asyncio.sleep(0.02)
    assert "refused" not in json.loads(await operator.healthy())

    # It goes again while the operator runs, with its watches.
    there = False
    api.watches.cut()
    async with asyncio.timeout(PATIENCE):
        while "dtj_namespaces_refused 1.0" not in await operator.metrics():
            await asyncio.sleep(0.02)
    for namespace in ("ml", "gone"):
        put(namespace, "two")
    await until(lambda: served("ml", "two"))
    there = True
    await until(lambda: served("gone", "two"))

    code, said = await operator.end()
    assert (code, "Traceback" in said) == (0, False), said
    told = said.count("the cache of Pod in namespace gone may be out of date: 403")
    assert told <= 4, "once each time, for the jobs' pods and for record pods"


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--leader-elect"], "--leader-elect outside a cluster needs --lease-namespace"),
        (["--progress-rate=0"], "argument --progress-rate: must be a number above 0, got 0"),
        (["--progress-rate=fast"], "argument --progress-rate: must be a number above 0, got fast"),
        (["--namespace-memory=0"], "argument --namespace-memory: must be a number above 0, got 0"),
        (
            ["--leader-elect", "--lease-namespace=dtj-system", "--renew-deadline=20"],
            "the lease duration must be longer than the renew deadline",
        ),
    ],
)
def test_flags_that_can_not_work_are_refused(
    flags: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        read_flags(flags)
    assert says in capsys.readouterr().err


def test_the_operator_leaves_a_lost_node_before_its_jobs_do_and_not_with_both_replicas() -> None:
    deployment = yaml.safe_load((MANIFESTS / "operator/deployment.yaml").read_text())["spec"]
    pod = deployment["template"]["spec"]

    assert deployment["replicas"] == 2
    assert {t["key"]: (t["operator"], t["effect"], t["tolerationSeconds"]) for t in pod["tolerations"]} == {
        "node.kubernetes.io/not-ready": ("Exists", "NoExecute", 30),
        "node.kubernetes.io/unreachable": ("Exists", "NoExecute", 30),
    }
    assert LOST_NODE_SECONDS > 30
    (apart,) = pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert apart["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
    wanted = apart["podAffinityTerm"]["labelSelector"]["matchLabels"]
    assert wanted.items() <= deployment["template"]["metadata"]["labels"].items()


def test_the_role_opens_the_lease_that_the_deployment_asks_for() -> None:
    deployment = yaml.safe_load((MANIFESTS / "operator/deployment.yaml").read_text())
    role = yaml.safe_load((MANIFESTS / "rbac/leader-election-role.yaml").read_text())
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    flags = read_flags([*container["args"], f"--lease-namespace={deployment['metadata']['namespace']}"])

    assert flags.leader_elect
    assert role["metadata"]["namespace"] == flags.lease_namespace
    assert [rule.get("resourceNames") for rule in role["rules"]] == [None, [flags.lease_name]]


async def test_a_replica_that_does_not_lead_writes_nothing(api: HttpCluster) -> None:
    apply(api, "one")
    told: list[object] = []
    cluster = KubernetesApi(
        client.ApiClient(client.Configuration(host=api.url)),
        lambda *answer: told.append(answer),
        lambda: False,
    )
    job = stored("one")

    assert await cluster.get(job)
    for write in (
        cluster.create(job),
        cluster.replace(job),
        cluster.patch_status("ml", "one", "1", {"phase": "Running"}),
        cluster.delete_pod("ml", "one-worker-0", "uid"),
    ):
        with pytest.raises(ApiError, match="another operator may lead now"):
            await write
    await cluster.close()

    assert api.posts == []
    assert "phase" not in api.cluster.objects[KIND, "ml", "one"].get("status", {})
    assert told == [("get", "DistributedTrainingJob", 200)], "what is not asked is not answered"
