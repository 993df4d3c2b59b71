"""Faults of nodes in the cluster under test: cordon, drain, cut off and kill."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from tests.cluster import kind
from tests.cluster.jobs import kubectl, until
from tests.cluster.local import cgroups, kubernetes_build, layout, network, node
from tests.cluster.shell import run, succeeds
from tests.patience import PATIENCE


class Machine(Protocol):
    """What a node runs on. Each of these may be called again, and in any order."""

    name: str

    def cut_off(self) -> None:
        """Drop all that goes to it and comes from it; what runs there runs on."""

    def reconnect(self) -> None:
        """Let it through again."""

    def kill(self) -> None:
        """As by pulling its plug."""

    def kill_containers(self) -> None:
        """Kill all containers with their runtime, which starts again: nobody has seen how a container ended."""

    def restore(self) -> None:
        """Start it, where it doesn't run, and connect it."""

    def runs(self, uid: str) -> bool:
        """Whether a process of that pod runs there, whatever the API says."""


class LocalMachine:
    """The second node of the local cluster: namespaces and processes of this machine."""

    _node = layout.NODES[1]
    name = _node.name

    def cut_off(self) -> None:
        network.cut_off(self._node)

    def reconnect(self) -> None:
        network.reconnect(self._node)

    def kill(self) -> None:
        node.kill(self._node)

    def kill_containers(self) -> None:
        node.kill_containers(self._node)

    def restore(self) -> None:
        node.restore(self._node, kubernetes_build.binaries())

    def runs(self, uid: str) -> bool:
        return bool(cgroups.pod_processes(uid, self._node.cgroup))


class KindMachine:
    """The second worker of a kind cluster: a container of Docker's."""

    name = f"{kind.NAME}-worker2"
    _barrier = (("PREROUTING", "--in-interface"), ("POSTROUTING", "--out-interface"))

    def cut_off(self) -> None:
        self.reconnect()
        for chain, direction in self._barrier:
            run(*self._iptables("--insert", chain, direction))

    def reconnect(self) -> None:
        for chain, direction in self._barrier:
            while succeeds(*self._iptables("--delete", chain, direction)):
                pass

    def kill(self) -> None:
        succeeds("docker", "kill", self.name)  # refused where it doesn't run

    def kill_containers(self) -> None:
        # systemd starts containerd again; the shims hold the containers.
        run("docker", "exec", self.name, "pkill", "-KILL", "^containerd")
        for name in ("python", "pause"):
            succeeds("docker", "exec", self.name, "pkill", "-KILL", name)

    def restore(self) -> None:
        run("docker", "start", self.name)
        self.reconnect()

    def runs(self, uid: str) -> bool:
        label = f"--label=io.kubernetes.pod.uid={uid}"
        return bool(run("docker", "exec", self.name, "crictl", "ps", "--quiet", label).strip())

    def _iptables(self, action: str, chain: str, direction: str) -> tuple[str, ...]:
        rule = (action, chain, direction, "eth0", "--jump", "DROP")
        return ("docker", "exec", self.name, "iptables", "--wait", "--table=mangle", *rule)


def machine() -> Machine:
    """The machine of the node that the tests do their worst to."""
    of_kind = Path(os.environ["KUBECONFIG"]) == kind.KUBECONFIG
    return KindMachine() if of_kind else LocalMachine()


def cordon(name: str) -> None:
    """No new pods for the node."""
    kubectl("cordon", name)


def uncordon(name: str) -> None:
    """The opposite of cordon."""
    kubectl("uncordon", name)


def drain(name: str, seconds: float = 180) -> None:
    """Cordon it, evict its pods as an administrator does, and wait until they are gone."""
    kubectl("drain", name, "--ignore-daemonsets", "--delete-emptydir-data", "--force",
            f"--timeout={seconds * PATIENCE:.0f}s", timeout=seconds + 10)  # fmt: skip


def is_ready(name: str) -> bool:
    """Whether its kubelet has said so, and nothing keeps pods from it."""
    found = json.loads(kubectl("get", "node", name, "--output=json"))
    return _ready(found)["status"] == "True" and not found["spec"].get("taints")


@contextmanager
def restored(victim: Machine) -> Iterator[Machine]:
    """Whatever is done to the node, at the end it is as before."""
    try:
        yield victim
    finally:
        begun = datetime.now(UTC)
        victim.restore()
        uncordon(victim.name)
        # Not what the API remembers of the kubelet from before.
        until(f"{victim.name} to report", lambda: _reported(victim.name) > begun, 90)
        until(f"{victim.name} to be ready", lambda: is_ready(victim.name), 60)


def _reported(name: str) -> datetime:
    found = json.loads(kubectl("get", "node", name, "--output=json"))
    return datetime.fromisoformat(_ready(found)["lastHeartbeatTime"])


def _ready(found: dict[str, Any]) -> dict[str, Any]:
    (condition,) = (c for c in found["status"]["conditions"] if c["type"] == "Ready")
    return dict(condition)
