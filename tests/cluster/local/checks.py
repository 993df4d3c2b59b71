"""Checks of this machine before anything is started: whether the machine can run the cluster."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import NoReturn

from tests.cluster.local import cgroups, network
from tests.cluster.progress import ClusterError
from tests.cluster.shell import succeeds


def check_root() -> None:
    """What even to look at a cluster that is up takes."""
    if sys.platform != "linux":
        _refuse(["it needs Linux"])
    if os.geteuid() != 0:
        _refuse(["it needs root, for network devices, mounts and cgroups: `sudo make cluster`"])


def check_machine() -> None:
    """Name everything that is missing."""
    reasons = []
    if not _is_debian_12():
        reasons.append("it needs Debian 12 (bookworm) and apt, for the packages it runs on")
    if shutil.which("kubectl") is None:
        reasons.append("kubectl is missing")
    if "overlay" not in Path("/proc/filesystems").read_text() and not succeeds("modprobe", "overlay"):
        reasons.append("the kernel has no overlayfs")
    controllers = cgroups.missing_controllers()
    if controllers:
        reasons.append(f"cgroup version 1 hierarchies are not mounted: {', '.join(controllers)}")
    if network.foreign_kubernetes():
        reasons.append(
            "another Kubernetes has its iptables rules here (chains KUBE-*): a second cluster needs a network"
            " namespace of its own, see tests/cluster/local/README.md"
        )
    if reasons:
        _refuse(reasons)


def _refuse(reasons: list[str]) -> NoReturn:
    lines = "".join(f"  - {reason}\n" for reason in reasons)
    raise ClusterError(
        f"a local cluster can't run here:\n{lines}"
        "Where Docker and kind are installed: `make cluster CLUSTER=kind`."
    )


def _is_debian_12() -> bool:
    release = Path("/etc/os-release")
    there = release.exists() and "VERSION_CODENAME=bookworm" in release.read_text()
    return there and shutil.which("apt-get") is not None
