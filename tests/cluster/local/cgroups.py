"""The cgroup of a node in each hierarchy, which contains all pods of the node and no other process."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cluster.local.paths import NAME

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path("/sys/fs/cgroup")
PREFIX = f"{NAME}-"
CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids")
REMOVE_SECONDS = 10.0
CPU_SHARES, WEIGHT_OF_PODS = "cpu.shares", 16 * 1024
"""As many as 16 processes."""


def create(name: str) -> None:
    """The kubelet wants its root cgroup to be there; cpuset's is of no use until it has processors.

    By default a cgroup has the weight of one process beside it. All pods of a node would then get as much of the
    processors as one process of the tests, and a training in a pod would take a quarter of an hour on a busy machine.
    """
    for hierarchy in _hierarchies():
        folder = hierarchy / name
        folder.mkdir(exist_ok=True)
        for setting in ("cpuset.mems", "cpuset.cpus"):
            if (hierarchy / setting).exists() and not (folder / setting).read_text().strip():
                (folder / setting).write_text((hierarchy / setting).read_text())
        if (folder / CPU_SHARES).exists():
            (folder / CPU_SHARES).write_text(str(WEIGHT_OF_PODS))


def processes(name: str = f"{PREFIX}*") -> set[int]:
    """Every process in one of our cgroups, or in that one: what runs in pods."""
    return _processes_in(_below(name))


def pod_processes(uid: str, name: str = f"{PREFIX}*") -> set[int]:
    """Every process of one pod, in one of our cgroups, or in that one."""
    return _processes_in(folder for folder in _below(name) if f"pod{uid}" in folder.parts)


def remove(name: str = f"{PREFIX}*") -> None:
    """Remove our cgroups, or that one, from the leaves up; their processes have to be gone."""
    deadline = time.monotonic() + REMOVE_SECONDS
    while left := list(existing(name)):
        for folder in left:
            for path, _, _ in os.walk(folder, topdown=False):
                try:
                    os.rmdir(path)  # noqa: PTH106 a cgroup isn't empty, yet rmdir is how it goes
                except OSError:
                    continue  # a process that was killed is still leaving
        if time.monotonic() > deadline:
            return
        time.sleep(0.05)


def existing(name: str = f"{PREFIX}*") -> Iterator[Path]:
    """The top folder of each of our cgroups, or of that one."""
    for hierarchy in _hierarchies():
        yield from (path for path in hierarchy.glob(name) if path.is_dir())


def missing_controllers() -> list[str]:
    """Which of the version 1 hierarchies that the kubelet needs are not mounted."""
    return [name for name in CONTROLLERS if not (ROOT / name / "cgroup.procs").exists()]


def _below(name: str) -> Iterator[Path]:
    # The folder of a pod that ends may vanish during the search: os.walk skips such a folder, Path.glob raises.
    for top in existing(name):
        yield from (Path(path) for path, _, _ in os.walk(top))


def _processes_in(folders: Iterable[Path]) -> set[int]:
    found: set[int] = set()
    for folder in folders:
        try:
            found.update(map(int, (folder / "cgroup.procs").read_text().split()))
        except OSError as error:
            # Ended between the listing and the reading, or in the middle of that.
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                raise
    return found


def _hierarchies() -> list[Path]:
    # `unified`, version 2 beside the version 1 hierarchies, as well: runc makes its folders there too.
    return sorted(path.parent for path in ROOT.glob("*/cgroup.procs"))
