"""Runs one rank's program in a worker's pod: passes on its output, forwards signals, and reports its end."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import sys
import termios
import threading
import time
from collections.abc import Sequence

from dtj_trainer.launch.failure import cut_off, followed_another, forget_failures, rank_exit, unavailable
from dtj_trainer.launch.output import writer_to
from dtj_trainer.launch.processes import end_descendants
from dtj_trainer.launch.program import STOP_ALL_RANKS, LoggedProgram
from dtj_trainer.launch.settings import Settings
from dtj_trainer.launch.supervisor_socket import Attached, ControlClient, SupervisorGone, connect
from dtj_trainer.launch.termination import RankExit, marker_line
from dtj_trainer.launch.tracking import tracker_variables
from dtj_trainer.parent_death import die_with_parent

DRAIN_SECONDS = 0.5
CAUSE_SECONDS = 5.0
"""Seconds for the faulty rank to end and report the cause. It may end later than ranks that failed because of it, and
mpirun ends all ranks after the first one."""


def run_rank(settings: Settings, command: Sequence[str]) -> int:
    """Run one rank's program. The exit code of the wrapper is the program's."""
    if settings.local_workers:
        # On this machine, a rank has no ssh connection whose break would end it after the launcher is killed.
        die_with_parent()()
    supervisor = connect(settings.control_socket)
    if supervisor is None:
        return _report_exit(
            unavailable(settings, f"no worker's supervisor answers at {settings.control_socket}")
        )
    if (fault := _fault(settings, supervisor)) is not None:
        return _report_exit(fault)
    rank = settings.rank or 0
    forget_failures(settings)
    rounds = settings.pod.rounds
    starter = None
    if rounds and rounds.spare:
        from dtj_trainer.launch.spare_starts import RankStarter  # Import here, because few jobs keep spares.

        starter = RankStarter(settings.control_socket, rank, settings.round)
    # The launcher recognizes lines of ranks, as opposed to mpirun's own, by the prefix.
    program = LoggedProgram(
        settings,
        command,
        f"rank-{rank}.log",
        prefix=f"[rank {rank}] ",
        variables=tracker_variables(settings),
        starter=starter,
    )
    program.stop_by_signals()
    launcher_stops = threading.Event()

    def stop(*_: object) -> None:
        launcher_stops.set()
        program.stop(signal.SIGTERM)

    signal.signal(STOP_ALL_RANKS, stop)
    if settings.round:
        program.tell(f"dtj: round {settings.round} begins")
    end = program.start()
    if end is None:
        supervisor.attach(Attached(rank, os.getpid(), program.pid or 0, settings.round))
        end = program.wait(supervisor.died)
    torn = [*end.torn, *end_descendants(settings.kept_whole).torn]
    if starter:
        torn += starter.end_orphans(settings.kept_whole)
    exit_report = rank_exit(settings, end, program.last_lines.lines())
    if program.pid is not None:
        supervisor.ended(failed="class" in exit_report, cut_off=cut_off(end, exit_report), torn=torn)
    if followed_another(end, program.last_lines.lines()):
        time.sleep(CAUSE_SECONDS)
    if end.succeeded:
        exit_report = _finished(settings, supervisor, exit_report)
    # Report a failure before any upload: mpirun ends everything as soon as one rank fails.
    code = _report_exit(exit_report)
    # When the launcher stops all ranks, exit with 0, so that mpirun does not kill ranks that still save a checkpoint.
    return 0 if launcher_stops.is_set() else code


def _fault(settings: Settings, supervisor: ControlClient) -> RankExit | None:
    """Wait until the pod has restored its artifacts; return why the program can't start, or None."""
    try:
        answer = supervisor.ready(settings.round)
    except SupervisorGone as error:
        return unavailable(settings, str(error))
    return unavailable(settings, answer.fault, answer.cause) if answer.fault else None


def _finished(settings: Settings, supervisor: ControlClient, exit_report: RankExit) -> RankExit:
    """Upload the pod's artifacts after a success; return the end to report."""
    try:
        answer = supervisor.finish(settings.round)
    except SupervisorGone as error:
        return unavailable(settings, str(error))
    if answer.fault:
        return unavailable(settings, answer.fault, answer.cause)
    if exit_report["rank"] == 0:
        exit_report.update(answer.report)  # type: ignore[typeddict-item]  # a Report's fields are a Termination's
    elif refused := answer.report.get("artifacts", {}).get("notUploaded"):
        exit_report["artifacts"] = {"notUploaded": refused}
    return exit_report


def _report_exit(exit_report: RankExit) -> int:
    """Report the end to the launcher, on one line; return the exit code."""
    sys.stdout.flush()
    _drain(sys.stdout.fileno())
    writer_to(sys.stdout.fileno())(marker_line(exit_report).encode())
    return exit_report["exitCode"]


def _drain(descriptor: int) -> None:
    """Wait until mpirun has read all earlier output, so that the next line arrives in one piece."""
    deadline = time.monotonic() + DRAIN_SECONDS
    while time.monotonic() < deadline:
        try:
            (unread,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0" * 4))
        except OSError:
            return
        if unread == 0:
            return
        time.sleep(0.01)
