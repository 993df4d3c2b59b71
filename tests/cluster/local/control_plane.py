"""etcd, the API server, the controllers and the scheduler, each with a separate identity."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.cluster.local.certificates import (
    CA,
    CA_KEY,
    SERVICE_ACCOUNT_KEY,
    SERVICE_ACCOUNT_PUBLIC,
    certificate,
    key,
    kubeconfig,
)
from tests.cluster.local.kubernetes_build import minor
from tests.cluster.local.layout import ADDRESS, API, API_PORT, DOMAIN, PODS, SERVICES
from tests.cluster.local.paths import ADMIN_KUBECONFIG, RUN
from tests.cluster.local.processes import Component
from tests.cluster.shell import run, succeeds

if TYPE_CHECKING:
    from pathlib import Path

ETCD = f"https://{ADDRESS}:2379"
ISSUER = f"https://kubernetes.default.svc.{DOMAIN}"
# Tests make and delete many objects at once; the defaults are meant for clusters that are never idle.
FAST_CLIENT = ("--kube-api-qps=200", "--kube-api-burst=400")


def etcd() -> Component:
    """The store. Its data needn't outlive the machine, so it needn't wait for the disk."""
    peer = f"https://{ADDRESS}:2380"
    return Component(
        "etcd",
        (
            "etcd",
            "--name=local",
            f"--data-dir={RUN / 'etcd'}",
            "--unsafe-no-fsync",
            f"--listen-client-urls={ETCD}",
            f"--advertise-client-urls={ETCD}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=local={peer}",
            "--client-cert-auth",
            f"--trusted-ca-file={CA}",
            f"--cert-file={certificate('etcd')}",
            f"--key-file={key('etcd')}",
            "--peer-client-cert-auth",
            f"--peer-trusted-ca-file={CA}",
            f"--peer-cert-file={certificate('etcd')}",
            f"--peer-key-file={key('etcd')}",
            "--logger=zap",
            "--log-level=warn",
        ),
    )


def apiserver(binaries: Path) -> Component:
    """The API: RBAC and the node authorizer, the default admission plugins and NodeRestriction."""
    return Component(
        "kube-apiserver",
        (
            binaries / "kube-apiserver",
            f"--bind-address={ADDRESS}",
            f"--advertise-address={ADDRESS}",
            f"--secure-port={API_PORT}",
            *_without_tls(binaries, "--insecure-port=0"),
            f"--cert-dir={RUN / 'apiserver'}",
            f"--tls-cert-file={certificate('apiserver')}",
            f"--tls-private-key-file={key('apiserver')}",
            f"--client-ca-file={CA}",
            f"--etcd-servers={ETCD}",
            f"--etcd-cafile={CA}",
            f"--etcd-certfile={certificate('etcd-client')}",
            f"--etcd-keyfile={key('etcd-client')}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            f"--service-account-issuer={ISSUER}",
            f"--service-account-signing-key-file={SERVICE_ACCOUNT_KEY}",
            f"--service-account-key-file={SERVICE_ACCOUNT_PUBLIC}",
            f"--service-cluster-ip-range={SERVICES}",
            f"--kubelet-certificate-authority={CA}",
            f"--kubelet-client-certificate={certificate('apiserver-kubelet-client')}",
            f"--kubelet-client-key={key('apiserver-kubelet-client')}",
            # A node's name needn't resolve on this machine.
            "--kubelet-preferred-address-types=InternalIP",
            "--allow-privileged",
            "--profiling=false",
        ),
        ready=api_ready,
    )


def controller_manager(binaries: Path) -> Component:
    """The controllers, quick to collect garbage, to empty namespaces and to see that a node is lost."""
    config = kubeconfig("controller-manager")
    return Component(
        "kube-controller-manager",
        (
            binaries / "kube-controller-manager",
            f"--kubeconfig={config}",
            f"--authentication-kubeconfig={config}",
            f"--authorization-kubeconfig={config}",
            f"--bind-address={ADDRESS}",
            f"--cert-dir={RUN / 'controller-manager'}",
            *_without_tls(binaries, "--port=0"),
            "--leader-elect=false",
            "--use-service-account-credentials",
            f"--root-ca-file={CA}",
            f"--service-account-private-key-file={SERVICE_ACCOUNT_KEY}",
            f"--cluster-signing-cert-file={CA}",
            f"--cluster-signing-key-file={CA_KEY}",
            f"--cluster-cidr={PODS}",
            f"--flex-volume-plugin-dir={RUN / 'volume-plugins'}",
            "--concurrent-gc-syncs=40",
            "--concurrent-namespace-syncs=30",
            "--node-monitor-period=2s",
            "--node-monitor-grace-period=16s",
            *FAST_CLIENT,
        ),
    )


def scheduler(binaries: Path) -> Component:
    """The scheduler."""
    config = kubeconfig("scheduler")
    return Component(
        "kube-scheduler",
        (
            binaries / "kube-scheduler",
            f"--kubeconfig={config}",
            f"--authentication-kubeconfig={config}",
            f"--authorization-kubeconfig={config}",
            f"--bind-address={ADDRESS}",
            f"--cert-dir={RUN / 'scheduler'}",
            *_without_tls(binaries, "--port=0"),
            "--leader-elect=false",
            *FAST_CLIENT,
        ),
    )


def _without_tls(binaries: Path, flag: str) -> tuple[str, ...]:
    """The flag that closes the port without TLS, which servers since 1.24 have no more."""
    return (flag,) if minor(binaries) < 24 else ()


def kubectl(*words: str | Path, stdin: str | None = None, timeout: float = 30) -> str:
    """kubectl as the administrator."""
    return run("kubectl", f"--kubeconfig={ADMIN_KUBECONFIG}", *words, stdin=stdin, timeout=timeout)


def api_ready() -> bool:
    """Whether the server answers, with all that it does after its start done."""
    return succeeds(
        "kubectl", f"--kubeconfig={ADMIN_KUBECONFIG}", f"--server={API}", "get", "--raw=/readyz", timeout=5
    )
