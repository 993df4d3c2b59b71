"""The test hook of the chart for `helm test`: its objects, and the program of its pod."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dtj.api.identity import GROUP, PLURAL
from dtj.api.job import read_job
from dtj.api.validation import faults
from dtj.cli.doctor import _print
from dtj.doctor.findings import Check, Verdict
from tests.chart.helm import NAMESPACE, rendered
from tests.unit.support.fake_cluster import SCHEMA
from tests.unit.support.http_cluster import HttpCluster, http_cluster
from tests.unit.support.jobs import stored
from tests.unit.support.kubeconfig import TOKEN, write_kubeconfig
from tests.unit.support.structural import schema_faults

# The commands of the script are processes that a busy machine starts slowly.
NAME = "dtj-operator-test"
PLACE = {
    "imagePullSecrets": [{"name": "registry"}],
    "nodeSelector": {"pool": "training"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
}
VALUES = {"watchNamespaces": ["ml"], "test": PLACE}
MADE = rendered(VALUES)
JOB = yaml.safe_load(MADE[f"ConfigMap/{NAME}"]["data"]["job.yaml"])
(SCRIPT,) = MADE[f"Pod/{NAME}"]["spec"]["containers"][0]["args"]


def test_what_the_pod_needs_is_made_before_it_and_goes_with_it() -> None:
    hooks = [made for made in MADE.values() if "helm.sh/hook" in made["metadata"].get("annotations", {})]
    weights = {made["kind"]: int(made["metadata"]["annotations"]["helm.sh/hook-weight"]) for made in hooks}

    assert set(weights) == {"Pod", "ConfigMap", "ServiceAccount", "Role", "RoleBinding"}
    assert all(weights["Pod"] > weight for kind, weight in weights.items() if kind != "Pod")
    for made in hooks:
        assert made["metadata"]["annotations"]["helm.sh/hook"] == "test"
        policy = made["metadata"]["annotations"]["helm.sh/hook-delete-policy"]
        assert policy == "before-hook-creation,hook-succeeded"


def test_the_job_is_one_that_the_operator_runs() -> None:
    assert list(schema_faults(SCHEMA, JOB)) == []
    assert faults(read_job(JOB)) == []
    compile(JOB["spec"]["args"][0], "the job's program", "exec")
    for role in JOB["spec"]["replicaSpecs"].values():
        assert role["template"]["spec"] == PLACE
    plain = yaml.safe_load(rendered()[f"ConfigMap/{NAME}"]["data"]["job.yaml"])
    assert all("template" not in role for role in plain["spec"]["replicaSpecs"].values())


@pytest.mark.parametrize(
    ("values", "where"),
    [
        ({}, NAMESPACE),
        ({"watchNamespaces": ["team-a", "team-b"]}, "team-a"),
        ({"watchNamespaces": ["team-a", "team-b"], "test": {"namespace": "team-b"}}, "team-b"),
    ],
)
def test_the_job_runs_where_the_operator_runs_jobs(values: dict[str, Any], where: str) -> None:
    made = rendered(values)
    job = yaml.safe_load(made[f"ConfigMap/{NAME}"]["data"]["job.yaml"])

    assert job["metadata"]["namespace"] == where
    assert made[f"Role/{NAME}"]["metadata"]["namespace"] == where
    assert made[f"RoleBinding/{NAME}"]["metadata"]["namespace"] == where
    assert made[f"Pod/{NAME}"]["metadata"]["namespace"] == NAMESPACE


@pytest.fixture
async def api() -> AsyncIterator[HttpCluster]:
    async with http_cluster(moves=False) as server:
        server.tokens = {TOKEN}
        yield server


@pytest.fixture
def run(api: HttpCluster, tmp_path: Path) -> Callable[[], Any]:
    """The pod's script, with the job's file and a kubeconfig of its own."""
    write_kubeconfig(tmp_path / "kubeconfig", api.url)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(JOB))
    dtj = tmp_path / "dtj"
    dtj.write_text(f'#!/bin/sh\nexec {sys.executable} -c "from dtj.cli.main import main; main()" "$@"\n')
    dtj.chmod(0o755)

    async def start() -> tuple[int | None, str]:
        process = await asyncio.create_subprocess_exec(
            "sh", "-c", SCRIPT.replace("/job/job.yaml", str(tmp_path / "job.yaml")),
            env=os.environ
            | {"KUBECONFIG": str(tmp_path / "kubeconfig"), "PATH": f"{tmp_path}:{os.environ['PATH']}"},
            stdout=PIPE, stderr=STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            said, _ = await process.communicate()
        except asyncio.CancelledError:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        return process.returncode, said.decode()

    return start


async def ends(api: HttpCluster, phase: str, message: str = "") -> None:
    """The operator ends the job, once one is there that it has not ended, and somebody waits for that."""
    while not api.watches or (api.jobs[NAME].get("status") or {}).get("phase"):
        await asyncio.sleep(0.02)
    end = {
        "type": phase, "status": "True", "reason": "ItEnded", "message": message,
        "lastTransitionTime": "2026-11-21T12:01:00Z",
    }  # fmt: skip
    api.set_status(NAME, phase=phase, conditions=[end])


async def test_a_job_that_succeeds_is_deleted_and_the_test_passes(
    api: HttpCluster, run: Callable[[], Any]
) -> None:
    operator = asyncio.create_task(ends(api, "Succeeded"))
    code, said = await run()
    await operator

    assert code == 0, said
    assert f"{NAME} submitted to namespace ml" in said
    assert api.jobs == {}


async def test_a_job_that_fails_is_shown_and_stays_until_the_next_test(
    api: HttpCluster, run: Callable[[], Any]
) -> None:
    api.cluster.put(stored(NAME) | {"status": {"phase": "Failed"}})
    operator = asyncio.create_task(ends(api, "Failed", "it broke"))
    code, said = await run()
    await operator

    assert code == 1
    assert f"{NAME} deleted" in said
    assert f"{NAME} submitted to namespace ml" in said
    assert "it broke" in said
    assert NAME in api.jobs
    assert {_right(request.method, request.path) for request in api.requests} == {
        (verb, resource, group)
        for rule in MADE[f"Role/{NAME}"]["rules"]
        for verb in rule["verbs"]
        for resource in rule["resources"]
        for group in rule["apiGroups"]
    }, "the pod's role allows what it asks, and nothing else"


@pytest.mark.parametrize(("reached_after", "passes"), [(3, True), (13, False)])
async def test_a_webhook_that_the_api_server_does_not_reach_fails_the_test(
    tmp_path: Path, reached_after: int, passes: bool
) -> None:
    (script,) = rendered({**VALUES, "webhook": {"enabled": True}})[f"Pod/{NAME}"]["spec"]["containers"][0][
        "args"
    ]
    assert "doctor" not in SCRIPT
    asked, well = tmp_path / "asked", Check("webhook", Verdict.OK, "the API server calls the webhook")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        _print([Check("operator", Verdict.WARNING, "can't be read"), well])
    (tmp_path / "well").write_text(printed.getvalue())
    programs = {
        "dtj": f'[ "$1" = doctor ] || exit 0; echo >> {asked}; '
        f'if [ "$(wc -l < {asked})" -ge {reached_after} ]; then cat {tmp_path / "well"}; fi',
        "sleep": "exit 0",
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", script, stdout=PIPE, stderr=STDOUT,
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )  # fmt: skip
    said, _ = await process.communicate()

    assert (process.returncode == 0) is passes
    assert ("does not reach the webhook" in said.decode()) is not passes
    assert len(asked.read_text().splitlines()) == min(reached_after, 12)


def _right(method: str, path: str) -> tuple[str, str, str]:
    """Verb, resource and group of a request in a namespace."""
    words = path.partition("?")[0].partition("/namespaces/")[2].split("/")[1:]
    read = "watch" if "watch=" in path else "get" if len(words) > 1 else "list"
    verb = {"POST": "create", "DELETE": "delete"}.get(method, read)
    return verb, words[0], GROUP if words[0] == PLURAL else ""
