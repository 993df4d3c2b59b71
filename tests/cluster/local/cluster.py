"""Bring-up of the whole local cluster in order. Parts that run already stay."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.local import (
    certificates,
    checks,
    containerd,
    control_plane,
    dns,
    kubernetes_build,
    network,
    node,
    packages,
    pause,
    state,
    teardown,
)
from tests.cluster.local.layout import ADDRESS, NODES
from tests.cluster.local.paths import ADMIN_KUBECONFIG, RUN
from tests.cluster.local.state import SUPERVISOR
from tests.cluster.objectstore import ObjectStore
from tests.cluster.progress import ClusterError, note, step

STORE = ObjectStore(RUN / "s3", ADDRESS)


def up() -> None:
    """Bring up what is not; what can't be repaired is taken down and started anew."""
    checks.check_root()
    if state.is_stale():
        teardown.down()
    if healthy():
        return
    checks.check_machine()
    packages.install_missing()
    binaries = kubernetes_build.binaries()
    repair = RUN.exists()
    try:
        _start(binaries)
    except ClusterError as error:
        if not repair:
            raise
        note(f"the cluster can't be repaired, starting anew: {error}")
        teardown.down()
        _start(binaries)


def _start(binaries: Path) -> None:
    """Start each part that doesn't run. Each waits by itself for the ones it needs, and takes its time."""
    state.begin()
    with step("starting the cluster") as say:
        certificates.make(NODES)
        network.set_up()
        store, apiserver = STORE.component(), control_plane.apiserver(binaries)
        runtimes = [containerd.component(one) for one in NODES]
        kubelets = [node.kubelet(one, binaries) for one in NODES]
        for component in (control_plane.etcd(), apiserver, store, *runtimes):
            SUPERVISOR.start(component)
        for runtime, one in zip(runtimes, NODES, strict=True):
            SUPERVISOR.wait(runtime)
            if not containerd.has(one, pause.archive()):
                containerd.import_image(one, pause.archive())
        for kubelet in kubelets:
            SUPERVISOR.start(kubelet)
        say("waiting for the API")
        SUPERVISOR.wait(apiserver)
        for component in (
            control_plane.controller_manager(binaries),
            control_plane.scheduler(binaries),
            *(node.proxy(one, binaries) for one in NODES),
            dns.server(),
        ):
            SUPERVISOR.start(component)
        dns.grant()
        SUPERVISOR.ensure(dns.watcher())
        SUPERVISOR.wait(store)
        STORE.fill()
        say(f"waiting for {', '.join(one.name for one in NODES)} to be ready")
        for kubelet in kubelets:
            SUPERVISOR.wait(kubelet)


def healthy() -> bool:
    """Whether all of it runs and serves."""
    names = SUPERVISOR.names()
    return (
        set(names) >= _expected()
        and all(SUPERVISOR.alive(name) for name in names)
        and ADMIN_KUBECONFIG.exists()
        and STORE.ready()
        and control_plane.api_ready()
        and all(node.is_ready(one) for one in NODES)
    )


def _expected() -> set[str]:
    each = ("containerd", "kubelet", "kube-proxy")
    plane = {"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"}
    return {
        *plane,
        "dnsmasq",
        "dns-watcher",
        "seaweedfs",
        *(f"{a}-{one.name}" for a in each for one in NODES),
    }
