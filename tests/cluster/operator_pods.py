"""The replicas of the operator: the leader, the answers of each replica, and the kill of a replica."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from tests.cluster.jobs import SYSTEM, Manifest, kubectl

SELECTOR = "--selector=app.kubernetes.io/name=dtj-operator"


def replicas() -> list[Manifest]:
    """Pods of the operator that are ready and not told to end."""
    answer = kubectl("--namespace", SYSTEM, "get", "pods", SELECTOR, "--output=json")
    return [pod for pod in json.loads(answer)["items"] if _ready(pod)]


def holder() -> str:
    """Who holds the lease, `<pod>_<uuid>`; empty when nobody does."""
    return kubectl(
        "--namespace", SYSTEM, "get", "lease", "dtj-operator", "--output=jsonpath={.spec.holderIdentity}"
    )


def leader() -> str:
    """The pod that leads."""
    return holder().rpartition("_")[0]


def ask(pod: str, port: int, path: str) -> str:
    """An answer of a replica, through the API server."""
    return kubectl("get", "--raw", f"/api/v1/namespaces/{SYSTEM}/pods/{pod}:{port}/proxy{path}")


def kill(pod: str) -> None:
    """SIGKILL to its process, from the node: a container's first process can't be killed from within."""
    found = [int(folder.name) for folder in Path("/proc").glob("[0-9]*") if _is_operator_of(folder, pod)]
    assert found, f"no process of {pod} is seen on this machine"
    for pid in found:
        os.kill(pid, signal.SIGKILL)


def _is_operator_of(folder: Path, pod: str) -> bool:
    try:
        words = (folder / "cmdline").read_bytes().split(b"\0")
        environment = (folder / "environ").read_bytes().split(b"\0")
    except OSError:
        return False  # it ended meanwhile
    return any(word.endswith(b"dtj-operator") for word in words) and f"HOSTNAME={pod}".encode() in environment


def _ready(pod: Manifest) -> bool:
    conditions = {c["type"]: c["status"] for c in pod["status"].get("conditions", [])}
    return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]
