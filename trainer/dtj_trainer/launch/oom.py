"""Counts the processes of this container that the kernel killed because of its memory limit."""

from __future__ import annotations

from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")


def oom_kills(cgroups: Path = CGROUPS, own_cgroups: Path = OWN_CGROUPS) -> int | None:
    """Return the cgroup's `oom_kill` counter (v1 or v2); None if it can't be read.

    Compare two readings: the counter starts with the container, not with the program.
    """
    for path in _candidates(cgroups, own_cgroups):
        try:
            content = path.read_text()
        except OSError:
            continue
        for line in content.splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill" and value.strip().isdecimal():
                return int(value)
    return None


def _candidates(cgroups: Path, own_cgroups: Path) -> list[Path]:
    """List the files to try: a container's own cgroup appears as the root; elsewhere the process has a path below
    it.
    """
    v1_path = v2_path = ""
    try:
        for line in own_cgroups.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                v2_path = path.lstrip("/")
            elif "memory" in controllers.split(","):
                v1_path = path.lstrip("/")
    except (OSError, ValueError):
        pass
    v1, v2 = cgroups / "memory", cgroups
    return [
        v1 / v1_path / "memory.oom_control",
        v1 / "memory.oom_control",
        v2 / v2_path / "memory.events",
        v2 / "memory.events",
    ]
