"""Answers GET /progress with the report, GET /metrics with Prometheus text, and accepts POST /stacks.

`pod` starts it, beside a thread that samples the progress. Not here: what programs report
(`dtj_trainer/progress.py`) and what they use (`utilisation`).
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dtj_trainer import contract, progress
from dtj_trainer.background import Background
from dtj_trainer.clock import now_text
from dtj_trainer.launch.processes import RunningPrograms, described, numbered, read, with_descendants
from dtj_trainer.request_server import RequestServer, head, send

if TYPE_CHECKING:
    import socket


Phase = Literal["started", "restored", "peersReady", "programStarted", "firstStep", "programEnded", "synced"]


class PhaseLog:
    """Records when each phase was first reached. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times: contract.Phases = {}

    def reached(self, phase: Phase) -> None:
        """Record the current time, unless the phase was reached before."""
        with self._lock:
            self._times.setdefault(phase, now_text())

    def again(self) -> None:
        """Forget what the programs of an earlier round have reached."""
        with self._lock:
            for phase in ("programStarted", "firstStep", "programEnded", "synced"):
                self._times.pop(phase, None)

    def times(self) -> contract.Phases:
        """Return the times of the phases reached so far."""
        with self._lock:
            return dict(self._times)


_REQUEST = re.compile(rb"(GET|POST) ([!-~]{1,200}) HTTP/1\.[01]\r\n")


class StatusServer:
    """An HTTP server, see `request_server`. It exposes no secrets. Its only action is a dump of stacks into the pod's
    own logs, at a limited rate.
    """

    def __init__(
        self,
        port: int,
        report: Callable[[], contract.Report],
        metrics: Callable[[], dict[str, float]],
        ask_for_stacks: Callable[[], None],
        host: str = "",
    ) -> None:
        """Listen. host: an address; empty: all addresses. Raises OSError for a port in use."""
        self._report = report
        self._metrics = metrics
        self._ask_for_stacks = ask_for_stacks
        self._server = RequestServer(host, port, self._answer, "status")

    def start(self) -> None:
        """Serve in the background."""
        self._server.start()

    def close(self) -> None:
        """Accept no more connections."""
        self._server.close()

    def _answer(self, connection: socket.socket, request: bytes, _: object) -> None:
        match = _REQUEST.match(request)
        asked = (match[1].decode(), match[2].decode()) if match else None
        if asked == ("GET", "/progress"):
            answer = 200, "application/json", json.dumps(self._report())
        elif asked == ("GET", "/metrics"):
            answer = 200, "text/plain; version=0.0.4", prometheus_text(self._metrics())
        elif asked == ("POST", contract.STACKS_PATH):
            self._ask_for_stacks()
            answer = 202, "text/plain", "stacks are written to the logs\n"
        else:
            only = f"this server answers only GET /progress, GET /metrics and POST {contract.STACKS_PATH}\n"
            answer = 404 if asked else 400, "text/plain", only
        status, kind, text = answer
        content = text.encode()
        send(connection, head(status, len(content), f"Content-Type: {kind}\r\n") + content)


def prometheus_text(values: dict[str, float]) -> str:
    """Format gauges, and counters where the name ends in `_total`, in Prometheus' text format.

    values: by series, such as `dtj_step` or `dtj_program_cpu_cores{program="0"}`; series of a metric are adjacent.
    """
    lines = []
    last = ""
    for series, value in values.items():
        name = series.partition("{")[0]
        if name != last:
            lines.append(f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}")
        lines.append(f"{series} {value!r}")
        last = name
    return "\n".join(lines) + "\n"


SAMPLE_SECONDS = 0.5


_SAMPLES = 2400


class ProgressWatch:
    """Samples the progress in the background."""

    def __init__(
        self,
        path: Path,
        phases: PhaseLog,
        otherwise: Callable[[], contract.Progress] = lambda: contract.Progress(),
    ) -> None:
        """`path`: the progress file. `otherwise`: the progress of a program that reports no step there."""
        self._path = path
        self._otherwise = otherwise
        self._phases = phases
        self._lock = threading.Lock()
        self._steps: deque[tuple[int, int]] = deque(maxlen=_SAMPLES)

    def start(self, background: Background) -> None:
        """Sample in the background."""

        def follow() -> None:
            self.now()
            while not background.wait(SAMPLE_SECONDS):
                self.now()

        background.start(follow, "progress")

    def now(self) -> contract.Progress:
        """Return the current progress, and take a sample."""
        with self._lock:
            present = progress.read(self._path)
            if "step" not in present:
                present = {**self._otherwise(), **present}
            step = present.get("step")
            if step is not None:
                if not self._steps or self._steps[-1][1] != step:
                    self._steps.append((time.time_ns(), step))
                if step >= 1:
                    self._phases.reached("firstStep")
            return present

    def begin_round(self) -> None:
        """Forget progress, steps and phases: other programs begin."""
        with self._lock:
            self._path.unlink(missing_ok=True)
            self._steps.clear()
            self._phases.again()

    def step_at(self, time_ns: int) -> int | None:
        """Return the step at a wall-clock time, or the first known step for earlier times; None without any step."""
        self.now()
        with self._lock:
            if not self._steps:
                return None
            earlier = [step for seen, step in self._steps if seen <= time_ns]
            return earlier[-1] if earlier else self._steps[0][1]


# Stacks writes the stacks of a pod's programs to its logs on request, for a training without progress.

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 30.0
"""The shortest time between two dumps, because each dump stops the programs for a moment."""
MANY, INTERVAL_AFTER_MANY_SECONDS = 20, 3600.0
"""After MANY dumps, the shortest time is longer: anybody in the cluster may ask, and each dump is uploaded."""
PROCESS_SECONDS = 8.0
"""The time limit of py-spy for one process."""
PROGRAM_SECONDS = 20.0
"""The time limit of py-spy for a program and its descendants. Of processes after it, only the kernel's view is shown.
"""
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
        log.info("wrote the stacks of %d programs to %s", sum(w.result() for w in written), self._folder)

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
