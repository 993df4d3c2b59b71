"""Reads the counters of a pod's programs from /proc, cgroups, the disk and NVML: the edge of the sampling."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import psutil

from dtj_trainer import contract
from dtj_trainer.launch import cgroups
from dtj_trainer.launch.process_tree import children_by_parent, environment_of
from dtj_trainer.launch.settings import Settings
from dtj_trainer.launch.world_check import LOCAL_RANK
from dtj_trainer.utilisation.gpus import Gpus
from dtj_trainer.utilisation.processes import RankOf, by_program, no_rank
from dtj_trainer.utilisation.readings import DiskReading, ProcessReading, Reading, summed

MOST_OF_A_CORE_FOR_PSS = 0.0005
"""The share of a processor for PSS. The kernel looks at each page of a process for it, in 10 GB for 0.1 s."""
_CONTAINER = 1
"""The first process of a container."""


class Sources:
    """The counters of one pod. Use it in one thread."""

    def __init__(self, settings: Settings, gpus: Gpus | None = None) -> None:
        self._root = settings.root
        self._gpus = gpus or Gpus()
        self._in_container = not settings.own_root
        """Whether the cgroup is the pod's. Else it is that of a session on this machine."""
        self._everything = settings.ssh_after_restore and not settings.local_workers and self._in_container
        """Whether the ranks are started by a command's own mpirun, so that no program is registered."""
        self._rank_of = _ranks_below(settings)
        self._pss_at = 0.0

    def read(self, programs: Mapping[str, int]) -> Reading:
        """Read all counters. programs: the first process of each registered program."""
        if not programs and self._everything:
            programs = {"": _CONTAINER}
        found = by_program(programs, children_by_parent(), self._rank_of) if programs else {}
        found.pop("", None)
        with_pss = time.monotonic() >= self._pss_at
        began = time.thread_time()
        readings = {
            name: reading
            for name, pids in found.items()
            if (reading := summed(pids[0], _processes(pids, with_pss=with_pss))) is not None
        }
        if with_pss:
            self._pss_at = time.monotonic() + (time.thread_time() - began) / MOST_OF_A_CORE_FOR_PSS
        if not readings:
            return Reading(time.monotonic(), {})
        return Reading(
            time.monotonic(),
            readings,
            cgroups.usage() if self._in_container else cgroups.Usage(),
            _disk(self._root),
            self._gpus.read(),
        )


def _ranks_below(settings: Settings) -> RankOf:
    """Return how ranks are recognized that a command starts."""
    if settings.ssh_after_restore:
        return lambda pid: _text(contract.rank_of(environment_of(pid)))
    if not settings.pod.slots or LOCAL_RANK in settings.environment:
        return no_rank  # The job's own variable: a process that has it may be no rank.

    def of_torch(pid: int) -> str | None:
        environment = environment_of(pid)
        return _text(contract.rank_of(environment)) if LOCAL_RANK in environment else None

    return of_torch


def _text(rank: int | None) -> str | None:
    return None if rank is None else str(rank)


def _processes(pids: Sequence[int], *, with_pss: bool) -> Iterator[ProcessReading]:
    """Yield the counters of the processes that still run."""
    for pid in pids:
        try:
            process = psutil.Process(pid)
            with process.oneshot():
                if process.status() == psutil.STATUS_ZOMBIE:
                    continue
                cpu = process.cpu_times()
                disk = _allowed(process.io_counters)
                memory = _allowed(process.memory_full_info) if with_pss else None
                yield ProcessReading(
                    cpu.user + cpu.system + cpu.children_user + cpu.children_system,
                    process.memory_info().rss,
                    None if memory is None else memory.pss,
                    None if disk is None else disk.read_bytes,
                    None if disk is None else disk.write_bytes,
                )
        except psutil.NoSuchProcess:
            continue


_Answer = TypeVar("_Answer")


def _allowed(ask: Callable[[], _Answer]) -> _Answer | None:
    """Return the answer, or None where the kernel refuses it: to another user, or in a sandbox."""
    try:
        return ask()
    except (psutil.AccessDenied, NotImplementedError, OSError):
        return None


def _disk(folder: Path) -> DiskReading | None:
    try:
        usage = psutil.disk_usage(str(folder))
    except OSError:
        return None
    return DiskReading(usage.used, usage.total)
