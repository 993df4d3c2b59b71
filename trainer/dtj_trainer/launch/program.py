"""Runs the user's program in a process group of its own and tells how it ended."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dtj_trainer import contract
from dtj_trainer.launch.oom import oom_kills
from dtj_trainer.launch.output import lines_of
from dtj_trainer.parent_death import die_with_parent

OUTPUT_END_SECONDS = 5.0
"""How long the output of a program that ended is still read when something keeps it open."""
NOT_EXECUTABLE = 126
STOP_ALL_RANKS = signal.SIGUSR1
"""By which a launcher stops its ranks: mpirun passes it on and waits for them. After SIGTERM it
gives them a second, too little for a checkpoint."""
_KILLS = {signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}
_PR_SET_PTRACER, _PR_SET_PTRACER_ANY = 0x59616D61, 2**64 - 1


@dataclass(frozen=True)
class ProgramEnd:
    """How a program ended: by an exit code, or by a signal, or never started (`missing`)."""

    exit_code: int
    signal: int | None = None
    missing: str | None = None
    oom_killed: bool = False
    stop_signal: int | None = None
    """The signal by which it was told to stop while it ran."""

    @property
    def stopped(self) -> bool:
        """Whether it was told to stop."""
        return self.stop_signal is not None

    @property
    def succeeded(self) -> bool:
        """Exit code 0."""
        return self.exit_code == 0

    @property
    def killed(self) -> bool:
        """Whether it, or a process of it, was killed, perhaps in the middle of a write.

        A shell tells of its child's signal by its own exit code. Programs that save when they are told to stop exit
        with the code of that signal themselves.
        """
        by_shell = self.exit_code - 128 in _KILLS
        return self.signal is not None or self.oom_killed or by_shell

    @property
    def by_itself(self) -> bool:
        """It left by its own exit, hence what it says about the cause may be believed.

        Nothing follows for what it wrote: see `killed`.
        """
        return self.signal is None and (self.succeeded or not self.stopped)


class Program:
    """One run of a command. Make it and call `run` in the main thread."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        on_line: Callable[[bytes], None],
        *,
        stop_whole_group: bool = True,
    ) -> None:
        """`stop_whole_group`: `stop` reaches all processes it started, not only the first one."""
        self._command = list(command)
        self._environment = {"PYTHONUNBUFFERED": "1", **environment}
        self._on_line = on_line
        self._stop_whole_group = stop_whole_group
        self._process: subprocess.Popen[bytes] | None = None
        self._stop_signal: int | None = None
        self._sent_signal: int | None = None
        self._oom_before = oom_kills()

    @property
    def pid(self) -> int | None:
        """The process, which leads its group."""
        return self._process.pid if self._process else None

    def stop(self, number: int, sent: int | None = None) -> None:
        """Tell the program to stop, now or as soon as it starts. For signal handlers.

        `number` is the signal that asks for it; the program gets `sent` where that is another.
        """
        self._stop_signal, self._sent_signal = number, sent
        if self._process is None or self._process.returncode is not None:
            return
        if self._stop_whole_group:
            self._signal_group(sent or number)
        else:
            self._process.send_signal(sent or number)

    def kill(self) -> None:
        """End it and all that it started at once, if it still runs."""
        if self._process is not None and self._process.returncode is None:
            self._signal_group(signal.SIGKILL)

    def start(self) -> ProgramEnd | None:
        """Start it; an end at once when there is no such command."""
        try:
            self._process = subprocess.Popen(  # noqa: S603 - running the user's command is the purpose
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                bufsize=0,
                process_group=0,
                preexec_fn=_first_of_all(),
            )
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
        """Pass its output on until it ends, and end what is left of its group.

        `on_killed` gets the wall-clock time in nanoseconds at which the program was killed, at once: a process that
        outlives the program may still hold the output open.
        """
        process = self._process
        assert process is not None
        assert process.stdout is not None
        output = process.stdout
        reader = threading.Thread(target=self._read, args=(output.fileno(),), daemon=True)
        reader.start()
        end = self._end(process.wait())
        if end.killed:
            on_killed(time.time_ns())
        reader.join(0.2)
        self._signal_group(signal.SIGKILL)
        reader.join(OUTPUT_END_SECONDS)
        return end

    def _end(self, code: int) -> ProgramEnd:
        killed = -code if code < 0 else None
        may_be_oom = killed == signal.SIGKILL if killed else code != 0
        return ProgramEnd(
            128 + killed if killed else code,
            signal=killed,
            oom_killed=may_be_oom and self._oom_rose(),
            stop_signal=self._stop_signal,
        )

    def _read(self, descriptor: int) -> None:
        for line in lines_of(descriptor):
            self._on_line(line)

    def _signal_group(self, number: int) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    def _oom_rose(self) -> bool:
        now = oom_kills()
        return now is not None and self._oom_before is not None and now > self._oom_before


def _not_found(command: str, error: FileNotFoundError) -> str:
    if error.filename not in {command, None} or os.path.exists(command):  # noqa: PTH110 - a command, not a path
        return f"{command} can't be run: the interpreter it names, or its working directory, is missing"
    if "/" in command:
        return f"{command} does not exist in the image"
    return f"{command} is not on the PATH of the image"


def _first_of_all() -> Callable[[], None]:
    """What the program's process does before it becomes the program: it dies with its parent, and may be looked at
    by py-spy, which is no ancestor of it, where Yama would forbid that.
    """
    die_with_this, prctl = die_with_parent(), ctypes.CDLL(None).prctl
    anybody = ctypes.c_ulong(_PR_SET_PTRACER_ANY)

    def ask() -> None:
        die_with_this()
        prctl(_PR_SET_PTRACER, anybody)

    return ask
