"""The test cluster on Docker and kind. Only the bring-up differs from the local cluster."""

from __future__ import annotations

import ipaddress
import json
import shutil
from pathlib import Path

from tests.cluster.local.paths import CACHE
from tests.cluster.local.processes import Supervisor
from tests.cluster.objectstore import ObjectStore
from tests.cluster.progress import ClusterError, step
from tests.cluster.shell import run, succeeds

NAME = "dtj"
DIRECTORY = CACHE / "kind"
KUBECONFIG = DIRECTORY / "kubeconfig.yaml"
CONFIG = Path(__file__).with_name("kind.yaml")
SUPERVISOR = Supervisor(DIRECTORY)


def up() -> None:
    """Create the cluster unless it is there, and S3 beside it."""
    _check()
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    if NAME not in run("kind", "get", "clusters").split():
        with step("creating the kind cluster (some minutes the first time)"):
            run("kind", "create", "cluster", "--name", NAME, "--config", CONFIG, "--wait", "180s",
                "--kubeconfig", KUBECONFIG)  # fmt: skip
    else:
        run("kind", "export", "kubeconfig", "--name", NAME, "--kubeconfig", KUBECONFIG)
    there = store()
    SUPERVISOR.ensure(there.component())
    there.fill()


def exists() -> bool:
    """Whether the cluster is there."""
    return shutil.which("kind") is not None and NAME in run("kind", "get", "clusters").split()


def down() -> None:
    """Delete the cluster and end S3; nothing else of Docker's is touched."""
    SUPERVISOR.stop(*SUPERVISOR.names())
    if shutil.which("kind"):
        run("kind", "delete", "cluster", "--name", NAME)
    shutil.rmtree(DIRECTORY, ignore_errors=True)


def load(archive: Path) -> None:
    """Put an image on every node; kind itself skips what is there."""
    run("kind", "load", "image-archive", archive, "--name", NAME)


def store() -> ObjectStore:
    """S3 at the gateway of kind's Docker network: this machine, as the pods see it."""
    return ObjectStore(DIRECTORY / "s3", _gateway())


def _gateway() -> str:
    (network,) = json.loads(run("docker", "network", "inspect", "kind"))
    for config in network["IPAM"]["Config"]:
        gateway = config.get("Gateway")
        if gateway and ipaddress.ip_address(gateway).version == 4:
            return str(gateway)
    raise ClusterError("kind's Docker network has no IPv4 gateway, where S3 would listen")


def _check() -> None:
    for program, place in (
        ("docker", "the Docker engine"),
        ("kind", "kind, https://kind.sigs.k8s.io"),
        ("kubectl", "kubectl"),
    ):
        if shutil.which(program) is None:
            raise ClusterError(
                f"`{program}` is missing: install {place}. "
                "As root on Debian 12, `make cluster` needs neither Docker nor kind."
            )
    if not succeeds("docker", "info"):
        raise ClusterError("the Docker engine does not answer (`docker info`): start it")
