"""Counts the processes of this container that the kernel killed because of its memory limit."""

from __future__ import annotations

from pathlib import Path

from dtj_trainer.launch.cgroups import CGROUPS, OWN_CGROUPS, candidates


def oom_kills(cgroups: Path = CGROUPS, own_cgroups: Path = OWN_CGROUPS) -> int | None:
    """Return the cgroup's `oom_kill` counter (v1 or v2); None if it can't be read.

    Compare two readings: the counter starts with the container, not with the program.
    """
    for _, path in candidates("memory", "memory.oom_control", "memory.events", cgroups, own_cgroups):
        try:
            content = path.read_text()
        except OSError:
            continue
        for line in content.splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill" and value.strip().isdecimal():
                return int(value)
    return None
