"""Long-running processes, identified by pid and start time, so that a reused pid is never mistaken."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cluster.progress import ClusterError, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

MARK = "DTJ_CLUSTER_DIRECTORY"
"""In the environment of every process started here, and so of what these start: `down` looks for it."""
STOP_SECONDS = 15.0
LESS_GC = {"GOGC": "400"}
"""Go's heaps are small here, and the processors are few: collect garbage less often."""


@dataclass(frozen=True)
class Component:
    """A process of the cluster and how to tell that it serves."""

    name: str
    command: Sequence[str | Path]
    ready: Callable[[], bool] = lambda: True
    seconds: float = 60.0
    env: tuple[tuple[str, str], ...] = ()


class Supervisor:
    """Starts and stops processes; their pid files and logs lie in one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.logs = directory / "logs"
        self.pids = directory / "pids"

    def ensure(self, component: Component) -> None:
        """Start it unless it runs, then wait until it serves."""
        self.start(component)
        self.wait(component)

    def start(self, component: Component) -> None:
        """Start it unless it runs. It outlives this process and the shell that called it."""
        if self.alive(component.name):
            return
        self.logs.mkdir(parents=True, exist_ok=True)
        self.pids.mkdir(parents=True, exist_ok=True)
        # A clean environment: a proxy or a KUBECONFIG of the caller must not leak into the cluster.
        env = {"PATH": os.environ["PATH"], "HOME": str(self.directory), MARK: str(self.directory), **LESS_GC}
        with self.log(component.name).open("ab") as log:
            process = subprocess.Popen(
                [str(word) for word in component.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                env={**env, **dict(component.env)},
                start_new_session=True,
            )
        started = _start_time(process.pid)
        if started is None:
            raise ClusterError(f"{component.name} ended at once:\n{self.tail(component.name)}")
        record = {"pid": process.pid, "started": started, "boot": boot()}
        temporary = self.pids / f".{component.name}"
        temporary.write_text(json.dumps(record))
        temporary.rename(self.pids / component.name)

    def wait(self, component: Component) -> None:
        """Wait until it serves; a component that died says so at once, with its last log lines."""

        def ready() -> bool:
            if not self.alive(component.name):
                raise ClusterError(f"{component.name} died:\n{self.tail(component.name)}")
            return component.ready()

        wait_for(
            f"{component.name} to be ready",
            ready,
            seconds=component.seconds,
            on_timeout=lambda: self.tail(component.name),
        )

    def alive(self, name: str) -> bool:
        """Whether the very process that was started as `name` still runs."""
        return self._pid(name) is not None

    def names(self) -> list[str]:
        """What was started and not stopped, dead or alive."""
        if not self.pids.is_dir():
            return []
        return sorted(path.name for path in self.pids.iterdir() if not path.name.startswith("."))

    def stop(self, *names: str, first: signal.Signals = signal.SIGTERM) -> None:
        """Ask them all to end, then make them; forget them."""
        _end({pid for name in names if (pid := self._pid(name)) is not None}, first)
        for name in names:
            (self.pids / name).unlink(missing_ok=True)

    def log(self, name: str) -> Path:
        """Its standard output and error."""
        return self.logs / f"{name}.log"

    def tail(self, name: str, lines: int = 15) -> str:
        """The last lines of its log."""
        log = self.log(name)
        text = log.read_text(errors="replace").splitlines()[-lines:] if log.exists() else []
        return "\n".join([f"  {log}:", *(f"    {line[:400]}" for line in text)])

    def _pid(self, name: str) -> int | None:
        try:
            record = json.loads((self.pids / name).read_text())
        except (FileNotFoundError, ValueError):
            return None
        same = record["boot"] == boot() and _start_time(record["pid"]) == record["started"]
        return int(record["pid"]) if same else None


def marked(directory: Path) -> dict[int, str]:
    """Every process that descends from one started by the supervisor of `directory`: pid -> command line."""
    wanted = f"{MARK}={directory}".encode()
    return {
        pid: command_line(pid)
        for pid in map(int, filter(str.isdigit, os.listdir("/proc")))  # noqa: PTH208 names are enough
        if wanted in _read(pid, "environ").split(b"\0") and _start_time(pid) is not None
    }


def kill(pids: Iterable[int]) -> None:
    """SIGKILL, and wait until they are gone."""
    _end(set(pids), first=signal.SIGKILL)


def _end(pids: set[int], first: signal.Signals = signal.SIGTERM) -> None:
    files: dict[int, int] = {}
    for pid in pids:
        try:
            files[pid] = os.pidfd_open(pid)  # names this process even after its pid is used again
        except ProcessLookupError:
            continue
    try:
        for how in (first, signal.SIGKILL):
            for file in files.values():
                _signal(file, how)
            _await_ends(files.values())
    finally:
        for file in files.values():
            os.close(file)


def _await_ends(files: Iterable[int]) -> None:
    """Wait up to STOP_SECONDS for the ends of processes, given by pidfd.

    A pidfd becomes readable when the last thread has ended. The state Z in /proc says only that the first thread has:
    the others may still hold a port.
    """
    running = select.poll()
    left = set(files)
    for file in left:
        running.register(file, select.POLLIN)
    deadline = time.monotonic() + STOP_SECONDS
    while left and (seconds := deadline - time.monotonic()) > 0:
        for file, _ in running.poll(seconds * 1000):
            running.unregister(file)
            left.discard(file)


def _signal(file: int, how: signal.Signals) -> None:
    try:
        signal.pidfd_send_signal(file, how)
    except ProcessLookupError:
        return


def _start_time(pid: int) -> int | None:
    """Ticks since boot; None for one that is gone or only waits to be reaped."""
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    return int(fields[19]) if fields and fields[0] not in (b"Z", b"X") else None


def command_line(pid: int) -> str:
    """The words of a process; none of one that has ended."""
    return _read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def boot() -> str:
    """This boot of the machine: pids and start times are only good within it."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
