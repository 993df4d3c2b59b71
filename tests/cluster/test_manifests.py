"""Every manifest of the repository: a real API server accepts the manifest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from dtj.api.identity import KIND
from tests.cluster.install import MANIFESTS, POLICY_V1_SINCE, server_minor
from tests.cluster.jobs import KubectlError, Manifest, Namespace, kubectl, until
from tests.patience import PATIENCE

pytestmark = pytest.mark.cluster
# The CRD itself is stored when the operator is installed; of a server before 1.25 it is another one.
KUSTOMIZED = sorted(
    path.parent
    for path in MANIFESTS.rglob("kustomization.yaml")
    # kustomize renders a component only as part of another kustomization, as of the overlay eks.
    if path.parent.name != "crd" and path.parent.parent.name != "components"
)
EXAMPLES = sorted(path for path in (MANIFESTS / "examples").rglob("*.yaml"))
KARPENTER = MANIFESTS / "eks/karpenter.yaml"
# What others install, by the names of their CRDs; their schemas are checked in tests/chart.
FOREIGN = {
    "servicemonitors.monitoring.coreos.com": ("ServiceMonitor", "v1", "Namespaced"),
    "prometheusrules.monitoring.coreos.com": ("PrometheusRule", "v1", "Namespaced"),
    "nodepools.karpenter.sh": ("NodePool", "v1", "Cluster"),
    "ec2nodeclasses.karpenter.k8s.aws": ("EC2NodeClass", "v1", "Cluster"),
}


@pytest.fixture(scope="module")
def foreign_kinds() -> Iterator[None]:
    """Served for the tests of this module."""
    kubectl("apply", "--filename=-", stdin=yaml.safe_dump_all(_crd(*each) for each in FOREIGN.items()))
    names = [f"crd/{name}" for name in FOREIGN]
    kubectl("wait", "--for=condition=Established", f"--timeout={30 * PATIENCE}s", *names)
    until("all of them to be served", _served, 30)
    yield
    kubectl("delete", "crd", *FOREIGN)


def _served() -> bool:
    """Whether the API server tells clients of these kinds, which it may do a moment after it serves them."""
    try:
        for name in FOREIGN:
            kubectl("get", name, "--all-namespaces")
    except KubectlError:
        return False
    return True


def _crd(name: str, what: tuple[str, str, str]) -> Manifest:
    (plural, _, group), (kind, version, scope) = name.partition("."), what
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": name},
        "spec": {
            "group": group,
            "names": {"plural": plural, "kind": kind},
            "scope": scope,
            "versions": [
                {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
            ],
        },
    }


@pytest.fixture(scope="module")
def team_a() -> Iterator[None]:
    """The namespace that the overlay for one names."""
    Namespace("team-a").make()
    yield
    Namespace("team-a").delete(wait=False)


@pytest.mark.parametrize("folder", KUSTOMIZED, ids=lambda folder: folder.name)
def test_what_kustomize_makes_is_taken(folder: Path, foreign_kinds: None, team_a: None) -> None:
    applied(list(yaml.safe_load_all(kubectl("kustomize", str(folder)))))


def test_what_is_for_karpenter_is_taken(foreign_kinds: None) -> None:
    applied(list(yaml.safe_load_all(KARPENTER.read_text())))


def applied(objects: list[Manifest]) -> None:
    """Give them to the server, which checks, defaults and admits, and keeps nothing: the operator stays as it is."""
    if server_minor() < POLICY_V1_SINCE:
        objects = [made for made in objects if made["apiVersion"] != "policy/v1"]
    objects = [made for made in objects if made["kind"] != "CustomResourceDefinition"]
    told = kubectl(
        "apply", "--server-side", "--force-conflicts", "--dry-run=server", "--filename=-",
        stdin=yaml.safe_dump_all(objects),
    )  # fmt: skip
    assert len(told.splitlines()) == len(objects), told


def test_the_operator_takes_every_example(namespace: Namespace) -> None:
    jobs = []
    for file in EXAMPLES:
        (manifest,) = (m for m in yaml.safe_load_all(file.read_text()) if m["kind"] == KIND)
        manifest["metadata"].pop("namespace", None)
        manifest["spec"].setdefault("runPolicy", {})["suspend"] = True
        jobs.append(namespace.apply(manifest))

    for job in jobs:
        until(f"{job.name} to be taken", lambda job=job: job.status.get("phase"), 60)  # type: ignore[misc]
        assert job.condition("Failed") == {}, job.story()
        job.wait(60, "Suspended")
