"""Runs the user's program in a process group of its own, and describes how it ended."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Protocol

from dtj_trainer import contract
from dtj_trainer.launch.cgroups import oom_kills
from dtj_trainer.launch.output import LastLines, LogFile, lines_of, writer_to
from dtj_trainer.launch.processes import stop_writers
from dtj_trainer.launch.settings import Settings
from dtj_trainer.parent_death import die_with_parent

POLL_SECONDS = 0.05
SIGNAL_SECONDS = 5.0
"""The longest wait of the main thread, which handles all signals. A signal that the kernel gives to another thread
does not end the wait."""
OUTPUT_END_SECONDS = 5.0
"""Seconds to read the output of an ended program, if another process keeps the output open."""
NOT_EXECUTABLE = 126
STOP_ALL_RANKS = signal.SIGUSR1
"""The signal by which a launcher stops its ranks: mpirun forwards it and waits for the ranks. After SIGTERM mpirun
gives the ranks only a second, too little for a checkpoint."""
_KILLS = {signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}
_PR_SET_PTRACER, _PR_SET_PTRACER_ANY = 0x59616D61, 2**64 - 1
_FILES = resource.getrlimit(resource.RLIMIT_NOFILE)
"""The limits that the container gives to its processes. A server of connections raises that of this process."""


@dataclass(frozen=True)
class ProgramEnd:
    """How a program ended: by an exit code, by a signal, or without a start (`missing`)."""

    exit_code: int
    signal: int | None = None
    missing: str | None = None
    oom_killed: bool = False
    stop_signal: int | None = None
    """The signal that asked the program to stop."""
    rest_ended: bool = False
    """Whether other processes of the program outlived the first one, which died of `signal`, and then ended."""
    torn: tuple[Path, ...] = field(default=(), compare=False)
    """Files that other processes of the program were writing when they were killed after its end."""
    at: float = field(default_factory=time.monotonic, compare=False)
    """When the first process ended, by the monotonic clock."""

    @property
    def stopped(self) -> bool:
        """Whether the program was asked to stop."""
        return self.stop_signal is not None

    @property
    def succeeded(self) -> bool:
        """Whether the exit code is 0."""
        return self.exit_code == 0

    @property
    def killed(self) -> bool:
        """Whether the program or one of its processes was killed, perhaps in the middle of a write.

        A shell reports the signal of its child by its own exit code. A program that saves after a stop signal may
        also exit with a code of that form, so that only signals of a kill count.
        """
        by_shell = self.exit_code - 128 in _KILLS
        return (self.signal is not None and not self.rest_ended) or self.oom_killed or by_shell

    @property
    def by_itself(self) -> bool:
        """Whether the program chose its exit code, so that its own description of the cause counts.

        The files that it wrote may be incomplete all the same: see `killed`.
        """
        return self.signal is None and (self.succeeded or not self.stopped)


def start_process(
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: Path | None,
    *,
    pass_fds: Sequence[int] = (),
    own_group: bool = True,
    first: Callable[[], None] = lambda: None,
) -> subprocess.Popen[bytes]:
    """Start a process, whose output goes to a pipe. Raises OSError as `subprocess.Popen` does.

    folder: the working directory, if not this one. pass_fds: descriptors that the process has, too. own_group:
    whether the process leads a process group. first: what the process does before it becomes the command.
    """
    return subprocess.Popen(  # noqa: S603 - running the user's command is the purpose
        list(command),
        env=environment,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        bufsize=0,
        process_group=0 if own_group else None,
        pass_fds=pass_fds,
        preexec_fn=_first_of_all(first),
    )


class Started(Protocol):
    """The first process of a program, as `subprocess.Popen` has it. It may be a child of another process."""

    pid: int
    stdout: IO[bytes] | None

    def send_signal(self, sig: int) -> None:
        """Send a signal, unless the process is known to have ended."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; return the exit code, or the negative number of a signal."""


class Starter:
    """How a program starts: by a new process. `spare` and `spare_starts` have other ways."""

    def start(self, command: Sequence[str], environment: Mapping[str, str], folder: Path | None) -> Started:
        """Return the process of the program, the first of its own process group. Raises OSError."""
        return start_process(command, environment, folder)

    def oom_kills(self) -> int | None:
        """Return how many processes of the container's programs the kernel has killed; None if unknown."""
        return oom_kills()


class Program:
    """One run of a command. Construct it and call `start` in the main thread."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        on_lines: Callable[[bytes], None],
        *,
        stop_whole_group: bool = True,
        kept: Iterable[Path] = (),
        folder: Path | None = None,
        starter: Starter | None = None,
    ) -> None:
        """`stop_whole_group`: `stop` signals all processes of the program, not only the first one. `kept`: folders
        whose files are of use only when they are complete. `folder`: the working directory, if not this one.
        `starter`: starts the process.
        """
        self._starter = starter or Starter()
        self._kept = tuple(kept)
        self._folder = folder
        self._command = list(command)
        self._environment = {"PYTHONUNBUFFERED": "1", **environment}
        self._on_lines = on_lines
        self._stop_whole_group = stop_whole_group
        self._process: Started | None = None
        self._stop_signal: int | None = None
        self._sent_signal: int | None = None
        self._oom_before = self._starter.oom_kills()
        self._killed = False
        self._over = False

    def give(self, variables: Mapping[str, str]) -> None:
        """Add variables to the program's environment. Call it before `start`."""
        self._environment |= variables

    @property
    def pid(self) -> int | None:
        """The program's first process, which leads the process group."""
        return self._process.pid if self._process else None

    def stop(self, number: int, sent: int | None = None) -> None:
        """Ask the program to stop, now or as soon as it starts. For signal handlers.

        `number` is the signal that asks to stop; `sent` is the signal for the program, if it differs.
        """
        self._stop_signal, self._sent_signal = number, sent
        if self._process is None or self._over:
            return
        if self._stop_whole_group:
            self._signal_group(sent or number)
        else:
            self._process.send_signal(sent or number)

    def kill(self) -> None:
        """Kill the program's process group, if the program still runs."""
        if self._process is not None and not self._over:
            self._killed = True
            self._signal_group(signal.SIGKILL)

    def end(self) -> None:
        """Kill the program because its round ends. Only an end by this kill counts as asked for, no earlier end."""
        if self._process is not None and not self._over:
            self._stop_signal = signal.SIGKILL
            self.kill()

    def start(self) -> ProgramEnd | None:
        """Start the program; return the end at once when the command does not exist."""
        try:
            self._process = self._starter.start(self._command, self._environment, self._folder)
        except FileNotFoundError as error:
            return ProgramEnd(contract.EXIT_COMMAND_NOT_FOUND, missing=_not_found(self._command[0], error))
        except (PermissionError, NotADirectoryError) as error:
            return ProgramEnd(NOT_EXECUTABLE, missing=f"{self._command[0]}: {error.strerror}")
        except OSError as error:
            return ProgramEnd(NOT_EXECUTABLE, missing=f"{self._command[0]} can't be run: {error.strerror}")
        if self._stop_signal is not None:
            self.stop(self._stop_signal, self._sent_signal)
        return None

    def wait(self, on_killed: Callable[[int], None] = lambda _: None) -> ProgramEnd:
        """Pass on the output until the program ends, then kill the rest of its process group.

        A shell dies of SIGTERM at once, while the program that the shell runs may still save. After such an end, the
        program runs until the rest of the process group has ended.

        `on_killed` gets the wall-clock time in nanoseconds at which the program was killed, without delay: a process
        that outlives the program may still hold the output open.
        """
        process = self._process
        assert process is not None
        assert process.stdout is not None
        output = process.stdout
        reader = threading.Thread(target=self._read, args=(output,), daemon=True)
        reader.start()
        end = self._end(_exit_code(process))
        if self._stop_whole_group and end.signal and end.signal == (self._sent_signal or self._stop_signal):
            end = self._after_rest(end)
        self._over = True
        if end.killed:
            on_killed(time.time_ns())
        reader.join(0.2)
        if self._kept and self._group_runs():
            end = replace(end, torn=tuple(stop_writers(process.pid, self._kept)))
        self._signal_group(signal.SIGKILL)
        reader.join(OUTPUT_END_SECONDS)
        return end

    def _after_rest(self, end: ProgramEnd) -> ProgramEnd:
        """Wait until the rest of the process group has ended or was killed; return the end of the whole."""
        deadline = time.monotonic() + contract.STOP_SECONDS
        rest = False
        while self._group_runs():
            rest = True
            if self._killed or time.monotonic() >= deadline:
                return end
            time.sleep(POLL_SECONDS)
        return replace(end, rest_ended=rest and not self._killed)

    def _end(self, code: int) -> ProgramEnd:
        killed = -code if code < 0 else None
        may_be_oom = killed == signal.SIGKILL if killed else code != 0
        before_end = self._stop_signal == signal.SIGKILL != killed
        return ProgramEnd(
            128 + killed if killed else code,
            signal=killed,
            oom_killed=may_be_oom and self._oom_rose(),
            stop_signal=None if before_end else self._stop_signal,
        )

    def _read(self, output: IO[bytes]) -> None:
        with output:
            for lines in lines_of(output.fileno()):
                self._on_lines(lines)

    def _signal_group(self, number: int) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    def _group_runs(self) -> bool:
        assert self._process is not None
        try:
            os.killpg(self._process.pid, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def _oom_rose(self) -> bool:
        now = self._starter.oom_kills()
        return now is not None and self._oom_before is not None and now > self._oom_before


def _exit_code(process: Started) -> int:
    """Wait for a process. The main thread has signals to handle meanwhile, so that another thread waits for it."""
    if threading.current_thread() is not threading.main_thread():
        return process.wait()
    waiting = threading.Thread(target=process.wait, daemon=True)
    waiting.start()
    while waiting.is_alive():
        waiting.join(SIGNAL_SECONDS)
    return process.wait()


def _not_found(command: str, error: FileNotFoundError) -> str:
    if error.filename not in {command, None}:
        return f"{command} can't be run: its working directory {error.filename} does not exist"
    if os.path.exists(command):  # noqa: PTH110 - a command, not a path
        return f"{command} can't be run: the interpreter that it names, for example after #!, does not exist"
    if "/" in command:
        return f"{command} does not exist in the image"
    return f"{command} is not on the PATH of the image"


def _first_of_all(rest: Callable[[], None]) -> Callable[[], None]:
    """Return the first action of the program's process: it dies with its parent, has the container's limits, and lets
    py-spy trace it, which Yama otherwise forbids to processes that are no ancestors. Then it does the rest.
    """
    die_with_this, prctl = die_with_parent(), ctypes.CDLL(None).prctl
    anybody = ctypes.c_ulong(_PR_SET_PTRACER_ANY)

    def ask() -> None:
        die_with_this()
        resource.setrlimit(resource.RLIMIT_NOFILE, _FILES)
        prctl(_PR_SET_PTRACER, anybody)
        rest()

    return ask


# LoggedProgram runs the user's program: its output goes to a log and to stdout, and its last lines are remembered.

REMEMBERED_LINES = 200
"""Enough for the exceptions of a pod's ranks with their C++ frames, and torchrun's table after them."""


class LoggedProgram(Program):
    """One run of the user's command, with the environment of the settings. `prefix` precedes each line on stdout.

    `log`: the name of the log. `variables`: added to the environment.
    """

    def __init__(
        self,
        settings: Settings,
        command: Sequence[str],
        log: str,
        *,
        prefix: str = "",
        variables: Mapping[str, str] | None = None,
        starter: Starter | None = None,
    ) -> None:
        log_file = LogFile(settings.logs / log, kept=settings.rotated_logs)
        pass_on = writer_to(sys.stdout.fileno(), prefix.encode())
        self.last_lines = LastLines(REMEMBERED_LINES)
        self._killing: list[threading.Timer] = []

        def show(lines: bytes) -> None:
            log_file.write(lines)
            pass_on(lines)

        def on_lines(lines: bytes) -> None:
            show(lines)
            self.last_lines.add(lines)

        self._show, self._log_file = show, log_file

        environment = {**settings.environment, **(variables or {})}
        super().__init__(
            command,
            environment,
            on_lines,
            kept=settings.kept_whole,
            folder=settings.code_folder,
            starter=starter,
        )

    def stop_soon(self, number: int, kill_after: float | None = None) -> None:
        """Ask the program by a signal to stop; kill it after `kill_after` seconds."""
        self.stop(number)
        if kill_after is not None:
            self._killing.append(timer := threading.Timer(kill_after, self.kill))
            timer.daemon = True
            timer.start()

    def wait(self, on_killed: Callable[[int], None] = lambda _: None) -> ProgramEnd:
        """See `Program.wait`. Nothing of the program is left to kill afterwards."""
        end = super().wait(on_killed)
        for timer in self._killing:
            timer.cancel()
        self._log_file.close()
        return end

    def tell(self, line: str) -> None:
        """Write a line of dtj between those of the program. Call it before `start`."""
        self._show(f"{line}\n".encode())

    def stop_by_signals(self, kill_after: float | None = None) -> None:
        """Forward SIGTERM and SIGINT to the program; kill it `kill_after` seconds later."""

        def stop(number: int, _: object) -> None:
            self.stop_soon(number, kill_after)

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
