"""Jobs for mpi-operator, with the real operator and API server. The tests play the part of mpi-operator.

* a job that waits for mpi-operator, and its training
* an MPIJob that fails
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from tests import stub_training
from tests.cluster.code import stored_code
from tests.cluster.jobs import Job, KubectlError, Manifest, Namespace, kubectl, stub, until
from tests.cluster.operator_pods import ask, leader
from tests.patience import PATIENCE
from tests.unit.support import mpi_operator
from tests.unit.support.mpijob_crd import mpijob_crd

pytestmark = pytest.mark.cluster
HANDED_OVER: Manifest = {"horovod": {"launcher": "MPIJob"}, "replicaSpecs": {"worker": {"replicas": 1}}}
LONGEST_PAUSE = 80
"""The operator repeats a refused creation after pauses that grow to seven minutes. On a busy machine, a test waits
for a later and longer pause."""


@pytest.fixture
def crd() -> Iterator[None]:
    """At the end there are no MPIJobs any more."""
    yield
    kubectl("delete", "crd", "mpijobs.kubeflow.org", "--ignore-not-found", "--wait=true", timeout=60)


def test_a_job_waits_for_mpi_operator_and_is_trained_by_it(
    namespace: Namespace, crd: None, tmp_path: Path
) -> None:
    program = Path(stub_training.__file__).read_text()
    files = {"train.py": program.replace("import argparse", "import argparse, beside", 1), "beside.py": ""}
    code = {**stored_code(namespace, "training", files, tmp_path), "entrypoint": "train.py"}
    handed = stub("handed", stub_training.NAME, **HANDED_OVER)
    handed["spec"] |= {"command": [], "code": code}
    handed["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "research", "team": "vision"}
    job = namespace.apply(handed)
    until("the job to say what is missing", lambda: waits(job), 30)
    [event] = job.wait_for_event("MPIJobNotServed")
    assert "install Kubeflow's mpi-operator" in event["message"]

    serve("v1")
    seen = looks()
    until("the operator to look again", lambda: looks() > seen, LONGEST_PAUSE)
    assert waits(job)
    with pytest.raises(KubectlError, match="NotFound"):
        namespace.kubectl("get", "mpijobs.v1.kubeflow.org", "handed")

    serve("v1", "v2beta1")
    mpijob = until("the MPIJob", lambda: stored(namespace, "handed"), LONGEST_PAUSE)
    assert mpijob["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research"
    assert "team" not in mpijob["metadata"]["labels"]
    say(mpijob, "Created")
    make_pods(namespace, mpijob)
    until("it to run", lambda: job.status.get("phase") in ("Running", "Succeeded"), 120)
    say(mpijob, "Created", "Running")
    status = job.wait(120)
    assert status["progress"]["step"] == 20
    assert status["artifacts"]["checkpoint"]["step"] == 20
    assert status["restarts"] == {"application": 0, "infrastructure": 0}
    assert {row["worldSize"] for row in job.artifacts().metrics()} == {1}
    assert job.artifacts().read("logs/attempt-1/rank-0.log")

    say(mpijob, "Created", "Running", "Succeeded")
    until(
        "the worker's end",
        lambda: [pod["metadata"]["labels"]["dtj.dev/role"] for pod in job.pods()] == ["launcher"],
        60,
    )
    namespace.kubectl("delete", "dtj", "handed", "--wait=true")
    until("all of it to be gone", lambda: stored(namespace, "handed") is None and job.pods() == [], 60)


def test_a_failed_mpijob_fails_its_job(namespace: Namespace, crd: None) -> None:
    serve("v2beta1")
    job = namespace.apply(stub("fails", runPolicy={"backoffLimit": 0}, **HANDED_OVER))
    mpijob = until("the MPIJob", lambda: stored(namespace, "fails"), 30)
    say(mpijob, "Created", "Failed")

    status = job.wait(60, "Failed")
    assert status["failure"]["class"] == "MPIJobFailed"
    assert status["failure"]["message"] == "MPIJob fails: MPIJobFailed: as the test says"


def waits(job: Job) -> bool:
    return job.condition("Running").get("reason") == "MPIJobNotServed"


def looks() -> float:
    """How often the operator has found no such version."""
    lines = ask(leader(), 8081, "/metrics").splitlines()
    counts = [
        line for line in lines if line.startswith("dtj_api_requests_total") and "APIResourceList" in line
    ]
    return sum(float(line.rpartition(" ")[2]) for line in counts)


def serve(*versions: str) -> None:
    """Let the API server have MPIJobs in these versions, and wait until it does."""
    kubectl("apply", "--filename=-", stdin=yaml.safe_dump(mpijob_crd(*versions)))
    for version in versions:
        until(f"MPIJobs of {version}", lambda version=version: _has(version), 30)  # type: ignore[misc]


def _has(version: str) -> bool:
    try:
        return "mpijobs" in kubectl("get", "--raw", f"/apis/kubeflow.org/{version}")
    except KubectlError:
        return False


def stored(namespace: Namespace, name: str) -> Manifest | None:
    found = namespace.kubectl(
        "get", "mpijobs.v2beta1.kubeflow.org", name, "--ignore-not-found", "--output=json"
    )
    return dict(json.loads(found)) if found else None


def say(mpijob: Manifest, *conditions: str) -> None:
    """Write the MPIJob's status, as mpi-operator does."""
    metadata = mpijob["metadata"]
    path = f"/apis/kubeflow.org/v2beta1/namespaces/{metadata['namespace']}/mpijobs/{metadata['name']}"
    there = json.loads(kubectl("get", "--raw", path))
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    told = [
        mpi_operator.condition(kind, True, f"MPIJob{kind}", "as the test says", now) for kind in conditions
    ]
    there["status"] = {"conditions": told, "startTime": now}
    if {"Succeeded", "Failed"} & set(conditions):
        there["status"]["completionTime"] = now
    kubectl("replace", "--raw", f"{path}/status", "--filename=-", stdin=json.dumps(there))


def make_pods(namespace: Namespace, mpijob: Manifest) -> None:
    """What mpi-operator makes; the cluster's own Job controller makes the launcher's pod."""
    pod = mpi_operator.worker(mpijob, 0)
    for made in (
        mpi_operator.service(mpijob),
        mpi_operator.config_map(mpijob),
        mpi_operator.secret(mpijob, *key_pair()),
        pod,
    ):
        namespace.kubectl("create", "--filename=-", stdin=json.dumps(made))
    name = pod["metadata"]["name"]
    namespace.kubectl(
        "wait", "--for=condition=Ready", f"pod/{name}", f"--timeout={100 * PATIENCE}s", timeout=110
    )
    namespace.kubectl("create", "--filename=-", stdin=json.dumps(mpi_operator.launcher_job(mpijob)))


def key_pair() -> tuple[str, str]:
    """A key as mpi-operator makes it: ECDSA P-521, the private one in SEC 1's form."""
    key = ec.generate_private_key(ec.SECP521R1())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return private.decode(), f"{public.decode()}\n"
