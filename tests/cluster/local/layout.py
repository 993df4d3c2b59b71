"""What the cluster is made of: its addresses and its nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.cluster.local.paths import RUN

if TYPE_CHECKING:
    from pathlib import Path

NETWORK = "10.200.0.0/14"
"""All of the cluster's addresses: pods 10.201, services 10.202, the machine itself 10.203."""
PODS = "10.201.0.0/16"
SERVICES = "10.202.0.0/16"
API_SERVICE = "10.202.0.1"
ADDRESS = "10.203.0.1"
"""Where the control plane, DNS and S3 listen: on this machine only, and within reach of the pods."""
API_PORT = 6443
API = f"https://{ADDRESS}:{API_PORT}"
DOMAIN = "cluster.local"
HOST_BRIDGE = "dtj-host"


@dataclass(frozen=True)
class Node:
    """A kubelet and a containerd; with a network namespace of its own from the second node on."""

    name: str
    address: str
    pods: str
    bridge: str
    network_namespace: str | None = None

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
        return f"dtj-{self.name}"

    def command(self, *words: str | Path) -> tuple[str | Path, ...]:
        """The command as it is run on this node."""
        if self.network_namespace is None:
            return words
        # Not `ip netns exec`: it mounts a new /sys, and the cgroups would be out of sight.
        return ("nsenter", f"--net=/run/netns/{self.network_namespace}", "--", *words)


NODES = (Node(name="node1", address=ADDRESS, pods="10.201.1.0/24", bridge="dtj-pods1"),)
