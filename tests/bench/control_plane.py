"""An etcd and a kube-apiserver for the benchmark, on free ports of loopback, without controllers."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from dtj.local.machine import free_ports
from tests.cluster.install import MANIFESTS, apply, install_crds
from tests.cluster.local import kubernetes_build, packages
from tests.cluster.local.processes import Component, Supervisor
from tests.cluster.progress import step
from tests.cluster.shell import succeeds

LEASE_NAMESPACE = "dtj-system"
"""Where the operator may have a Lease."""
_HOST = "127.0.0.1"
_ADMIN, _OPERATOR = "admin", "operator"
# The user that the manifests' ClusterRoleBinding names: the operator has the rights that it has in a cluster.
_USERS = {
    _ADMIN: ("bench", "system:masters"),
    _OPERATOR: ("system:serviceaccount:dtj-system:dtj-operator", "system:serviceaccounts"),
}


@dataclass(frozen=True)
class ControlPlane:
    """An API server that serves the resource, and who may ask it."""

    url: str
    authority: Path
    """Its certificate."""
    admin_token: str
    operator_token: str
    operator_kubeconfig: Path
    directory: Path
    pids: dict[str, int]
    """Of etcd and the API server."""


@contextmanager
def control_plane(*, watch_cache: bool = True) -> Iterator[ControlPlane]:
    """Serve for as long as the block lasts; then both processes are ended and the directory is removed.

    `watch_cache`: whether the API server has one. It takes more than 24 GB for a gigabyte of large objects.
    """
    packages.install_missing({"etcd": "etcd-server"})
    binaries = kubernetes_build.binaries()
    with tempfile.TemporaryDirectory(prefix="dtj-bench-") as name:
        directory = Path(name)
        supervisor = Supervisor(directory)
        try:
            with step("starting etcd and the API server"):
                plane = _start(directory, supervisor, binaries, watch_cache=watch_cache)
            with step("applying the CRD and the operator's rights"):
                _install(directory / f"{_ADMIN}.kubeconfig")
            yield plane
        finally:
            supervisor.stop(*supervisor.names())


def _start(directory: Path, supervisor: Supervisor, binaries: Path, *, watch_cache: bool) -> ControlPlane:
    etcd_port, peer_port, api_port = free_ports(3)
    store, peer = f"http://{_HOST}:{etcd_port}", f"http://{_HOST}:{peer_port}"
    supervisor.ensure(
        Component(
            "etcd",
            (
                "etcd",
                "--name=bench",
                f"--data-dir={directory / 'etcd'}",
                "--unsafe-no-fsync",
                "--quota-backend-bytes=8000000000",
                f"--listen-client-urls={store}",
                f"--advertise-client-urls={store}",
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster=bench={peer}",
                "--logger=zap",
                "--log-level=warn",
            ),
        )
    )
    tokens = {name: os.urandom(16).hex() for name in _USERS}
    token_file = directory / "tokens.csv"
    token_file.write_text(
        "".join(f'{tokens[name]},{user},{name},"{group}"\n' for name, (user, group) in _USERS.items())
    )
    account_key = directory / "service-account.key"
    account_key.write_bytes(
        rsa.generate_private_key(65537, 2048).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
    url = f"https://{_HOST}:{api_port}"
    # The server makes itself a certificate.
    authority = directory / "apiserver" / "apiserver.crt"
    for name, token in tokens.items():
        _write_kubeconfig(directory / f"{name}.kubeconfig", url, authority, token)
    admin = directory / f"{_ADMIN}.kubeconfig"
    supervisor.ensure(
        Component(
            "kube-apiserver",
            (
                binaries / "kube-apiserver",
                f"--bind-address={_HOST}",
                f"--advertise-address={_HOST}",
                f"--secure-port={api_port}",
                f"--cert-dir={authority.parent}",
                f"--etcd-servers={store}",
                f"--token-auth-file={token_file}",
                "--authorization-mode=RBAC",
                # Nobody makes service accounts here.
                "--disable-admission-plugins=ServiceAccount",
                "--endpoint-reconciler-type=none",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-signing-key-file={account_key}",
                f"--service-account-key-file={account_key}",
                "--service-cluster-ip-range=10.213.0.0/16",
                "--profiling=false",
                f"--watch-cache={str(watch_cache).lower()}",
            ),
            ready=lambda: succeeds("kubectl", f"--kubeconfig={admin}", "get", "--raw=/readyz", timeout=5),
        )
    )
    pids = {
        name: json.loads((supervisor.pids / name).read_text())["pid"] for name in ("etcd", "kube-apiserver")
    }
    operator = directory / f"{_OPERATOR}.kubeconfig"
    return ControlPlane(url, authority, tokens[_ADMIN], tokens[_OPERATOR], operator, directory, pids)


def _install(kubeconfig: Path) -> None:
    # kubectl, as the tests' own functions use it, takes it from there.
    os.environ["KUBECONFIG"] = str(kubeconfig)
    install_crds()
    rights = [
        yaml.safe_load((MANIFESTS / "rbac" / name).read_text())
        for name in (
            "cluster-role.yaml",
            "cluster-role-binding.yaml",
            "leader-election-role.yaml",
            "leader-election-role-binding.yaml",
        )
    ]
    apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": LEASE_NAMESPACE}}])
    apply(rights)


def _write_kubeconfig(path: Path, url: str, authority: Path, token: str) -> None:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "bench", "cluster": {"server": url, "certificate-authority": str(authority)}}],
        "users": [{"name": "bench", "user": {"token": token}}],
        "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
        "current-context": "bench",
    }
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(document))
