"""Releases by real Helm: their rights, and jobs that survive an upgrade and an uninstallation.

* `helm test`
* rights of the operator and of users
* jobs during an upgrade and an uninstallation
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cluster.jobs import EXAMPLE, PS_EXAMPLE, ROOT, Job, Namespace, kubectl, stub, until
from tests.cluster.releases import REGISTRY, VERSION, Release, chart_copy, granted, without_the_tests_operator
from tests.unit.support.authorizer import rights_of

pytestmark = [pytest.mark.cluster, pytest.mark.alone]
BEFORE = "0.0.9"
CRD = "customresourcedefinition.apiextensions.k8s.io/distributedtrainingjobs.dtj.dev"
# Everything that a release is made of.
KINDS = (
    "deployments,replicasets,pods,services,endpoints,configmaps,serviceaccounts,roles,rolebindings,leases,"
    "poddisruptionbudgets,networkpolicies"
)
JOBS = "distributedtrainingjobs"
OWN_LEASE = {("create", "leases"), ("get", "leases/dtj-operator"), ("update", "leases/dtj-operator")}
LEFT = {"lease.coordination.k8s.io/dtj-operator"}
STEPS = {"fashion-mnist": 5000, "fashion-mnist-ps": 400}


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    """A release for all namespaces, of an earlier version of the chart, beside no other operator."""
    made = Release(f"dtj-test-{uuid.uuid4().hex[:8]}")
    with without_the_tests_operator():
        chart = chart_copy(tmp_path_factory.mktemp("before"), BEFORE)
        try:
            # The CRD of the other tests is there, which is not Helm's.
            made.install(chart, "--create-namespace", "--take-ownership")
            yield made
        finally:
            print(made.logs())
            made.uninstall()
            kubectl("delete", "namespace", made.namespace, "--wait=false")


@pytest.fixture(scope="module")
def jobs(release: Release, shared_namespace: Namespace) -> list[Job]:
    """One of each strategy, in training; the first goes on until it is told to hurry."""
    made = [
        shared_namespace.apply(stub(name, f"--steps={steps}", "--step-seconds=0.2", file=file))
        for (name, steps), file in zip(STEPS.items(), (EXAMPLE, PS_EXAMPLE), strict=True)
    ]
    for job in made:
        job.wait_for_step(1, 240)
    return made


@pytest.fixture
def installer(release: Release, shared_namespace: Namespace) -> Iterator[str]:
    """A user with the rights that docs/install.md asks for, in the namespaces of the release and of the jobs."""
    text = (ROOT / "docs/install.md").read_text()
    (rights,) = re.findall(r"<!-- rights -->\n```yaml\n(.*?)```", text, re.DOTALL)
    kubectl("apply", "--filename=-", stdin=rights)
    for role in ("admin", yaml.safe_load(rights)["metadata"]["name"]):
        for namespace in (release.namespace, shared_namespace.name):
            kubectl(
                "--namespace", namespace, "create", "rolebinding", f"installs-{role}",
                f"--clusterrole={role}", "--user=installer",
            )  # fmt: skip
    yield "installer"
    kubectl("delete", "--filename=-", stdin=rights)


def test_helms_test_passes(release: Release) -> None:
    said = release.test()

    assert "Phase:          Succeeded" in said
    assert "dtj-operator-test submitted" in said
    named = re.findall(
        r"(\S*)dtj-(?:operator|tensorboard|trainer-horovod):", yaml.safe_dump_all(release.objects())
    )
    assert {name.rpartition("=")[2] for name in named} == {f"{REGISTRY}/"}

    def left() -> list[str]:
        names = kubectl("--namespace", release.namespace, "get", f"{KINDS},{JOBS}", "--output=name").split()
        return [name for name in names if "operator-test" in name]

    until("all that the test made to be gone", lambda: not left(), 60)


def test_the_operator_may_do_what_its_roles_say_and_reads_no_secret(
    release: Release, shared_namespace: Namespace
) -> None:
    roles = rights_of(f"{release.namespace}/{release.name}", release.objects())
    wanted = {(right.verb, right.resource) for right in roles if not right.namespace}

    assert granted(release.operator, shared_namespace.name) == wanted
    assert granted(release.operator, release.namespace) == wanted | OWN_LEASE
    assert {verb for verb, resource in wanted if resource == "secrets"} == {"create"}


def test_users_and_viewers_of_jobs_may_do_what_their_roles_say(
    release: Release, shared_namespace: Namespace
) -> None:
    there = shared_namespace
    for role in ("dtj-user", "edit", "dtj-viewer", "view"):
        there.kubectl("create", "rolebinding", f"the-{role}", f"--clusterrole={role}", f"--user=the-{role}")
    see = {(verb, what) for verb in ("get", "list", "watch")
           for what in ("pods", "pods/log", "events", JOBS, f"{JOBS}/status")}  # fmt: skip
    use = {(verb, JOBS) for verb in ("create", "update", "patch", "delete", "deletecollection")}
    code = {(verb, "configmaps") for verb in ("get", "create", "patch", "delete")}

    assert granted("the-dtj-viewer", there.name) == see
    assert granted("the-dtj-user", there.name) == see | use | code
    assert granted("the-dtj-user", release.namespace) == set()
    # A controller adds the rules of our roles to those of Kubernetes.
    until("view to see jobs", lambda: see <= granted("the-view", there.name), 30)
    until("edit to use jobs", lambda: see | use <= granted("the-edit", there.name), 30)
    assert not use & granted("the-view", there.name)
    assert ("patch", f"{JOBS}/status") not in granted("the-edit", there.name)


def test_jobs_live_through_an_upgrade(release: Release, jobs: list[Job], tmp_path: Path) -> None:
    running, old = {job.name: job.uids() for job in jobs}, set(release.pods())

    release.upgrade(chart_copy(tmp_path), logLevel="DEBUG")

    until("the old operators to be gone", lambda: not old & set(release.pods()), 120)
    for what in ("deployment/dtj-operator", CRD):
        labels = kubectl(
            "--namespace", release.namespace, "get", what, "--output=jsonpath={.metadata.labels}"
        )
        assert f"dtj-operator-{VERSION}" in labels
    jobs[0].wait_for_step(int(jobs[0].status["progress"]["step"]) + 5)
    assert jobs[0].uids() == running[jobs[0].name]
    assert jobs[1].uids().items() <= running[jobs[1].name].items(), "ps and workers go when the chief is done"


def test_jobs_live_through_an_uninstallation_and_end_by_a_release_for_their_namespace(
    release: Release, jobs: list[Job], namespace: Namespace, installer: str, tmp_path: Path
) -> None:
    home, elsewhere = jobs[0].namespace, namespace
    running = jobs[0].uids()

    release.uninstall()

    until("all but the Lease to be gone", lambda: left_of(release) == LEFT, 30)
    assert kubectl("get", CRD, "--output=name").strip() == CRD
    trained = reported_step(jobs[0])
    until("the training to go on", lambda: reported_step(jobs[0]) > trained, 30)
    assert jobs[0].uids() == running
    jobs[0].tell("worker-0", "hurry")

    outsider = elsewhere.apply(stub("outsider", "--steps=1"))
    short = home.apply(stub("short", "--steps=5"))
    own = Release(release.namespace, user=installer)
    own.install(chart_copy(tmp_path), watchNamespaces=[home.name], crds={"install": False})
    for job in (*jobs, short):
        assert job.wait(300)["restarts"] == {"application": 0, "infrastructure": 0}
    for job in jobs:
        assert job.artifacts().stub_steps_are_complete(STEPS[job.name])
    assert jobs[0].uids().items() <= running.items()
    assert outsider.status == {}

    assert granted(own.operator, release.namespace) == OWN_LEASE
    assert ("create", "pods") in granted(own.operator, home.name)
    assert granted(own.operator, elsewhere.name) == set()
    assert not [made["kind"] for made in own.objects() if "namespace" not in made["metadata"]]


def reported_step(job: Job) -> int:
    """What rank 0 itself answers."""
    pod = f"/api/v1/namespaces/{job.namespace.name}/pods/{job.name}-worker-0:8474"
    return int(json.loads(kubectl("get", "--raw", f"{pod}/proxy/progress"))["progress"]["step"])


def left_of(release: Release) -> set[str]:
    """Objects of the release's namespace that are not there in every namespace, and those of the whole cluster."""
    here = kubectl("--namespace", release.namespace, "get", KINDS, "--output=name").split()
    selector = f"--selector=app.kubernetes.io/instance={release.name}"
    wide = kubectl("get", "clusterroles,clusterrolebindings", selector, "--output=name").split()
    others = {"serviceaccount/default", "configmap/kube-root-ca.crt"}
    return {name for name in {*here, *wide} - others if "/installs-" not in name}
