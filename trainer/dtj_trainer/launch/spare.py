"""Keeps a warm spare beside each program of a pod: an interpreter that has imported what the program imports.

A program that is started again takes the spare, and saves the imports, most of the time from a failure to the next
step. A spare is a new process, never a fork, and is used once. A spare with any fault is ended, and its program
starts as without spares. `python_command` decides which commands can have a spare; others start as they are.
"""

from __future__ import annotations

import contextlib
import logging
import marshal
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import psutil

from dtj_trainer import contract
from dtj_trainer.contract.tracking import MLFLOW_RUN, MLFLOW_URI
from dtj_trainer.launch import cgroups, spare_program
from dtj_trainer.launch.processes import with_descendants
from dtj_trainer.launch.program import Starter, start_process
from dtj_trainer.launch.surroundings import Surroundings
from dtj_trainer.launch.world_check import launcher_of

log = logging.getLogger(__name__)

CHANGING = re.compile(
    "|".join((*contract.PER_ROUND_VARIABLES, contract.ENV_ROUND, MLFLOW_RUN, MLFLOW_URI))
    + "|HOROVOD_GLOO_RENDEZVOUS_PORT|SSH_CLIENT|SSH_CONNECTION|(?!OMPI_COMM_WORLD_)(OMPI|PMIX|PRTE)_.*"
)
"""Variables that may differ from those with which a spare was started: libraries read them after their import.

Those of Open MPI tell where the mpirun of the round is, which only MPI_Init reads. OMPI_COMM_WORLD_* are the rank and
the sizes, which a library may read at its import: they are the same in all rounds.
"""
SETTLED_SECONDS = 60.0
"""A spare imports after the first checkpoint. In a pod that sees no checkpoint, the spare imports when the program
has imported nothing for this number of seconds."""
AGAIN_SECONDS = 600.0
"""Seconds to the next spare after one that had to make room."""
LOOK_SECONDS = 1.0
"""The pause between two looks at the memory."""
ANSWER_SECONDS = 5.0
"""Seconds in which a spare that is ready has to start the program."""
END_SECONDS = 5.0
"""Seconds for a killed spare to end."""
FIRST_BYTES = 512 << 20
"""The memory that the first spare is expected to take at most. PyTorch's imports take half of it."""


# python_command decides which commands can have a spare.

_PYTHON = re.compile(r"python[0-9.]*")
_FLAGS, _WITH_VALUE = frozenset("bBdEIOPqRsSuv"), "WX"
_PROGRAM = Path(spare_program.__file__).resolve()


class PythonCommand(NamedTuple):
    """A command that starts Python: `interpreter`, its path and flags, runs `program`, a script or -m and a module,
    and its arguments.
    """

    interpreter: tuple[str, ...]
    program: tuple[str, ...]


def python_command(words: Sequence[str]) -> PythonCommand | None:
    """Return the parts of `python [FLAGS] SCRIPT …` or `python [FLAGS] -m MODULE …`.

    None for what has no spare: another program, a program from a text or from the standard input, and launchers such
    as torchrun, whose ranks are other processes.
    """
    if not words or not _PYTHON.fullmatch(Path(words[0]).name) or launcher_of(words):
        return None
    interpreter, rest = [words[0]], list(words[1:])
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        letters = word[1:]
        flags = "".join(letter for letter in _before_value(letters))
        if not set(flags) <= _FLAGS or word in ("-", "--"):
            return None
        value = letters[len(flags) :]
        if value[:1] == "m":
            module = value[1:] or (rest.pop(0) if rest else "")
            interpreter += [f"-{flags}"] if flags else []
            return PythonCommand(tuple(interpreter), ("-m", module, *rest)) if module else None
        interpreter.append(word)
        if value and len(value) == 1:
            interpreter += rest[:1]
            del rest[:1]
    return PythonCommand(tuple(interpreter), tuple(rest)) if rest and rest[0] else None


def _before_value(letters: str) -> Iterator[str]:
    """Yield the letters of a word of flags up to one that takes a value."""
    for letter in letters:
        if letter in _WITH_VALUE or letter == "m":
            return
        yield letter


# _Spare is one spare: its process, and the connection to it.


@dataclass(eq=False)
class _Spare:
    """A process that imports, and then waits."""

    process: subprocess.Popen[bytes]
    connection: socket.socket
    python: PythonCommand
    environment: Mapping[str, str]
    around: Surroundings | None
    ready: bool = False
    fault: str = ""
    """Why the spare must not be used; empty while nothing is known."""
    size: int = 0
    """The memory that only this process uses, when it was ready."""
    ended: bool = False
    """Whether this pod has ended the spare."""

    def look(self) -> None:
        """Read what the spare says, without waiting."""
        if self.fault:
            return
        if self.ready:
            self.fault = "" if self.process.poll() is None else "it has ended"
            return
        said = self._said(0)
        if said == spare_program.READY:
            self.ready, self.size = True, private_bytes(self.process.pid)
        elif said is not None:
            self.fault = _reason(said)

    def use(
        self,
        python: PythonCommand,
        environment: Mapping[str, str],
        folder: Path | None,
        around: Surroundings | None,
    ) -> bool:
        """Make the spare the program; return whether it is. A spare that is not must be ended."""
        self.look()
        changed = {
            name: environment.get(name)
            for name in self.environment.keys() | environment.keys()
            if environment.get(name) != self.environment.get(name)
        }
        if not self.ready or self.fault:
            self.fault = self.fault or "it still imports modules"
        elif python.interpreter != self.python.interpreter:
            self.fault = "the interpreter of the command, or its flags, changed"
        elif fixed := sorted(name for name in changed if not CHANGING.fullmatch(name)):
            self.fault = f"variables of the environment changed: {' '.join(fixed)}"
        elif around != self.around:
            self.fault = "the processors, the resource limits or the umask of the program changed"
        else:
            self.fault = self._start(python, changed, folder or Path.cwd())
        return not self.fault

    def _start(self, python: PythonCommand, changed: Mapping[str, str | None], folder: Path) -> str:
        variables = {
            os.fsencode(name): None if value is None else os.fsencode(value)
            for name, value in changed.items()
        }
        told = (
            [*python.interpreter, *python.program],
            [*python.program],
            variables,
            str(folder),
            self.process.pid,
        )
        try:
            self.connection.settimeout(ANSWER_SECONDS)
            # Use version 2 of the format: the spare's interpreter may have another version of Python than this one.
            self.connection.sendall(marshal.dumps(told, 2))
            self.connection.shutdown(socket.SHUT_WR)
        except OSError as error:
            return f"it does not answer ({error})"
        said = self._said(ANSWER_SECONDS)
        return "" if said == spare_program.STARTED else _reason(said)

    def _said(self, seconds: float) -> bytes | None:
        """Return the next line, or what there is of it at the end of the connection; None: nothing in time."""
        self.connection.settimeout(seconds)
        said = b""
        while not said.endswith(b"\n"):
            try:
                part = self.connection.recv(4096)
            except (BlockingIOError, TimeoutError):
                return said or None
            except OSError:
                part = b""
            if not part:
                break
            said += part
        return said

    def kill(self) -> None:
        """Kill the spare, without waiting for its end. May be called in any thread."""
        self.ended = True
        others = with_descendants(self.process.pid)[1:] if self.process.poll() is None else []
        self.process.kill()
        for pid in others:  # Kill also what an import has started, such as a compiler.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill the spare. Raises TimeoutError if it does not end: it may have become the program."""
        self.kill()
        self.connection.close()
        if self.process.stdout:
            self.process.stdout.close()
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            raise TimeoutError(None, "its warm spare does not end after SIGKILL") from None

    def was_oom_killed(self) -> bool:
        """Whether somebody else than this pod killed the spare: the kernel, for want of memory."""
        return not self.ended and self.process.poll() == -signal.SIGKILL


def _reason(said: bytes | None) -> str:
    if said is None:
        return "it does not answer"
    if said.startswith(spare_program.FAILED):
        return said.removeprefix(spare_program.FAILED).decode(errors="replace").strip()
    return "it has ended" if not said else f"it sent the unknown line {said[:100]!r}"


def private_bytes(pid: int) -> int:
    """Return the memory that only this process uses; 0 for a process that has ended or may not be looked at."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Private_"))


# Spares starts, uses and ends the spares of a pod's programs.


class Recording(NamedTuple):
    """The start of a program that notes its imports in the memory file with the descriptor `memory`.

    `words`: the command. Its word `at` names the descriptor, which the process that starts the program may change.
    """

    words: list[str]
    at: int
    memory: int


@dataclass(eq=False)
class _Seat:
    """A program of the pod, over all its starts."""

    name: str
    record: int | None = None
    """The memory file in which the program that runs, or an earlier start of it, has noted its imports."""
    python: PythonCommand | None = None
    environment: Mapping[str, str] | None = None
    folder: Path | None = None
    around: Surroundings | None = None
    runs: Callable[[], bool] = lambda: False
    """Whether the program runs."""
    since: float = 0.0
    """When the program was started, or has last imported something, by the monotonic clock."""
    noted: int = 0
    """The size of the record at that time."""
    spare: _Spare | None = None
    not_before: float = 0.0
    """When the next spare may be started; infinite after one that failed."""


class Spares:
    """The spares of a pod's programs. Use it in the main thread: what a thread has started ends with the thread."""

    def __init__(self, usage: Callable[[], cgroups.Usage] = cgroups.usage) -> None:
        """`usage`: that of the container."""
        self._usage = usage
        self._seats: dict[str, _Seat] = {}
        self._taken = 0
        """The memory of the largest spare so far, in bytes."""
        self._oom_kills = 0
        self._lock = threading.Lock()
        """Held while a spare is taken out of its seat: `make_room` must not kill a spare that becomes the program."""
        self._closed = threading.Event()
        self._watching = False

    def starter(self, name: str) -> Starter:
        """Return how the program with this name starts, each time."""
        return _WarmStarter(self, name)

    def start(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], folder: Path | None
    ) -> subprocess.Popen[bytes]:
        """Start a program by its spare, or by a new process. Raises OSError as `subprocess.Popen` does."""
        way = self.begin(name, command, environment, folder)
        if isinstance(way, subprocess.Popen):
            return way
        if way is None:
            return start_process(command, environment, folder)
        process = start_process(way.words, environment, folder, pass_fds=(way.memory,))
        self.runs(name, lambda: process.poll() is None)
        return process

    def begin(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: Path | None,
        around: Surroundings | None = None,
    ) -> subprocess.Popen[bytes] | Recording | None:
        """Return the spare, which has become the program, or how the program starts, to have a spare later.

        None for a program that can have no spare. `around`: what the program inherits besides its environment; None:
        the same as the children of this process.
        Raises OSError if the spare can't be killed.
        """
        seat = self._seats.setdefault(name, _Seat(name))
        with self._lock:
            spare, seat.spare = seat.spare, None
        seat.runs = lambda: False
        python = None if "PYTHONINSPECT" in environment else python_command(command)
        by_spare = False
        if spare is not None:
            by_spare = python is not None and spare.use(python, environment, folder, around)
            if not by_spare:
                why = spare.fault or "the new command can have no spare"
                log.info("%s starts without its warm spare: %s", name, why)
                self._count(spare)
                spare.end()
        if python is None or self._closed.is_set():
            return None
        seat.python, seat.environment, seat.folder, seat.around = python, dict(environment), folder, around
        seat.since = time.monotonic()
        if spare is not None and by_spare:
            log.info("%s starts by its warm spare", name)
            spare.connection.close()
            seat.runs = lambda: spare.process.poll() is None
            return spare.process
        if seat.record is not None:
            os.close(seat.record)
        seat.record = _memory_file()
        words = [*python.interpreter, str(_PROGRAM), f"record:{seat.record}", *python.program]
        return Recording(words, len(python.interpreter) + 1, seat.record)

    def runs(self, name: str, runs: Callable[[], bool]) -> None:
        """Set the function that returns whether the program with this name runs."""
        self._seats[name].runs = runs

    def tend(self, saved: Callable[[], bool]) -> None:
        """Start a spare that is due, and end one that failed. Call it now and then; it does not wait.

        `saved`: whether a checkpoint was saved since the programs were started.
        """
        importing = False
        for seat in self._seats.values():
            with self._lock:
                spare = seat.spare
                if spare is not None:
                    was_ready = spare.ready
                    spare.look()
                    if spare.fault or spare.ended:
                        seat.spare = None
            if spare is None:
                continue
            if spare.fault or spare.ended:
                self._failed(seat, spare)
            elif spare.ready and not was_ready:
                self._taken = max(self._taken, spare.size)
                log.info("%s has a warm spare of %.0f MB", seat.name, spare.size / 1e6)
            importing = importing or not spare.ready
        # Start one spare at a time: the size of the first spare shows whether there is room for the next one.
        due = next((seat for seat in self._seats.values() if self._is_due(seat, saved)), None)
        if due and not importing and self._room() >= 2 * (self._taken or FIRST_BYTES):
            self._start_spare(due)

    def ready(self) -> dict[str, int]:
        """Return the process of each spare that waits, by the name of its program."""
        return {
            seat.name: seat.spare.process.pid
            for seat in self._seats.values()
            if seat.spare and seat.spare.ready and not seat.spare.fault
        }

    def _is_due(self, seat: _Seat, saved: Callable[[], bool]) -> bool:
        now = time.monotonic()
        if seat.spare or seat.record is None or now < seat.not_before or not seat.runs():
            return False
        if (noted := os.fstat(seat.record).st_blocks) != seat.noted:
            seat.noted, seat.since = noted, now
        return now >= seat.since + SETTLED_SECONDS or saved()

    def _failed(self, seat: _Seat, spare: _Spare) -> None:
        made_room = spare.ended or spare.was_oom_killed()
        seat.not_before = time.monotonic() + AGAIN_SECONDS if made_room else float("inf")
        why = "the memory is needed" if made_room else spare.fault
        log.warning("%s has no warm spare%s: %s", seat.name, " for now" if made_room else "", why)
        self._count(spare)
        # Go on if the spare does not end: it can't have become the program, because it was not told to.
        with contextlib.suppress(TimeoutError):
            spare.end()

    def _count(self, spare: _Spare) -> None:
        self._oom_kills += spare.was_oom_killed()

    def oom_kills(self) -> int | None:
        """Return the container's counter without the spares that the kernel killed."""
        kills = cgroups.oom_kills()
        return None if kills is None else kills - self.killed()

    def killed(self) -> int:
        """Return how many spares the kernel has killed. May be called in any thread."""
        waiting = [seat.spare for seat in list(self._seats.values()) if seat.spare]
        return self._oom_kills + sum(each.was_oom_killed() for each in waiting)

    def _start_spare(self, seat: _Seat) -> None:
        assert seat.python is not None
        assert seat.environment is not None
        assert seat.record is not None
        here, there = socket.socketpair()
        descriptors = (seat.record, there.fileno())
        words = [
            *seat.python.interpreter,
            str(_PROGRAM),
            "wait:{}:{}".format(*descriptors),
            *seat.python.program,
        ]
        try:
            # Keep the spare in the agent's process group: the agent kills no process of this group as a leftover of a
            # program. The spare leaves the group when it becomes the program.
            process = start_process(
                words,
                seat.environment,
                None if seat.around else seat.folder,
                pass_fds=descriptors,
                own_group=False,
                first=seat.around.entering(seat.folder) if seat.around else lambda: None,
            )
        except (OSError, subprocess.SubprocessError) as error:
            here.close()
            if not seat.runs():
                return  # The program has just ended.
            seat.not_before = float("inf")
            log.warning("%s has no warm spare: %s", seat.name, error)
            return
        finally:
            there.close()
        seat.spare = _Spare(process, here, seat.python, seat.environment, seat.around)
        if not self._watching:
            self._watching = True
            threading.Thread(target=self._watch, name="spares", daemon=True).start()

    def _room(self) -> int:
        """Return the bytes that the container, or the machine, has left."""
        usage = self._usage()
        left = psutil.virtual_memory().available
        if usage.memory is not None and usage.memory_limit is not None:
            left = min(left, usage.memory_limit - usage.memory)
        return int(left)

    def _watch(self) -> None:
        while not self._closed.wait(LOOK_SECONDS):
            self.make_room()

    def make_room(self) -> None:
        """End all spares when no room is left for another one: the programs need the memory."""
        with self._lock:
            spares = [seat.spare for seat in self._seats.values() if seat.spare]
            if spares and self._room() < (self._taken or FIRST_BYTES):
                for spare in spares:
                    spare.kill()

    def close(self) -> None:
        """End all spares."""
        self._closed.set()
        for seat in self._seats.values():
            with self._lock:
                spare, seat.spare = seat.spare, None
            if spare is not None:
                with contextlib.suppress(TimeoutError):
                    spare.end()
            if seat.record is not None:
                os.close(seat.record)
                seat.record = None


class _WarmStarter(Starter):
    def __init__(self, spares: Spares, name: str) -> None:
        self._spares, self._name = spares, name

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], folder: Path | None
    ) -> subprocess.Popen[bytes]:
        return self._spares.start(self._name, command, environment, folder)

    def oom_kills(self) -> int | None:
        return self._spares.oom_kills()


def _memory_file() -> int:
    descriptor = os.memfd_create("imports", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, spare_program.RECORD_BYTES)
    return descriptor
