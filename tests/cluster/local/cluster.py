"""The whole local cluster: up in order, each part only where it does not run already."""

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
)
from tests.cluster.local.layout import ADDRESS, NODES
from tests.cluster.local.paths import ADMIN_KUBECONFIG, RUN
from tests.cluster.local.processes import Supervisor
from tests.cluster.objectstore import ObjectStore
from tests.cluster.progress import step

SUPERVISOR = Supervisor(RUN)
STORE = ObjectStore(RUN / "s3", ADDRESS)
# Fixed in this version of the kubelet, whatever its --root-dir.
KUBELET_FIXED = (Path("/var/log/containers"), Path("/var/log/pods"), Path("/var/lib/kubelet"))
MADE_HERE = RUN / "made-here"


def up() -> None:
    """Bring up what is not; a component that died is started again with what it had."""
    if healthy():
        return
    checks.check_machine()
    packages.install_missing()
    binaries = kubernetes_build.binaries()
    RUN.mkdir(parents=True, exist_ok=True, mode=0o755)
    if not MADE_HERE.exists():
        MADE_HERE.write_text("".join(f"{folder}\n" for folder in KUBELET_FIXED if not folder.exists()))
    with step("starting the cluster") as say:
        certificates.make(NODES)
        network.set_up()
        etcd, store = control_plane.etcd(), STORE.component()
        runtimes = [containerd.component(one) for one in NODES]
        for component in (etcd, store, *runtimes):
            SUPERVISOR.start(component)
        # Each waits by itself for the one it needs, and they take their time before that.
        apiserver = control_plane.apiserver(binaries)
        kubelets = [node.kubelet(one, binaries) for one in NODES]
        SUPERVISOR.start(apiserver)
        for runtime, one in zip(runtimes, NODES, strict=True):
            SUPERVISOR.wait(runtime)
            containerd.import_image(one, pause.archive())
        for kubelet in kubelets:
            SUPERVISOR.start(kubelet)
        say("waiting for the API")
        SUPERVISOR.wait(apiserver)
        SUPERVISOR.start(control_plane.controller_manager(binaries))
        SUPERVISOR.start(control_plane.scheduler(binaries))
        for component in (*(node.proxy(one, binaries) for one in NODES), dns.server()):
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


def made_here() -> list[Path]:
    """The folders outside of the cluster's own that were not there before it."""
    return [Path(line) for line in MADE_HERE.read_text().splitlines()] if MADE_HERE.exists() else []


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
