"""Runs one rank's program: passes its output on, forwards signals, tells how it ended."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import signal
import struct
import sys
import termios
import time
from collections.abc import Sequence

from dtj_trainer import contract
from dtj_trainer.launch.control import Attached, ControlClient, SupervisorGone, connect
from dtj_trainer.launch.failure import failure_file, rank_exit
from dtj_trainer.launch.output import LastLines, LogFile, writer_to
from dtj_trainer.launch.pod import ArtifactsUnavailable, Pod
from dtj_trainer.launch.program import Program, ProgramEnd
from dtj_trainer.launch.settings import Settings
from dtj_trainer.launch.termination import RankExit, marker_line, write_termination

log = logging.getLogger(__name__)

DRAIN_SECONDS = 0.5


class Rank:
    """One rank, or the only process of a job without MPI."""

    def __init__(self, settings: Settings, command: Sequence[str]) -> None:
        self._settings = settings
        self._command = command
        self._rank = settings.rank or 0
        self._last_lines = LastLines()
        self._supervisor: ControlClient | None = None
        self._pod: Pod | None = None

    def run(self) -> int:
        """Run the program to its end, then see its artifacts uploaded; the exit code."""
        settings = self._settings
        settings.logs.mkdir(parents=True, exist_ok=True)
        failure_file(settings).unlink(missing_ok=True)
        self._supervisor = connect(settings.control_socket)
        log_name = f"rank-{self._rank}.log"
        if self._supervisor is None:
            try:
                self._pod = Pod(settings, primary=self._rank == 0, log_names=(log_name,))
                self._pod.open(restore=self._rank == 0)
            except ArtifactsUnavailable as error:
                return self._tell(self._unavailable(str(error)))
        kept = LogFile(settings.logs / log_name)
        # Under MPI the launcher tells the ranks' lines from mpirun's own by it.
        prefix = f"[rank {self._rank}] " if settings.rank is not None else ""
        pass_on = writer_to(sys.stdout.fileno(), prefix.encode())

        def on_line(line: bytes) -> None:
            kept.write(line)
            pass_on(line)
            self._last_lines.add(line.decode(errors="replace"))

        end = self._run_program(Program(self._command, os.environ, on_line))
        kept.close()
        return self._ended(end)

    def _run_program(self, program: Program) -> ProgramEnd:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda received, _: program.stop(received))
        if self._pod:
            self._pod.phases.reached("programStarted")
        end = program.start()
        if end is not None:
            return end
        if self._supervisor:
            self._supervisor.attach(Attached(self._rank, os.getpid(), program.pid or 0))
        end = program.wait()
        if self._supervisor:
            self._supervisor.ended(succeeded=end.succeeded)
        if self._pod:
            self._pod.phases.reached("programEnded")
            if not end.succeeded:
                self._pod.program_died()
        return end

    def _ended(self, end: ProgramEnd) -> int:
        told = rank_exit(self._settings, end, self._last_lines.lines())
        if not end.succeeded:
            # Told before any upload: mpirun ends everything as soon as one rank fails.
            code = self._tell(told)
            if self._pod:
                with contextlib.suppress(ArtifactsUnavailable):
                    self._pod.finish(ended=False)
            return code
        try:
            report = self._finish()
        except ArtifactsUnavailable as error:
            return self._tell(self._unavailable(str(error)))
        if self._rank == 0:
            told.update(report)  # type: ignore[typeddict-item]  # a Report's fields are a Termination's
        return self._tell(told)

    def _finish(self) -> contract.Report:
        if self._pod:
            self._pod.finish(ended=True)
            return self._pod.report()
        assert self._supervisor is not None
        try:
            answer = self._supervisor.finish()
        except SupervisorGone as error:
            raise ArtifactsUnavailable(str(error)) from error
        if answer.fault:
            raise ArtifactsUnavailable(answer.fault)
        return answer.report

    def _unavailable(self, message: str) -> RankExit:
        log.error("%s", message)
        told = rank_exit(self._settings, ProgramEnd(contract.EXIT_UNAVAILABLE))
        told["class"], told["message"] = "ArtifactsUnavailable", message
        return told

    def _tell(self, told: RankExit) -> int:
        """Tell the end to the launcher, or to the kubelet where there is none; the exit code."""
        if self._supervisor or self._settings.rank is not None:
            sys.stdout.flush()
            _drain(sys.stdout.fileno())
            writer_to(sys.stdout.fileno())(marker_line(told).rstrip("\n").encode())
        else:
            told.pop("stopped", None)
            if "class" in told:
                told["lastLogLines"] = self._last_lines.lines()
            write_termination(self._settings.termination_log, told)
        return told["exitCode"]


def _drain(descriptor: int) -> None:
    """Wait until mpirun has read what was printed so far, so that the next line travels in one piece."""
    deadline = time.monotonic() + DRAIN_SECONDS
    while time.monotonic() < deadline:
        try:
            (unread,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0" * 4))
        except OSError:
            return
        if unread == 0:
            return
        time.sleep(0.01)


def run_rank(settings: Settings, command: Sequence[str]) -> int:
    """Run one rank's program; the exit code of the wrapper is the program's."""
    return Rank(settings, command).run()
