"""The command `dtj doctor` against an API server on loopback.

* clusters that are well, without dtj, or out of reach
* a job with its pod, and the pod's deletion
* objects that the user may not read
* text, JSON and YAML, and exit codes
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from typer.testing import CliRunner

from dtj.admission.review import review
from dtj.api.crd import custom_resource_definition
from dtj.api.job import Manifest
from dtj.api.manifest_check import check as checked
from dtj.cli.main import app
from dtj.doctor import examine as examination
from dtj.doctor.examine import examine
from dtj.doctor.findings import Check, failed, ok, warning
from dtj.doctor.installation import faulty_job
from tests.unit.support import jobs
from tests.unit.support.admission import request
from tests.unit.support.api_answers import refused
from tests.unit.support.doctor import KEYS, deployment, node, told
from tests.unit.support.kubeconfig import write_kubeconfig
from tests.unit.support.structural import schema_faults

CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/distributedtrainingjobs.dtj.dev"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
PODS = "/api/v1/namespaces/ml/pods"
CONFIGS = "/api/v1/namespaces/ml/configmaps"
JOBS = "/apis/dtj.dev/v1alpha1/namespaces/ml/distributedtrainingjobs"
WEBHOOK = {"items": [deployment(args=["--webhook-port=9443", "--webhook-name=dtj-operator-webhook"])]}
WELL = [("API server", "ok"), ("CRD", "ok"), ("operator", "ok"), ("permissions", "ok")]
SAW = [{"name": "DNS", "verdict": "ok", "message": "a pod resolves it"}]


class Server:
    """Answers by path; the pod that is made ends at once, unless told otherwise."""

    def __init__(self) -> None:
        secret = {key: b64encode(b"x").decode() for key in KEYS}
        self.answers: dict[str, Any] = {
            "/version": {"major": "1", "minor": "31", "gitVersion": "v1.31.0"},
            "/apis/dtj.dev/v1alpha1": {},
            CRD: custom_resource_definition(),
            "/apis/apps/v1/deployments": {"items": [deployment()]},
            "/api/v1/nodes": {"items": [node("a")]},
            "/api/v1/pods": {"items": []},
            "/api/v1/namespaces/ml/resourcequotas": {"items": []},
            "/api/v1/namespaces/ml/secrets/s3": {"data": secret},
        }
        self.pods: dict[str, Manifest] = {}
        self.deleted: list[str] = []
        self.denied: set[tuple[str, str, str]] = set()
        self.pod_ends = True
        self.polled = asyncio.Event()
        self.judge: Callable[[Manifest], web.Response] = lambda job: web.json_response(job, status=201)
        """Answers a job that is not to be stored."""

    async def answer(self, request: web.Request) -> web.Response:
        if request.path == REVIEWS:
            asked = (await request.json())["spec"]["resourceAttributes"]
            denied = (asked["verb"], asked["resource"], asked["subresource"]) in self.denied
            return web.json_response({"status": {"allowed": not denied}}, status=201)
        if request.path == JOBS and request.method == "POST":
            assert request.query.getall("dryRun") == ["All"], "doctor makes no job"
            return self.judge(await request.json())
        if request.path.startswith(PODS) and PODS not in self.answers:
            return await self._pod(request)
        answer = self.answers.get(request.path, 404)
        if isinstance(answer, int):
            return refused(answer, {403: "Forbidden"}.get(answer, "NotFound"), f"no {request.path} for you")
        return web.json_response(answer)

    async def _pod(self, request: web.Request) -> web.Response:
        name = request.path.removeprefix(f"{PODS}/")
        if request.method == "POST":
            pod = await request.json()
            self.pods[pod["metadata"]["name"]] = pod
            return web.json_response(pod, status=201)
        if request.method == "DELETE":
            self.deleted.append(name)
            return web.json_response({})
        self.polled.set()
        done = {"terminated": {"exitCode": 0, "message": json.dumps(SAW)}}
        status = {"phase": "Succeeded", "containerStatuses": [{"state": done}]} if self.pod_ends else {}
        return web.json_response(self.pods[name] | {"status": status})


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    made = Server()
    serving = web.Application()
    serving.router.add_route("*", "/{path:.*}", made.answer)
    runner = web.AppRunner(serving)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    write_kubeconfig(tmp_path / "config", f"http://127.0.0.1:{runner.addresses[0][1]}")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    yield made
    await runner.cleanup()


def the_job(**spec: Any) -> Any:
    return jobs.job(
        artifacts={"uri": "s3://training/jobs", "endpoint": "http://store", "secretName": "s3"}, **spec
    )


async def test_a_cluster_that_is_well(server: Server) -> None:
    assert told(await examine(None)) == WELL


def reviewed(job: Manifest) -> web.Response:
    """The answer of an API server that reaches the webhook."""
    verdict = review(request("CREATE", job))["response"]
    if verdict["allowed"]:
        return web.json_response(job, status=201)
    said = f'admission webhook "distributedtrainingjobs.dtj.dev" denied the request: {verdict["status"]["message"]}'
    return refused(422, "Invalid", said)


UNREACHED = (
    'Internal error occurred: failed calling webhook "distributedtrainingjobs.dtj.dev": deadline exceeded'
)


@pytest.mark.parametrize(
    ("judge", "verdict", "part"),
    [
        (reviewed, "ok", "a faulty job is refused"),
        (None, "failed", "does not reach the webhook, and accepts faulty jobs"),
        (
            lambda _: refused(500, "InternalError", UNREACHED),
            "failed",
            "and refuses all jobs: Internal error",
        ),
        (lambda _: refused(403, "Forbidden", "a policy"), "warning", "refused for another reason: a policy"),
    ],
    ids=["reached", "Ignore", "Fail", "a policy"],
)
async def test_a_webhook_must_refuse_a_faulty_job(
    server: Server, judge: Callable[[Manifest], web.Response] | None, verdict: str, part: str
) -> None:
    server.answers["/apis/apps/v1/deployments"] = WEBHOOK
    server.judge = judge or server.judge
    checks = await examine(None)
    assert told(checks) == [*WELL, ("webhook", verdict)]
    assert part in checks[-1].message
    assert ("port 9443" in (checks[-1].remedy or "")) is (verdict == "failed")


async def test_who_may_not_read_the_operator_hears_of_a_webhook_that_answers(server: Server) -> None:
    server.answers["/apis/apps/v1/deployments"] = 403
    assert ("webhook", "ok") not in told(await examine(None))
    server.judge = reviewed
    assert told(await examine(None))[-1] == ("webhook", "ok")
    server.denied.add(("create", "distributedtrainingjobs", ""))
    assert told(await examine(None))[-1] == ("permissions", "failed")


async def test_code_that_no_job_uses_is_named(server: Server) -> None:
    def config(name: str, created: str = "2026-11-21T12:00:00Z", **more: Any) -> Manifest:
        return {"metadata": {"name": name, "creationTimestamp": created, **more}}

    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    used = jobs.manifest(code={"configMap": "used", "digest": f"sha256:{'5' * 64}"})
    configs = [config("used"), config("owned", ownerReferences=[{"uid": "1"}]), config("young", now)]
    server.answers[CONFIGS] = {"metadata": {"resourceVersion": "1"}, "items": configs}
    server.answers[JOBS] = {"metadata": {"resourceVersion": "1"}, "items": [used]}
    assert told(await examine(None)) == WELL
    configs += [config("left-b"), config("left-a")]
    assert told(checks := await examine(None)) == [*WELL, ("code", "warning")]
    assert checks[-1].message == "2 ConfigMaps have code that no job uses: left-a, left-b"
    assert checks[-1].remedy == "kubectl -n ml delete configmap left-a left-b"
    server.answers[CONFIGS] = 403
    assert told(await examine(None)) == WELL


def test_the_crd_takes_the_faulty_job_of_the_check() -> None:
    job = faulty_job("ml")
    schema = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert list(schema_faults(schema, job)) == []
    assert [str(fault) for fault in checked(job)[1] if not fault.field.startswith("metadata")] == [
        "spec.env[0].name: DTJ_JOB is set by the operator"
    ]


async def test_a_job_that_can_run_and_the_pod_that_says_so(server: Server) -> None:
    checks = await examine(the_job())
    assert told(checks) == [
        *WELL, ("room", "ok"), ("quota", "ok"), ("Secret", "ok"), ("image", "ok"), ("DNS", "ok"),
        ("record image", "ok"),
    ]  # fmt: skip
    assert sorted(server.deleted) == sorted(server.pods)
    assert all(name.startswith("dtj-doctor-") for name in server.pods)
    images = {pod["spec"]["containers"][0]["image"] for pod in server.pods.values()}
    assert images == {the_job().spec.image, "dtj-tensorboard:0.1.0"}


async def test_no_pod_for_records_where_there_are_none(server: Server) -> None:
    server.answers["/apis/apps/v1/deployments"] = {"items": [deployment(args=["--record-image=none"])]}
    assert told(await examine(the_job()))[-1] == ("DNS", "ok")
    server.answers["/apis/apps/v1/deployments"] = {"items": [deployment()]}
    assert told(await examine(jobs.job()))[-1] == ("DNS", "ok"), "a job without artifacts"
    assert all(not name.startswith("dtj-doctor-record") for name in server.pods)


async def test_no_pod_where_none_is_wanted_or_its_secret_is_missing(server: Server) -> None:
    assert told(await examine(the_job(), with_pod=False))[-1] == ("Secret", "ok")
    del server.answers["/api/v1/namespaces/ml/secrets/s3"]
    assert told(await examine(the_job()))[-2:] == [("Secret", "failed"), ("pod", "warning")]
    assert server.pods == {}


async def test_a_job_for_mpi_operator_needs_its_resource_in_its_version(server: Server) -> None:
    handed_over = the_job(horovod={"launcher": "MPIJob"})
    assert ("mpi-operator", "failed") in told(await examine(handed_over, with_pod=False))
    server.answers["/apis/kubeflow.org/v2beta1"] = {"resources": [{"name": "mpijobs/status"}]}
    assert ("mpi-operator", "failed") in told(await examine(handed_over, with_pod=False))
    server.answers["/apis/kubeflow.org/v2beta1"] = {"resources": [{"name": "mpijobs"}]}
    assert ("mpi-operator", "ok") in told(await examine(handed_over, with_pod=False))


async def test_the_pod_is_deleted_when_the_command_is_interrupted(server: Server) -> None:
    server.pod_ends = False
    task = asyncio.create_task(examine(the_job()))
    await server.polled.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(server.deleted) == sorted(server.pods)


async def test_what_may_not_be_read_is_a_warning(server: Server) -> None:
    for path in (CRD, "/apis/apps/v1/deployments", "/api/v1/nodes", PODS):
        server.answers[path] = 403
    server.denied.add(("get", "pods", "log"))
    assert told(await examine(the_job())) == [
        ("API server", "ok"), ("CRD", "warning"), ("operator", "warning"), ("permissions", "warning"),
        ("nodes", "warning"), ("quota", "ok"), ("Secret", "ok"), ("pod", "warning"),
    ]  # fmt: skip


async def test_a_cluster_without_dtj(server: Server) -> None:
    for path in (CRD, "/apis/dtj.dev/v1alpha1"):
        del server.answers[path]
    server.answers["/apis/apps/v1/deployments"] = {"items": []}
    assert told(await examine(None))[1:3] == [("CRD", "failed"), ("operator", "failed")]


async def test_a_cluster_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Server
) -> None:
    write_kubeconfig(tmp_path / "config", "http://127.0.0.1:9")
    (check,) = await examine(None)
    assert (check.name, check.verdict) == ("API server", "failed")
    assert "http://127.0.0.1:9 does not answer" in check.message
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert told(await examine(None)) == [("kubeconfig", "failed")]


@pytest.fixture
def doctor(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    """Runs the command with these checks; exit code and what it printed."""

    def run(*words: str | Path, checks: list[Check]) -> tuple[int, str]:
        async def examined(*_: Any, **__: Any) -> list[Check]:
            return checks

        monkeypatch.setattr(examination, "examine", examined)
        result = CliRunner().invoke(app, ["doctor", *map(str, words)])
        return result.exit_code, result.stdout

    return run


def test_checks_are_printed_with_what_to_do(doctor: Callable[..., tuple[int, str]]) -> None:
    checks = [ok("CRD", "is [v1]"), failed("operator", "is not ready", "see its log")]
    assert doctor(checks=checks) == (
        1,
        "ok       CRD       is [v1]\nfailed   operator  is not ready\n                   → see its log\n",
    )


def test_warnings_alone_end_with_0_and_a_program_may_read_them(
    doctor: Callable[..., tuple[int, str]],
) -> None:
    entry = {"name": "nodes", "verdict": "warning", "message": "hidden", "remedy": None}
    checks = [warning("nodes", "hidden")]
    for format_, read in (("json", json.loads), ("yaml", yaml.safe_load)):
        code, out = doctor("-o", format_, checks=checks)
        assert (code, read(out)) == (0, [entry])


def test_a_faulty_file_is_told_before_a_cluster_is_asked(
    doctor: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text("kind: DistributedTrainingJob\nspec: {}\n")
    code, out = doctor(tmp_path / "job.yaml", checks=[failed("API server", "asked")])
    assert (code, out) == (1, "")
