"""Writes the stacks of a pod's programs to its logs on request, for a training without progress."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

from dtj_trainer import contract
from dtj_trainer.launch.process_tree import described, numbered, read, with_descendants
from dtj_trainer.launch.running_programs import RunningPrograms

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 30.0
"""The shortest time between two dumps, because each dump stops the programs for a moment."""
MANY, INTERVAL_AFTER_MANY_SECONDS = 20, 3600.0
"""After MANY dumps, the shortest time is longer: anybody in the cluster may ask, and each dump is uploaded."""
PROCESS_SECONDS = 8.0
"""The time limit of py-spy for one process."""
PROGRAM_SECONDS = 20.0
"""The time limit of py-spy for a program and its descendants. The remaining processes get the kernel's view only."""
_AT_ONCE = 8


class Stacks:
    """Writes the stacks of a pod's programs into a folder. May be used from several threads."""

    def __init__(self, folder: Path, programs: RunningPrograms) -> None:
        self._folder = folder
        self._programs = programs
        self._lock = threading.Lock()
        self._dump_at = -INTERVAL_SECONDS
        """When the newest dump started, or will start."""
        self._count = 0
        self._dump: threading.Timer | None = None

    def close(self) -> None:
        """Begin no more dumps."""
        with self._lock:
            self._dump_at = math.inf
            if self._dump:
                self._dump.cancel()

    def ask(self) -> None:
        """Write the stacks of all programs in the background: now, or an interval after the last dump.

        All requests that come before a dump starts share the dump.
        """
        now = time.monotonic()
        with self._lock:
            if now < self._dump_at:
                return
            interval = INTERVAL_SECONDS if self._count < MANY else INTERVAL_AFTER_MANY_SECONDS
            self._dump_at = max(now, self._dump_at + interval)
            self._count += 1
            dump = self._dump = threading.Timer(self._dump_at - now, self._write_all, [self._count])
        dump.daemon = True
        dump.start()

    def _write_all(self, count: int) -> None:
        programs = self._programs.pids()
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            written = [pool.submit(self._write, name, pid, count) for name, pid in programs.items()]
        log.info("wrote what %d programs are doing to %s", sum(w.result() for w in written), self._folder)

    def _write(self, name: str, pid: int, count: int) -> bool:
        path = self._folder / contract.STACKS_FILES.replace("*", f"{name}-{count}")
        hidden = path.with_name(f".{path.name}")
        now = datetime.now(UTC).isoformat(timespec="seconds")
        try:
            hidden.write_text(f"{name} at {now}\n\n{stacks_of(pid)}")
            hidden.replace(path)
        except OSError as error:
            log.warning("the stacks of %s can't be written: %s", name, error)
            return False
        return True


def stacks_of(program: int) -> str:
    """Return the stacks of a program's first process and of its descendants; never empty while the program runs."""
    deadline = time.monotonic() + PROGRAM_SECONDS
    return "\n".join(
        f"== process {pid}: {described(pid)}\n{_stack(pid, deadline)}\n" for pid in with_descendants(program)
    )


def _stack(pid: int, deadline: float) -> str:
    text, why = _python_stack(pid, deadline)
    if text:
        return text
    return f"no Python stack: {why}\n" + "\n".join(_kernel_view(pid))


def _python_stack(pid: int, deadline: float) -> tuple[str, str]:
    """Return py-spy's output, or an empty text and the reason."""
    py_spy = _py_spy()
    if py_spy is None:
        return "", "py-spy is not installed here"
    why = "no time was left"
    # py-spy can read a process that can't be stopped (by a driver, or under a debugger) without blocking.
    for options in ([], ["--nonblocking"]):
        left = min(deadline - time.monotonic(), PROCESS_SECONDS)
        if left <= 0:
            break
        stopped_before = _state(pid) in "Tt"
        try:
            done = subprocess.run(  # noqa: S603 - no word of it comes from outside
                [py_spy, "dump", "--pid", str(pid), *options],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=left,
                check=False,
            )
        except (subprocess.TimeoutExpired, OSError) as error:
            why = f"py-spy: {error}"
            if not stopped_before and _state(pid) in "Tt":
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGCONT)  # py-spy was killed before it resumed the process.
            continue
        if done.returncode == 0 and done.stdout.count("\n") > 2:
            return done.stdout, ""
        why = "py-spy: " + " ".join(done.stderr.split("Stack backtrace:")[0].split())
    return "", why


def _py_spy() -> str | None:
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def _kernel_view(pid: int) -> Iterator[str]:
    """Describe each thread: name, state, and where it waits in the kernel, as far as that is readable."""
    for task in sorted(numbered(Path(f"/proc/{pid}/task")), key=lambda path: int(path.name)):
        states = [line for line in read(task / "status").splitlines() if line.startswith("State:")]
        wait = read(task / "wchan")
        where = f", in {wait}" if wait not in ("", "0") else ""
        name = read(task / "comm").strip()
        yield f"thread {task.name} ({name}): {states[0].split(None, 1)[1] if states else 'gone'}{where}"
        yield from (f"    {line}" for line in read(task / "stack").splitlines())


def _state(pid: int) -> str:
    return (read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split() or [""])[0] or "-"
