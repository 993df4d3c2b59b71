"""The cgroup of this container: memory, processor time and limits, in cgroup v1 and v2."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")
_UNLIMITED = 1 << 60
"""In cgroup v1, a limit of about 2**63 means no limit."""


@dataclass(frozen=True)
class Usage:
    """What a container uses and may use. A value is None where the kernel does not show it, or has no limit."""

    cpu_seconds: float | None = None
    """Processor time since the start of the container, in seconds."""
    cpu_limit: float | None = None
    """The limit in processors."""
    memory: int | None = None
    """Bytes that the kernel can't take back at once: the working set, which `kubectl top` and the kubelet show."""
    memory_limit: int | None = None
    """The limit in bytes."""


def candidates(controller: str, v1: str, v2: str, cgroups: Path, own_cgroups: Path) -> list[tuple[int, Path]]:
    """List the files to try, each with the version of its cgroup. `v1` and `v2`: names of the file.

    A container's own cgroup appears as the root; elsewhere the process has a path below the root.
    """
    v1_path = v2_path = ""
    try:
        for line in own_cgroups.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                v2_path = path.lstrip("/")
            elif controller in controllers.split(","):
                v1_path = path.lstrip("/")
    except (OSError, ValueError):
        pass
    of_v1 = cgroups / controller
    return [
        (1, of_v1 / v1_path / v1),
        (1, of_v1 / v1),
        (2, cgroups / v2_path / v2),
        (2, cgroups / v2),
    ]


def usage(cgroups: Path = CGROUPS, own_cgroups: Path = OWN_CGROUPS) -> Usage:
    """Read what this container uses and may use."""

    def read(controller: str, v1: str, v2: str) -> tuple[int, str]:
        for version, path in candidates(controller, v1, v2, cgroups, own_cgroups):
            try:
                return version, path.read_text()
            except OSError:
                continue
        return 0, ""

    version, text = read("cpuacct", "cpuacct.usage", "cpu.stat")
    spent = _number(text) if version == 1 else _named(text, "usage_usec")
    cpu_seconds = None if spent is None else spent / (1e9 if version == 1 else 1e6)
    version, text = read("cpu", "cpu.cfs_quota_us", "cpu.max")
    if version == 1:
        text = f"{text} {read('cpu', 'cpu.cfs_period_us', '')[1]}"
    used = _number(read("memory", "memory.usage_in_bytes", "memory.current")[1])
    version, statistics = read("memory", "memory.stat", "memory.stat")
    reclaimable = _named(statistics, "total_inactive_file" if version == 1 else "inactive_file")
    limit = _number(read("memory", "memory.limit_in_bytes", "memory.max")[1])
    return Usage(
        cpu_seconds=cpu_seconds,
        cpu_limit=_quota(text),
        memory=None if used is None else max(used - (reclaimable or 0), 0),
        memory_limit=limit if limit is not None and limit < _UNLIMITED else None,
    )


def _number(text: str) -> int | None:
    return int(text) if text.strip().isdecimal() else None


def _named(text: str, name: str) -> int | None:
    """Return the value of a line `name value`."""
    values = dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
    return _number(values.get(name, ""))


def _quota(text: str) -> float | None:
    """Return the processors that `quota period` allows; None for `max` and -1, which mean no limit."""
    quota, *period = text.split() or [""]
    return int(quota) / int(period[0]) if quota.isdecimal() and period and period[0].isdecimal() else None


# oom_kills counts the processes of this container that the kernel killed because of its memory limit.


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
