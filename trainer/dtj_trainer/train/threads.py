"""The number of threads of a rank, if several ranks share a machine."""

from __future__ import annotations

import os
from pathlib import Path

_QUOTA_V2 = Path("/sys/fs/cgroup/cpu.max")
_QUOTA_V1 = Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
_PERIOD_V1 = Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us")


def threads_per_rank(ranks_here: int) -> int | None:
    """Divide the container's processors among its ranks; None where OMP_NUM_THREADS is set."""
    if os.environ.get("OMP_NUM_THREADS"):
        return None
    return max(int(available_processors() / ranks_here), 1)


def available_processors() -> float:
    """Return the processors that this process may use: the smaller of its CPU affinity and the container's limit."""
    usable = float(len(os.sched_getaffinity(0)))
    return min(usable, cpu_limit() or usable)


def cpu_limit() -> float | None:
    """Return the container's limit in processors; None where there is no limit."""
    try:
        if _QUOTA_V2.exists():
            quota, period = _QUOTA_V2.read_text().split()
        else:
            quota, period = _QUOTA_V1.read_text(), _PERIOD_V1.read_text()
        return float(quota) / float(period) if float(quota) > 0 else None
    except (OSError, ValueError):
        return None  # `max` is no number, and stands for no limit.
