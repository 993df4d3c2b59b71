"""A pod whose one process is the user's program, from the restore to the termination message."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Sequence

from dtj_trainer.failure_class import FailureClass
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
"""Of a pod that has no more than a log to save: for its program's end, and again for the log's upload."""

MOST_NAMES = 4
"""Of servers in a message."""


class Replica:
    """One replica."""

    def __init__(self, settings: Settings, command: Sequence[str]) -> None:
        self._settings = settings
        self._only_log = settings.pod.uploads == "other"
        """Whether nothing but the log is uploaded, which is no reason to fail or to wait for long."""
        self._log_name = f"{settings.pod.name}.log"
        self._program = LoggedProgram(
            command, settings.logs / self._log_name, rotated_logs=settings.rotated_logs
        )

    def run(self) -> int:
        """Run the program to its end, then see its artifacts uploaded; the exit code."""
        failure_file(self._settings).unlink(missing_ok=True)
        try:
            pod = Pod(self._settings, log_names=(self._log_name,), on_superseded=self._stop_program)
            pod.prepare()
            begin_staging(self._settings)
            pod.open()
        except ArtifactsUnavailable as error:
            return self._tell(unavailable(self._settings, str(error), error.cause))
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
        told = rank_exit(self._settings, end, self._program.last_lines.lines())
        if superseded := pod.superseded:
            # Whatever the program did then, and however it took its end, is nobody's concern any more.
            told = unavailable(self._settings, str(superseded), superseded.cause)
        elif end.succeeded and end.stop_signal is not None:
            # It left because it was told to: its work is not known to be done.
            told["class"] = FailureClass.SIGNAL
            told["message"] = f"the program ended when it was told to stop ({signal_name(end.stop_signal)})"
            told["exitCode"], told["signal"] = 128 + end.stop_signal, end.stop_signal
        elif (
            self._settings.pod.uploads == "primary"
            and told.get("class") == FailureClass.APPLICATION_ERROR
            and not end.stopped
        ):
            self._explain(told)
        failed = "class" in told
        if failed:
            self._tell(told)  # Already now: the pod may be killed during the upload.
        try:
            pod.finish(ended=not cut_off(end, told), timeout=self._sync_seconds(end))
        except ArtifactsUnavailable as error:
            if not failed and not self._only_log:
                return self._tell(unavailable(self._settings, str(error), error.cause))
            if error.cause is not FailureClass.SUPERSEDED:  # Which was told.
                log.warning("%s", error)
        if not failed:
            told.update(pod.report())  # type: ignore[typeddict-item]  # a Report's fields are a Termination's
            self._tell(told)
        return told["exitCode"]

    def _explain(self, told: RankExit) -> None:
        """Of a program that says no more than its exit code: whether it may have lost others with their node."""
        if silent := silent_servers(os.environ):
            told["class"] = FailureClass.CONNECTION_LOST
            told["message"] += f", while {', '.join(silent[:MOST_NAMES])} did not answer"

    def _sync_seconds(self, end: ProgramEnd) -> float | None:
        """The most that the last upload may take; None: as long as the bucket takes bytes."""
        longest = self._settings.sync_timeout
        if self._only_log:
            return min(longest, QUICK_STOP_SECONDS if end.stopped else LOG_SYNC_SECONDS)
        return stop_sync_seconds(longest) if end.stopped else None

    def _tell(self, told: RankExit) -> int:
        told.pop("stopped", None)
        if "class" in told:
            told["lastLogLines"] = self._program.last_lines.lines()
        write_termination(self._settings.termination_log, told)
        return told["exitCode"]


def run_replica(settings: Settings, command: Sequence[str]) -> int:
    """Run a replica's program; the exit code is the program's."""
    return Replica(settings, command).run()
