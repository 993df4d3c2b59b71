"""The launcher of a Horovod job: waits for the hosts, starts the ranks, and reports how the run ended."""

from __future__ import annotations

import logging
import re
import signal
import sys
import threading
from collections.abc import Sequence

from dtj_trainer import contract
from dtj_trainer.artifacts.pod_sync import PodSync
from dtj_trainer.artifacts.s3 import S3Error
from dtj_trainer.contract.failure_class import FailureClass
from dtj_trainer.launch.grace import Grace
from dtj_trainer.launch.hosts import RankHosts, rank_hosts
from dtj_trainer.launch.outcome import decide
from dtj_trainer.launch.output import LastLines, LogFile, writer_to
from dtj_trainer.launch.peers import HostfileError, PeersUnreachable
from dtj_trainer.launch.phases import PhaseLog
from dtj_trainer.launch.pod import LOG_SYNC_SECONDS, sync_settings
from dtj_trainer.launch.program import STOP_ALL_RANKS, Program, ProgramEnd
from dtj_trainer.launch.settings import Settings
from dtj_trainer.launch.termination import RankExit, split_marker, write_termination

log = logging.getLogger(__name__)

LOG_NAME = "launcher-0.log"
_RANK_PREFIX = re.compile(rb"\[rank (\d+)\] ")
_MARKER = contract.RANK_EXIT_MARKER.encode()


class Launcher:
    """One run of the ranks on all hosts."""

    def __init__(self, settings: Settings, command: Sequence[str]) -> None:
        self._settings = settings
        self._command = command
        self._phases = PhaseLog()
        self._grace = Grace()
        self._exits: list[RankExit] = []
        self._own_lines = LastLines(200)
        """Lines without a rank's prefix: the output of mpirun or gloo."""
        self._rank_lines: dict[int, LastLines] = {}
        self._stopped = False
        """Whether the launcher was asked to stop."""

    def run(self) -> int:
        """Wait for the hosts, run, and write the termination message; return the exit code."""
        settings = self._settings
        self._phases.reached("started")
        self._log_file = LogFile(settings.logs / LOG_NAME, kept=settings.rotated_logs)
        self._pass_on = writer_to(sys.stdout.fileno())
        sync = self._start_log_sync()
        hosts = rank_hosts(settings)
        try:
            hosts.wait()
        except HostfileError as error:
            return self._end(
                _own_failure(FailureClass.APPLICATION_ERROR, str(error), contract.EXIT_CONFIG), sync
            )
        except PeersUnreachable as error:
            return self._end(
                _own_failure(FailureClass.PEERS_UNREACHABLE, str(error), contract.EXIT_UNAVAILABLE), sync
            )
        self._phases.reached("peersReady")
        end = self._run_ranks(hosts)
        self._stopped = end.stopped
        return self._end(decide(end, self._exits, self._own_lines.lines(), hosts.lost), sync)

    def _run_ranks(self, hosts: RankHosts) -> ProgramEnd:
        program = Program(*hosts.start(self._command), self._on_lines, stop_whole_group=False)

        def stop(number: int, _: object) -> None:
            # SIGTERM makes mpirun kill the ranks a second later, in the middle of a checkpoint.
            program.stop(number, STOP_ALL_RANKS)
            threading.Timer(contract.STOP_SECONDS, program.stop, (number, signal.SIGTERM)).start()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        self._grace.watch()
        return program.start() or program.wait()

    def _on_lines(self, lines: bytes) -> None:
        if _MARKER in lines:
            lines = b"".join(map(self._without_marker, lines.splitlines(keepends=True)))
        self._log_file.write(lines)
        self._pass_on(lines)
        for line in lines.split(b"\n"):
            if ranked := _RANK_PREFIX.match(line):
                self._rank_lines.setdefault(int(ranked[1]), LastLines()).add(line[ranked.end() :])
            else:
                self._own_lines.add(line)

    def _without_marker(self, line: bytes) -> bytes:
        """Take the exit of a rank out of a line. Return the rest of the line."""
        text, exit_report = split_marker(line.decode(errors="replace"))
        if exit_report is None:
            return line
        self._exits.append(exit_report)
        return text.encode() if text.strip() else b""

    def _end(self, message: contract.Termination, sync: PodSync | None) -> int:
        settings = self._settings
        exit_report = message.copy()
        failed = "class" in exit_report
        exit_report.setdefault("role", settings.pod.role)
        exit_report.setdefault("index", settings.pod.index)
        exit_report["phases"] = _merged(exit_report.get("phases", {}), self._phases.times())
        if failed:
            rank = exit_report.get("rank")
            of_rank = self._rank_lines.get(rank) if rank is not None else None
            exit_report["lastLogLines"] = (of_rank or self._own_lines).lines()
            line = f"dtj: {exit_report['class']}: {exit_report.get('message', '')}\n".encode()
            self._log_file.write(line)
            self._pass_on(line)
        elif sync and not self._stopped:
            # The ranks' pods have uploaded all but this log. The message comes before the log, whose upload may last.
            seconds = min(settings.sync_timeout, self._grace.left())
            if sync.record_success(settings.pod.name, _report_of(exit_report), seconds):
                exit_report["recorded"] = True
        write_termination(settings.termination_log, exit_report)
        if sync:
            try:
                seconds = min(LOG_SYNC_SECONDS, settings.sync_timeout)
                sync.finish(seconds, ended=True, until=self._grace.left_to_upload)
            except S3Error as error:
                log.warning("the launcher's log was not uploaded: %s", error)
        return exit_report["exitCode"] or (1 if failed else 0)

    def _start_log_sync(self) -> PodSync | None:
        try:
            sync = PodSync(sync_settings(self._settings, log_names=(LOG_NAME,)), lambda _: None)
        except ValueError as error:
            log.warning("the launcher's log is not uploaded: %s", error)
            return None
        sync.start()
        return sync


def _own_failure(cause: FailureClass, message: str, code: int) -> contract.Termination:
    return {"class": cause, "message": message, "exitCode": code}


def _report_of(message: contract.Termination) -> contract.Report:
    """Return what rank 0 reported at its end."""
    report: contract.Report = {}
    if "progress" in message:
        report["progress"] = message["progress"]
    if "artifacts" in message:
        report["artifacts"] = message["artifacts"]
    return report


def _merged(of_rank: contract.Phases, own: contract.Phases) -> contract.Phases:
    """Merge the phases of rank 0's pod and of the launcher; a phase in both keeps the earlier time."""
    names = [*of_rank, *(name for name in own if name not in of_rank)]
    return {name: min(p[name] for p in (of_rank, own) if name in p) for name in names}


def run_launcher(settings: Settings, command: Sequence[str]) -> int:
    """Run a launcher pod. The exit code is that of the failed rank, if known."""
    return Launcher(settings, command).run()
