"""Reads the counters of a pod's programs from /proc, cgroups, the disk and NVML: the edge of the sampling."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psutil

from dtj_trainer import contract
from dtj_trainer.launch import cgroups
from dtj_trainer.launch.accelerators import has_nvidia
from dtj_trainer.launch.processes import children_by_parent, environment_of
from dtj_trainer.launch.settings import Settings
from dtj_trainer.launch.world_check import LOCAL_RANK
from dtj_trainer.utilisation.readings import Counters, DiskReading, GpuReading, ProcessReading, summed

# Gpus reads NVIDIA's GPUs by NVML, the library behind nvidia-smi.

log = logging.getLogger(__name__)


def _pynvml() -> Any:
    import pynvml

    return pynvml


class Gpus:
    """The GPUs that the container has. Where NVML does not answer, there are no readings, and one warning."""

    def __init__(self, devices: Path = Path("/dev"), nvml: Callable[[], Any] = _pynvml) -> None:
        """devices: the folder of device files. nvml: returns the module pynvml (of nvidia-ml-py)."""
        self._told = False
        self._handles: dict[str, Any] | None = None
        self._nvml: Any = None
        if has_nvidia(devices):
            try:
                self._nvml = nvml()
            except ImportError:
                self._tell("nvidia-ml-py is not installed here")

    def read(self) -> Mapping[str, GpuReading]:
        """Return the reading of each GPU, by number; empty where none can be read."""
        if self._nvml is None:
            return {}
        try:
            if self._handles is None:
                self._handles = self._open()
            return {number: self._reading(handle) for number, handle in self._handles.items()}
        except self._nvml.NVMLError as error:
            self._tell(str(error))
            return {}

    def _open(self) -> dict[str, Any]:
        self._nvml.nvmlInit()
        numbers = range(self._nvml.nvmlDeviceGetCount())
        return {str(number): self._nvml.nvmlDeviceGetHandleByIndex(number) for number in numbers}

    def _reading(self, handle: Any) -> GpuReading:
        nvml = self._nvml
        rates = self._supported(nvml.nvmlDeviceGetUtilizationRates, handle)
        memory = self._supported(self._memory, handle)
        power = self._supported(nvml.nvmlDeviceGetPowerUsage, handle)
        return GpuReading(
            utilisation=None if rates is None else rates.gpu / 100,
            memory_used=None if memory is None else memory.used,
            memory=None if memory is None else memory.total,
            power=None if power is None else power / 1000,
        )

    def _memory(self, handle: Any) -> Any:
        """Return total and used memory, without what the driver reserves: what nvidia-smi shows."""
        nvml = self._nvml
        try:
            return nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
        except nvml.NVMLError_FunctionNotFound:
            # A driver before 510 has only the version that counts the reserve as used.
            return nvml.nvmlDeviceGetMemoryInfo(handle)

    def _supported(self, ask: Callable[[Any], Any], handle: Any) -> Any:
        """Return the answer; None where the GPU does not have the figure, as a slice of a GPU has no utilisation."""
        try:
            return ask(handle)
        except self._nvml.NVMLError_NotSupported:
            return None

    def _tell(self, why: str) -> None:
        if not self._told:
            self._told = True
            log.warning("the utilisation of GPUs is not measured: %s", why)


# by_program finds out which processes of a pod belong to which rank.

RankOf = Callable[[int], str | None]
"""Returns the rank of a process, from its environment; None for a process that is no rank."""


def no_rank(pid: int) -> str | None:
    """Return None for every process: a RankOf for programs that start no ranks."""
    del pid
    return None


def by_program(
    programs: Mapping[str, int], children: Mapping[int, Sequence[int]], rank_of: RankOf
) -> dict[str, list[int]]:
    """Return the processes of each program, its first process first, then its descendants.

    A rank below a program that is no rank itself is a program of its own: its processes do not count for the program
    that started it, such as torchrun.

    programs: the first process of each. children: by process.
    """
    found: dict[str, list[int]] = {}
    todo = [(name, pid) for name, pid in programs.items()]
    for name, pid in todo:  # The loop appends to `todo`.
        found.setdefault(name, []).append(pid)
        for child in children.get(pid, ()):
            rank = None if name.isdecimal() else rank_of(child)
            todo.append((rank or name, child))
    return found


MOST_OF_A_CORE_FOR_PSS = 0.0005
"""The share of a processor that measuring PSS may use. The kernel visits each page of a process: 0.1 s for 10 GB."""
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

    def read(self, programs: Mapping[str, int]) -> Counters:
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
            return Counters(time.monotonic(), {})
        return Counters(
            time.monotonic(),
            readings,
            cgroups.usage() if self._in_container else cgroups.Usage(),
            _disk(self._root),
            self._gpus.read(),
        )


def _ranks_below(settings: Settings) -> RankOf:
    """Return a function that recognizes the ranks that a command of the job starts."""
    if settings.ssh_after_restore:
        return lambda pid: _text(contract.rank_of(environment_of(pid)))
    if not settings.pod.slots or LOCAL_RANK in settings.environment:
        # The job sets the variable itself, so that a process with the variable may be no rank.
        return no_rank

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
                disk = _answer_or_none(process.io_counters)
                memory = _answer_or_none(process.memory_full_info) if with_pss else None
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


def _answer_or_none(ask: Callable[[], _Answer]) -> _Answer | None:
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
