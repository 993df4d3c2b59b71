"""A node: containerd, kubelet, kube-proxy. A node that is not the machine itself can be killed and restarted."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

from tests.cluster.local import cgroups, containerd, namespaces, network, processes
from tests.cluster.local.certificates import CA, certificate, key, kubeconfig
from tests.cluster.local.control_plane import kubectl
from tests.cluster.local.kubernetes_build import minor
from tests.cluster.local.layout import ADDRESS, DOMAIN, PODS, Node
from tests.cluster.local.processes import Component
from tests.cluster.local.state import SUPERVISOR
from tests.cluster.progress import ClusterError, wait_for

if TYPE_CHECKING:
    from pathlib import Path

RUNTIME_IN_FILE, CGROUP_V1_REFUSED, MEMORY_VOLUMES_SIZED = 27, 31, 22
"""The minor versions since which the kubelet's file names the runtime, and since which these defaults hold."""


def kubelet(node: Node, binaries: Path) -> Component:
    """The process; makes the node's cgroup and configuration first."""
    cgroups.create(node.cgroup)
    config = node.directory / "kubelet.json"
    version = minor(binaries)
    config.write_text(json.dumps(_configuration(node, version), indent=2))
    runtime = _runtime(node)
    flags = (
        ()
        if version >= RUNTIME_IN_FILE
        else (
            "--container-runtime=remote",
            f"--container-runtime-endpoint={runtime}",
            f"--image-service-endpoint={runtime}",
        )
    )
    return Component(
        f"kubelet-{node.name}",
        node.command(
            binaries / "kubelet",
            f"--config={config}",
            f"--kubeconfig={kubeconfig(f'kubelet-{node.name}')}",
            f"--hostname-override={node.name}",
            f"--node-ip={node.address}",
            f"--root-dir={node.directory / 'kubelet'}",
            f"--cert-dir={node.directory / 'kubelet-pki'}",
            *flags,
            "--runtime-cgroups=/",
        ),
        ready=lambda: is_ready(node),
    )


def proxy(node: Node, binaries: Path) -> Component:
    """Services, by iptables. The limits on connections are left as the machine has them."""
    return Component(
        f"kube-proxy-{node.name}",
        node.command(
            binaries / "kube-proxy",
            f"--kubeconfig={kubeconfig('proxy')}",
            f"--hostname-override={node.name}",
            "--proxy-mode=iptables",
            f"--cluster-cidr={PODS}",
            f"--healthz-bind-address={node.address}:10256",
            f"--metrics-bind-address={node.address}:10249",
            "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-established=0",
            "--conntrack-tcp-timeout-close-wait=0",
            "--iptables-min-sync-period=0s",
        ),
    )


def is_ready(node: Node) -> bool:
    """Whether the API says so of this very kubelet's lease."""
    status = '{.status.conditions[?(@.type=="Ready")].status}'
    try:
        return kubectl("get", "node", node.name, f"--output=jsonpath={status}", timeout=5) == "True"
    except ClusterError:
        return False


def kill(node: Node) -> None:
    """As by pulling its plug: silence at once, then SIGKILL to all that runs there, and nothing starts it again."""
    network.cut_off(node)
    SUPERVISOR.stop(*_names(node), first=signal.SIGKILL)

    def none_left() -> bool:
        processes.kill(left := namespaces.processes(node) | cgroups.processes(node.cgroup))
        return not left

    wait_for(f"the processes of {node.name} to end", none_left, seconds=15)


def kill_containers(node: Node) -> None:
    """SIGKILL to containerd, its shims and what runs in pods; containerd starts again, the kubelet goes on."""
    SUPERVISOR.stop(f"containerd-{node.name}", first=signal.SIGKILL)

    def none_left() -> bool:
        shims = {
            pid for pid in namespaces.processes(node) if "containerd-shim" in processes.command_line(pid)
        }
        processes.kill(left := shims | cgroups.processes(node.cgroup))
        return not left

    wait_for(f"the containers of {node.name} to end", none_left, seconds=15)
    SUPERVISOR.start(containerd.component(node))


def restore(node: Node, binaries: Path) -> None:
    """Connected again; where it was killed, started again with the disk it had. Can be called at any time."""
    if not all(SUPERVISOR.alive(name) for name in _names(node)):
        kill(node)  # what is left of it
        network.disconnect(node)
        containerd.forget(node)
        cgroups.remove(node.cgroup)
    network.set_up()
    for component in (containerd.component(node), kubelet(node, binaries), proxy(node, binaries)):
        SUPERVISOR.start(component)


def _names(node: Node) -> tuple[str, ...]:
    """Of its processes, the ones that start others first."""
    return tuple(f"{program}-{node.name}" for program in ("kubelet", "containerd", "kube-proxy"))


def _runtime(node: Node) -> str:
    return f"unix://{node.socket}"


def _configuration(node: Node, version: int) -> dict[str, object]:
    """The kubelet's file for a minor version, whose unknown fields the kubelet refuses."""
    of_version: dict[str, object] = {}
    if version >= RUNTIME_IN_FILE:
        of_version |= {"containerRuntimeEndpoint": _runtime(node), "imageServiceEndpoint": _runtime(node)}
    if version >= CGROUP_V1_REFUSED:
        of_version["failCgroupV1"] = False
    if version < MEMORY_VOLUMES_SIZED:
        # A volume in memory is as small as its sizeLimit says, as on by default since 1.22.
        of_version["featureGates"] = {"SizeMemoryBackedVolumes": True}
    return {
        **of_version,
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node.address,
        "healthzBindAddress": node.address,
        "readOnlyPort": 0,
        "tlsCertFile": str(certificate(f"kubelet-{node.name}-server")),
        "tlsPrivateKeyFile": str(key(f"kubelet-{node.name}-server")),
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(CA)},
        },
        "authorization": {"mode": "Webhook"},
        "clusterDNS": [ADDRESS],
        "clusterDomain": DOMAIN,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{node.cgroup}",
        "failSwapOn": False,
        "maxPods": 200,
        "volumePluginDir": str(node.directory / "volume-plugins"),
        # Tests wait for all of these.
        "syncFrequency": "10s",
        "nodeStatusUpdateFrequency": "4s",
        "configMapAndSecretChangeDetectionStrategy": "Watch",
        "kubeAPIQPS": 100,
        "kubeAPIBurst": 200,
        "eventRecordQPS": 0,
        # Images are loaded, not pulled: one that is collected would not come back.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "200Mi", "nodefs.available": "1Gi"},
    }
