"""One look at the counters of a pod's programs, of its container and of its GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dtj_trainer.launch.cgroups import Usage


@dataclass(frozen=True)
class ProcessReading:
    """The counters of one process. They include the counters of ended children for which the process has waited."""

    cpu_seconds: float
    rss: int
    """Bytes in memory, those that it shares with other processes included."""
    pss: int | None
    """Bytes in memory, of which those that n processes share count as an n-th; None if not read."""
    read: int | None
    """Bytes that it caused to be read from disks; None where the kernel does not say so."""
    written: int | None


@dataclass(frozen=True)
class ProgramReading:
    """The sums over a program's first process, `pid`, and all its descendants."""

    pid: int
    processes: int
    cpu_seconds: float
    rss: int
    pss: int | None
    read: int | None
    written: int | None


@dataclass(frozen=True)
class GpuReading:
    """What a GPU reports; None for what it does not report."""

    utilisation: float | None = None
    """The share of the last moments, up to a second, in which a kernel ran on the GPU: 0 to 1."""
    memory_used: int | None = None
    memory: int | None = None
    """The memory of the GPU in bytes."""
    power: float | None = None
    """Watts."""


@dataclass(frozen=True)
class DiskReading:
    """The file system of the workspace, in bytes."""

    used: int
    size: int


@dataclass(frozen=True)
class Counters:
    """All counters at one time."""

    at: float
    """Monotonic seconds."""
    programs: Mapping[str, ProgramReading]
    """By rank, or by `<role>-<index>` for a program that is no rank."""
    container: Usage = field(default_factory=Usage)
    disk: DiskReading | None = None
    gpus: Mapping[str, GpuReading] = field(default_factory=dict)
    """By number, as NVIDIA's driver counts them in the container."""


def summed(pid: int, processes: Iterable[ProcessReading]) -> ProgramReading | None:
    """Return the sums over the processes of a program; None without a process.

    A sum of which a part is not known is None. A process that ends moves its counters to its parent, so that a
    difference of two sums has the processor time of processes that ended in between.
    """
    found = list(processes)
    if not found:
        return None
    return ProgramReading(
        pid,
        len(found),
        sum(each.cpu_seconds for each in found),
        sum(each.rss for each in found),
        _sum(each.pss for each in found),
        _sum(each.read for each in found),
        _sum(each.written for each in found),
    )


def _sum(values: Iterable[int | None]) -> int | None:
    known = list(values)
    return None if None in known else sum(value for value in known if value is not None)
