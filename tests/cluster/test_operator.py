"""The operator as it is installed: healthy, measured, and allowed no more than it needs."""

from __future__ import annotations

import pytest

from tests.cluster.jobs import SYSTEM, KubectlError, kubectl

pytestmark = pytest.mark.cluster
IDENTITY = f"system:serviceaccount:{SYSTEM}:dtj-operator"


def ask(port: int, path: str) -> str:
    """An answer of the operator, through the API server."""
    name = kubectl(
        "--namespace", SYSTEM, "get", "pods", "--selector=app.kubernetes.io/name=dtj-operator",
        "--field-selector=status.phase=Running", "--output=jsonpath={.items[0].metadata.name}",
    )  # fmt: skip
    return kubectl("get", "--raw", f"/api/v1/namespaces/{SYSTEM}/pods/{name}:{port}/proxy{path}")


def test_it_is_healthy() -> None:
    assert "oldestSeconds" in ask(8080, "/healthz")


def test_it_tells_prometheus_of_its_work() -> None:
    text = ask(8081, "/metrics")
    for name in (
        "dtj_jobs",
        "dtj_queue_depth",
        "dtj_reconcile_duration_seconds_bucket",
        "dtj_job_restarts_total",
    ):
        assert f"\n{name}" in text


@pytest.mark.parametrize(
    "words",
    [
        ("get", "secrets"),
        ("list", "secrets"),
        ("watch", "secrets"),
        ("delete", "secrets"),
        ("get", "pods", "--subresource=log"),
        ("create", "pods", "--subresource=exec"),
        ("update", "distributedtrainingjobs"),
        ("deletecollection", "distributedtrainingjobs"),
        ("delete", "services"),
        ("list", "nodes"),
        ("create", "clusterroles"),
        ("*", "*"),
    ],
)
def test_it_may_not(words: tuple[str, ...]) -> None:
    with pytest.raises(KubectlError):
        kubectl("auth", "can-i", *words, "--all-namespaces", f"--as={IDENTITY}", "--quiet")
