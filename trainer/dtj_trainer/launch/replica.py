"""A pod whose one process is the user's program, from the restore to the termination message."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Sequence

from dtj_trainer.contract.failure_class import FailureClass
from dtj_trainer.launch.data_ahead import begin_staging
from dtj_trainer.launch.failure import cut_off, failure_file, rank_exit, signal_name, unavailable
from dtj_trainer.launch.logged_program import LoggedProgram
from dtj_trainer.launch.pod import (
    LOG_SYNC_SECONDS,
    STOP_SECONDS,
    ArtifactsUnavailable,
    Pod,
    stop_sync_seconds,
)
from dtj_trainer.launch.program import ProgramEnd
from dtj_trainer.launch.settings import Settings
from dtj_trainer.launch.silent_servers import silent_servers
from dtj_trainer.launch.termination import RankExit, write_termination

log = logging.getLogger(__name__)

QUICK_STOP_SECONDS = 5.0
"""For a pod that uploads only a log: seconds for the program's end, and again for the log's upload."""

MOST_NAMES = 4
"""The largest number of servers in a message."""


class Replica:
    """One replica."""

    def __init__(self, settings: Settings, command: Sequence[str]) -> None:
        self._settings = settings
        self._only_log = settings.pod.uploads == "other"
        """Whether the pod uploads only its log. A failed upload of a log is no failure, and is not waited for
        long."""
        self._log_name = f"{settings.pod.name}.log"
        self._program = LoggedProgram(
            command, settings.logs / self._log_name, rotated_logs=settings.rotated_logs
        )

    def run(self) -> int:
        """Run the program to its end, then upload its artifacts; return the exit code."""
        failure_file(self._settings).unlink(missing_ok=True)
        try:
            pod = Pod(self._settings, log_names=(self._log_name,), on_superseded=self._stop_program)
            pod.prepare()
            begin_staging(self._settings)
            pod.open()
        except ArtifactsUnavailable as error:
            return self._report_exit(unavailable(self._settings, str(error), error.cause))
        self._program.stop_by_signals(kill_after=QUICK_STOP_SECONDS if self._only_log else STOP_SECONDS)
        pod.phases.reached("programStarted")
        end = self._run_program(pod)
        pod.phases.reached("programEnded")
        try:
            return self._ended(pod, end)
        finally:
            pod.close()

    def _run_program(self, pod: Pod) -> ProgramEnd:
        end = self._program.start()
        if end is not None:
            return end
        # The program stays registered after its end: no upload may take the files for closed before `finish` says so.
        pod.programs.began(self._settings.pod.name, self._program.pid or 0)
        return self._program.wait(pod.program_died)

    def _stop_program(self) -> None:
        self._program.stop_soon(signal.SIGTERM, QUICK_STOP_SECONDS)

    def _ended(self, pod: Pod, end: ProgramEnd) -> int:
        exit_report = rank_exit(self._settings, end, self._program.last_lines.lines())
        if superseded := pod.superseded:
            # The program's own end does not matter after a later attempt has taken over.
            exit_report = unavailable(self._settings, str(superseded), superseded.cause)
        elif end.succeeded and end.stop_signal is not None:
            # A program that exits with 0 after a stop signal may not have finished its work.
            exit_report["class"] = FailureClass.SIGNAL
            exit_report["message"] = (
                f"the program ended when it was told to stop ({signal_name(end.stop_signal)})"
            )
            exit_report["exitCode"], exit_report["signal"] = 128 + end.stop_signal, end.stop_signal
        elif (
            self._settings.pod.uploads == "primary"
            and exit_report.get("class") == FailureClass.APPLICATION_ERROR
            and not end.stopped
        ):
            self._explain(exit_report)
        failed = "class" in exit_report
        if failed:
            # Report before the upload, because the pod may be killed during the upload.
            self._report_exit(exit_report)
        try:
            pod.finish(ended=not cut_off(end, exit_report), timeout=self._sync_seconds(end))
        except ArtifactsUnavailable as error:
            if not failed and not self._only_log:
                return self._report_exit(unavailable(self._settings, str(error), error.cause))
            if error.cause != FailureClass.SUPERSEDED:  # The termination message reports it.
                log.warning("%s", error)
        if not failed:
            exit_report.update(pod.report())  # type: ignore[typeddict-item]  # a Report's fields are a Termination's
            self._report_exit(exit_report)
        return exit_report["exitCode"]

    def _explain(self, exit_report: RankExit) -> None:
        """Extend the message of a bare exit code, if the program may have lost servers together with their node."""
        if silent := silent_servers(os.environ):
            exit_report["class"] = FailureClass.CONNECTION_LOST
            exit_report["message"] += f", while {', '.join(silent[:MOST_NAMES])} did not answer"

    def _sync_seconds(self, end: ProgramEnd) -> float | None:
        """Return the limit of the last upload; None: no limit while the bucket accepts bytes."""
        longest = self._settings.sync_timeout
        if self._only_log:
            return min(longest, QUICK_STOP_SECONDS if end.stopped else LOG_SYNC_SECONDS)
        return stop_sync_seconds(longest) if end.stopped else None

    def _report_exit(self, exit_report: RankExit) -> int:
        exit_report.pop("stopped", None)
        if "class" in exit_report:
            exit_report["lastLogLines"] = self._program.last_lines.lines()
        write_termination(self._settings.termination_log, exit_report)
        return exit_report["exitCode"]


def run_replica(settings: Settings, command: Sequence[str]) -> int:
    """Run a replica's program. The exit code is the program's."""
    return Replica(settings, command).run()
