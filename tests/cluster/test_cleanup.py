"""After all other tests: nothing of dtj holds the namespaces that the tests deleted."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.cluster.jobs import kubectl, until
from tests.cluster.local.state import SUPERVISOR
from tests.cluster.progress import note

pytestmark = [pytest.mark.cluster, pytest.mark.last]


def left() -> list[str]:
    """The namespaces of tests that are still there."""
    names = kubectl("get", "namespaces", "--output=name").split()
    return [name.removeprefix("namespace/") for name in names if name.startswith("namespace/dtj-test-")]


def objects(kind: str) -> list[dict[str, Any]]:
    """The objects of a kind in these namespaces."""
    there = json.loads(kubectl("get", kind, "--all-namespaces", "--output=json"))["items"]
    return [one for one in there if one["metadata"]["namespace"].startswith("dtj-test-")]


def story() -> str:
    """What holds the namespaces, in one text: their conditions, and the objects with node, phase and finalizers."""
    at = kubectl("get", "--raw=/api/v1/namespaces?limit=1")
    said = [f"{datetime.now(UTC):%H:%M:%S}, resource version {json.loads(at)['metadata']['resourceVersion']}"]
    dead = [name for name in SUPERVISOR.names() if not SUPERVISOR.alive(name)]
    said += [f"{name} has ended: {SUPERVISOR.tail(name)}" for name in dead]
    for name in left():
        namespace = json.loads(kubectl("get", "namespace", name, "--output=json"))
        meta, status = namespace["metadata"], namespace["status"]
        said.append(
            f"{name}: {status.get('phase')}, version {meta['resourceVersion']}, made {meta['creationTimestamp']},"
            f" deleted {meta.get('deletionTimestamp')}"
        )
        said += [
            f"{c['type']}: {c['message']}" for c in status.get("conditions", []) if c["status"] == "True"
        ]
    for kind in ("pods", "dtj"):
        for one in objects(kind):
            meta = one["metadata"]
            facts = {
                "version": meta["resourceVersion"],
                "deleted": meta.get("deletionTimestamp"),
                "finalizers": meta.get("finalizers"),
                "node": one["spec"].get("nodeName"),
                "phase": one.get("status", {}).get("phase"),
            }
            said.append(f"{kind}/{meta['name']}: {facts}")
    return "; ".join(said)


def test_the_namespaces_of_the_tests_go_with_all_that_is_in_them() -> None:
    try:
        until("the tests' namespaces to be gone", lambda: not left(), 120)
    except AssertionError:
        held = [one for kind in ("pods", "dtj") for one in objects(kind) if one["metadata"].get("finalizers")]
        assert not held, story()
        # The kubelet does not end these pods. dtj holds none: without the pods, the namespaces go.
        note(f"pods that the kubelet did not end, which the test removes: {story()}")
        for pod in objects("pods"):
            kubectl(
                "delete", "pod", pod["metadata"]["name"], f"--namespace={pod['metadata']['namespace']}",
                "--force", "--grace-period=0", "--wait=false",
            )  # fmt: skip
        try:
            until("the namespaces to be gone without these pods", lambda: not left(), 20)
        except AssertionError:
            pytest.fail(story())
