"""Removal of the cluster, complete or partial, with a report of what is left."""

from __future__ import annotations

import contextlib
import shutil
import signal
import time
from pathlib import Path

from tests.cluster.local import cgroups, checks, containerd, network, processes
from tests.cluster.local.layout import NODES
from tests.cluster.local.paths import IMAGES, RUN
from tests.cluster.local.state import SUPERVISOR, made_here
from tests.cluster.progress import ClusterError, step, wait_for
from tests.cluster.shell import succeeds

REMOVE_SECONDS = 5.0
# containerd's shims make these wherever its state lies.
SHIM_SOCKETS = (Path("/run/containerd/s"), Path("/run/containerd"))


def down() -> None:
    """End it all; fails with a list where something is left."""
    checks.check_root()
    with step("taking the cluster down"):
        runtimes = [f"containerd-{node.name}" for node in NODES]
        # All but the containerds, or the kubelets would start anew what is killed next.
        first = [name for name in SUPERVISOR.names() if name not in runtimes]
        # At once: what they hold is thrown away, and the API server would wait for its watchers.
        SUPERVISOR.stop(*first, first=signal.SIGKILL)
        for node, runtime in zip(NODES, runtimes, strict=True):
            containerd.empty(node, running=SUPERVISOR.alive(runtime), kill=_kill_pods)
        SUPERVISOR.stop(*SUPERVISOR.names())
        _kill_pods()
        processes.kill(processes.marked(RUN))
        _unmount()
        network.tear_down()
        cgroups.remove()
        _remove_files()
    left = leftovers()
    if left:
        raise ClusterError("left behind:\n" + "\n".join(f"  {line}" for line in left))


def leftovers() -> list[str]:
    """Every process, mount, network device, iptables rule and cgroup of the cluster's that there is."""
    return [
        *(f"process {pid}: {command[:120]}" for pid, command in processes.marked(RUN).items()),
        *(f"process {pid} of a pod" for pid in cgroups.processes()),
        *(f"mount {path}" for path in _mounts()),
        *(f"network device {name}" for name in network.devices()),
        *network.rules(),
        *(f"cgroup {path}" for path in cgroups.existing()),
        *([f"directory {RUN}"] if RUN.exists() else []),
    ]


def _kill_pods() -> None:
    """Until none is left: a process may fork while its parent is killed."""

    def none_left() -> bool:
        processes.kill(cgroups.processes())
        return not cgroups.processes()

    wait_for("the pods' processes to end", none_left, seconds=15)


def _mounts() -> list[str]:
    """Mounts in the cluster's directories, the innermost first."""
    inside = (f"{RUN}/", f"{IMAGES}/")
    lines = Path("/proc/self/mounts").read_text().splitlines()
    points = [line.split()[1].encode().decode("unicode_escape") for line in lines]
    return [point for point in reversed(points) if point.startswith(inside)]


def _unmount() -> None:
    for point in _mounts():
        succeeds("umount", "--lazy", point)


def _remove_files() -> None:
    if _mounts():
        return  # what a mount leads to is not ours to delete; `leftovers` names it
    for folder in made_here():
        shutil.rmtree(folder, ignore_errors=True)
    deadline = time.monotonic() + REMOVE_SECONDS
    while RUN.exists() and time.monotonic() < deadline:
        shutil.rmtree(RUN, ignore_errors=True)  # again, where something was still being written
    for folder in SHIM_SOCKETS:
        with contextlib.suppress(OSError):
            folder.rmdir()  # unless another containerd uses it
