"""The network and mount namespaces of a node that is not the machine itself.

The kubelet writes at fixed places and removes there what it does not know: two of them on one file system
would take away each other's logs. In a mount namespace each has these places to itself.
"""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

from tests.cluster.local.state import KUBELET_FIXED
from tests.cluster.shell import run, succeeds

if TYPE_CHECKING:
    from tests.cluster.local.layout import Node


def make(node: Node) -> None:
    """Make them unless they are there; they stay while a file is mounted for each, with or without a process."""
    files = (node.network_namespace, node.mount_namespace)
    if all(os.path.ismount(file) for file in files):
        return
    remove(node)
    folder = files[0].parent
    folder.mkdir(parents=True, exist_ok=True)
    # A mount namespace can be kept only where mounts don't spread to other namespaces.
    run("mount", "--bind", folder, folder)
    run("mount", "--make-private", folder)
    for file in files:
        file.touch()
    # A mount namespace can be kept in an older one only, and Linux 6.18 tells the older one by numbers that each
    # processor gives out by itself: the namespace of a second cluster is made on the same processor.
    kept = ("unshare", f"--net={files[0]}", f"--mount={files[1]}", "sh", "-ec", "\n".join(_mounts(node)))
    run("taskset", "--cpu-list", str(min(os.sched_getaffinity(0))), *kept)


def remove(node: Node) -> None:
    """Let go of them: when no process is in them they end, with all that is mounted and linked there."""
    folder = node.network_namespace.parent
    for path in (node.mount_namespace, node.network_namespace, folder):
        while succeeds("umount", "--lazy", path):
            pass


def processes(node: Node) -> set[int]:
    """The processes in the node's mount namespace: all but those in the containers of its pods."""
    if not os.path.ismount(node.mount_namespace):
        return set()
    wanted = node.mount_namespace.stat().st_ino
    return {
        pid
        for pid in map(int, filter(str.isdigit, os.listdir("/proc")))  # noqa: PTH208 names are enough
        if _mount_namespace(pid) == wanted
    }


def _mounts(node: Node) -> list[str]:
    commands = []
    for target in KUBELET_FIXED:
        source = node.directory / "fixed" / target.name
        source.mkdir(parents=True, exist_ok=True)
        target.mkdir(parents=True, exist_ok=True)
        commands.append(shlex.join(("mount", "--bind", str(source), str(target))))
    return commands


def _mount_namespace(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}/ns/mnt").st_ino  # noqa: PTH116 not a file's path
    except OSError:
        return None
