"""The use of processors and memory by the replicas of a run on this machine, from /proc."""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dtj.local.plan import ENV_RUN
from dtj.local.processes import Stat, marked, running, variable_of
from dtj.local.runs import Run
from dtj_trainer.contract import ENV_TERMINATION_LOG

FIRST_SECONDS = 1.0
"""Seconds over which the first measurement takes place."""
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Used:
    """The resources that all processes of a replica use."""

    cores: float
    """Processors in use, on average since the last measurement."""
    memory: int
    """Bytes of memory. If the kernel provides PSS, shared memory is divided among its processes."""


class RunUsage:
    """Measures the resources that the processes of a run use."""

    def __init__(self, run: Run) -> None:
        """Take the first measurement."""
        self._run = run
        self._seconds, self._at = _sums(self._processes()), time.monotonic()

    def look(self) -> dict[str, Used]:
        """Return the use since the last call, by replica, `<role>-<index>`. Leave out a replica without a process.

        The call waits until FIRST_SECONDS have passed since the last measurement.
        """
        time.sleep(max(self._at + FIRST_SECONDS - time.monotonic(), 0.0))
        found, at = list(self._processes()), time.monotonic()
        seconds, memory = _sums(found), Counter[str]()
        for process, replica in found:
            memory[replica] += _memory(process.pid)
        # The sum of seconds falls if a process has ended and its parent has not waited for it. Use 0 in this case.
        used = {
            replica: Used(
                max(spent - self._seconds.get(replica, 0.0), 0.0) / (at - self._at), memory[replica]
            )
            for replica, spent in seconds.items()
        }
        self._seconds, self._at = seconds, at
        return used

    def _processes(self) -> Iterator[tuple[Stat, str]]:
        """Yield each process with its replica: that of its session, else of its parents."""
        processes = {each.pid: each for each in running()}
        replicas = {
            pid: Path(own).parent.name
            for pid in marked(ENV_RUN, str(self._run.folder.resolve()))
            if pid in processes and processes[pid].session == pid
            if (own := variable_of(pid, ENV_TERMINATION_LOG))
        }
        for process in processes.values():
            at: Stat | None = process
            while at and at.session not in replicas:
                at = processes.get(at.parent)
            if at:
                yield process, replicas[at.session]


def machine_memory() -> int:
    """Return the bytes of memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * _PAGE


def _sums(processes: Iterable[tuple[Stat, str]]) -> dict[str, float]:
    """Return the processor seconds by replica."""
    seconds = defaultdict[str, float](float)
    for process, replica in processes:
        seconds[replica] += process.processor_seconds
    return seconds


def _memory(pid: int) -> int:
    for line in _read_proc(pid, "smaps_rollup").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) << 10
    pages = _read_proc(pid, "statm").split()
    return int(pages[1]) * _PAGE if pages else 0


def _read_proc(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:  # The process has ended, or belongs to another user.
        return ""
