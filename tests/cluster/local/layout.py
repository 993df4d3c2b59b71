"""The addresses and nodes of the local cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.cluster.local.paths import NAME, PREFIX, PREFIX_VARIABLE, RUN

if TYPE_CHECKING:
    from pathlib import Path

_FIRST = PREFIX.removeprefix("10.")
if PREFIX == _FIRST or not _FIRST.isdecimal() or int(_FIRST) > 252 or int(_FIRST) % 4:
    raise ValueError(f"{PREFIX_VARIABLE}={PREFIX}: must be 10.N, where N is a multiple of 4 up to 252")
_PODS, _SERVICES, _MACHINE = (f"10.{int(_FIRST) + number}" for number in (1, 2, 3))
NETWORK = f"{PREFIX}.0.0/14"
"""All of the cluster's addresses: pods 10.201, services 10.202, the machine itself 10.203, with the usual prefix."""
PODS = f"{_PODS}.0.0/16"
SERVICES = f"{_SERVICES}.0.0/16"
API_SERVICE = f"{_SERVICES}.0.1"
ADDRESS = f"{_MACHINE}.0.1"
"""Where the control plane, DNS and S3 listen: on this machine only, and within reach of the pods."""
API_PORT = 6443
API = f"https://{ADDRESS}:{API_PORT}"
DOMAIN = "cluster.local"
HOST_BRIDGE = f"{NAME}-host"


@dataclass(frozen=True)
class Node:
    """A kubelet and a containerd; from the second node on in namespaces of their own, behind a link."""

    name: str
    address: str
    pods: str
    bridge: str
    gateway: str | None = None
    """The machine's end of the link; None for the node that is the machine itself."""

    @property
    def directory(self) -> Path:
        """What the node writes, images aside."""
        return RUN / "nodes" / self.name

    @property
    def socket(self) -> Path:
        """Where its containerd listens."""
        return self.directory / "containerd.sock"

    @property
    def cgroup(self) -> str:
        """The cgroup all of its pods are in, in each hierarchy."""
        return f"{NAME}-{self.name}"

    @property
    def link(self) -> str:
        """The machine's end of the pair of devices that leads to the node."""
        return f"{NAME}-{self.name}"

    @property
    def network_namespace(self) -> Path:
        """The file that keeps it."""
        return self.directory / "namespaces" / "network"

    @property
    def mount_namespace(self) -> Path:
        """The file that keeps it."""
        return self.directory / "namespaces" / "mount"

    def command(self, *words: str | Path) -> tuple[str | Path, ...]:
        """The command as it is run on this node."""
        if self.gateway is None:
            return words
        # Not `ip netns exec`: it mounts a new /sys, and the cgroups would be out of sight.
        namespaces = (f"--net={self.network_namespace}", f"--mount={self.mount_namespace}")
        return ("nsenter", *namespaces, "--", *words)


NODES = (
    Node(name="node1", address=ADDRESS, pods=f"{_PODS}.1.0/24", bridge=f"{NAME}-pods1"),
    Node(
        name="node2",
        address=f"{_MACHINE}.0.6",
        pods=f"{_PODS}.2.0/24",
        bridge=f"{NAME}-pods2",
        gateway=f"{_MACHINE}.0.5",
    ),
)
LINK_PREFIX = 30
"""Length of the prefix that the two ends of a link share."""
