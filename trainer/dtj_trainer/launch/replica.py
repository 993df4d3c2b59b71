"""A pod with user's programs, from the restore to the termination message.

The kind `replica` runs the user's command once. The kind `ranks` runs it once for each rank of the pod.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Sequence
from dataclasses import replace

from dtj_trainer import contract
from dtj_trainer.contract.failure_class import FailureClass
from dtj_trainer.launch.data_ahead import begin_staging
from dtj_trainer.launch.descendants import end_descendants
from dtj_trainer.launch.earlier_logs import set_aside_earlier
from dtj_trainer.launch.failure import (
    cut_off,
    forget_failures,
    rank_exit,
    signal_name,
    torch_error_file,
    unavailable,
)
from dtj_trainer.launch.logged_program import LoggedProgram
from dtj_trainer.launch.peers import PeersUnreachable
from dtj_trainer.launch.pod import (
    LOG_SYNC_SECONDS,
    ArtifactsUnavailable,
    Pod,
    stop_sync_seconds,
)
from dtj_trainer.launch.pod_exit import decisive, pod_exit
from dtj_trainer.launch.program import ProgramEnd
from dtj_trainer.launch.program_group import KILL_SECONDS, Ended, Member, ProgramGroup
from dtj_trainer.launch.settings import Settings
from dtj_trainer.launch.silent_servers import silent_servers
from dtj_trainer.launch.start_barrier import PortTaken, StartBarrier
from dtj_trainer.launch.termination import RankExit, forget_termination, write_termination
from dtj_trainer.launch.torch_failure import explain
from dtj_trainer.launch.torch_ranks import rank_log, rank_members
from dtj_trainer.launch.tracker_variables import tracker_variables
from dtj_trainer.launch.world_check import LOCAL_RANK, WorldCheck

log = logging.getLogger(__name__)

QUICK_STOP_SECONDS = 5.0
"""For a pod that uploads only a log: seconds for the program's end, and again for the log's upload."""

MOST_NAMES = 4
"""The largest number of servers in a message."""


class Replica:
    """One pod with its programs."""

    def __init__(self, settings: Settings, members: Sequence[Member], log_names: Sequence[str]) -> None:
        self._settings = settings
        self._members = members
        self._log_names = tuple(log_names)
        self._only_log = settings.pod.uploads == "other"
        """Whether the pod uploads only its log. A failed upload of a log is no failure, and is not waited for
        long."""
        self._alone = settings.pod.slots >= settings.world_size
        """Whether the job has no other pod with ranks."""
        self._group = ProgramGroup(members, self._describe)
        self._succeeded = False
        """Whether the programs have succeeded, and the pod has not reported it yet."""

    def run(self) -> int:
        """Run the programs to their end, then upload their artifacts; return the exit code."""
        for member in self._members:
            forget_failures(member.settings)
        forget_termination(self._settings.termination_log)
        try:
            pod = Pod(self._settings, log_names=self._log_names, on_superseded=self._stop_programs)
        except ArtifactsUnavailable as error:
            return self._report_exit(unavailable(self._settings, str(error), error.cause))
        try:
            return self._run_in(pod)
        finally:
            self._group.close()
            pod.close()

    def _run_in(self, pod: Pod) -> int:
        try:
            pod.prepare()
            begin_staging(self._settings)
            barrier = self._start_barrier(pod)
            pod.open()
            if barrier:
                self._wait_at(barrier, pod)
        except ArtifactsUnavailable as error:
            return self._report_exit(unavailable(self._settings, str(error), error.cause))
        # Ranks save a checkpoint together, also those of a pod that uploads only its log.
        quick = self._only_log and not self._settings.pod.slots
        self._group.stop_by_signals(kill_after=QUICK_STOP_SECONDS if quick else contract.STOP_SECONDS)
        pod.grace.watch(self._told_to_stop)
        for member in self._members:
            member.program.give(tracker_variables(member.settings))
        pod.phases.reached("programStarted")
        self._group.start(pod)
        check = self._check_world()
        ended = self._group.wait(pod)
        pod.note_torn(end_descendants(self._settings.kept_whole))
        if check:
            check.stop()
        pod.phases.reached("programEnded")
        return self._ended(pod, ended, check.fault if check else None)

    def _start_barrier(self, pod: Pod) -> StartBarrier | None:
        if self._settings.start_barrier is None:
            return None
        barrier = StartBarrier(self._settings, lambda: pod.superseded is not None)
        barrier.open()
        return barrier

    def _wait_at(self, barrier: StartBarrier, pod: Pod) -> None:
        """Wait for the job's other pods. Raises ArtifactsUnavailable."""
        try:
            barrier.wait()
        except PeersUnreachable as error:
            raise ArtifactsUnavailable(str(error), FailureClass.PEERS_UNREACHABLE) from error
        except PortTaken as error:
            raise ArtifactsUnavailable(str(error), FailureClass.PORT_IN_USE) from error
        if superseded := pod.superseded:
            raise superseded
        pod.phases.reached("peersReady")

    def _check_world(self) -> WorldCheck | None:
        """Watch the ranks that the user's programs start."""
        by_command = self._members[0].settings.rank is None
        # In the pod of a command, LOCAL_RANK may be the job's own variable: a process that has it may be no rank.
        if not self._settings.pod.slots or (by_command and LOCAL_RANK in self._settings.environment):
            return None
        programs = {
            pid: self._settings.pod.ranks if (rank := member.settings.rank) is None else range(rank, rank + 1)
            for member in self._members
            if (pid := member.program.pid) is not None
        }
        check = WorldCheck(
            self._settings,
            programs,
            lambda: self._group.stop_soon(signal.SIGTERM, KILL_SECONDS),
            by_command=by_command,
        )
        check.start()
        return check

    def _stop_programs(self) -> None:
        self._group.stop_soon(signal.SIGTERM, QUICK_STOP_SECONDS)

    def _told_to_stop(self, number: int) -> None:
        """Report a signal that arrives during the last upload, because the pod may be killed before the end of it."""
        if self._succeeded:
            self._report_exit(self._upload_stopped(number))

    def _upload_stopped(self, number: int, why: str = "") -> RankExit:
        exit_report = rank_exit(self._settings, ProgramEnd(128 + number))
        exit_report["class"], exit_report["signal"] = FailureClass.SIGNAL, number
        exit_report["message"] = (
            f"the pod was told to stop ({signal_name(number)}) during its last upload{why and f': {why}'}"
        )
        return exit_report

    def _describe(self, member: Member, end: ProgramEnd) -> RankExit:
        lines = member.program.last_lines.lines()
        exit_report = rank_exit(member.settings, end, lines)
        if self._settings.pod.slots and not end.succeeded:
            file, rank = torch_error_file(member.settings), member.settings.rank
            explain(exit_report, end, lines, file, rank=rank, alone=self._alone)
        return exit_report

    def _ended(self, pod: Pod, ended: Sequence[Ended], wrong_world: str | None) -> int:
        stop_signal = self._group.stop_signal
        first = decisive(ended, stop_signal)
        if superseded := pod.superseded:
            # The programs' own ends do not matter after a later attempt has taken over.
            exit_report = unavailable(self._settings, str(superseded), superseded.cause)
        elif wrong_world:
            exit_report = unavailable(self._settings, wrong_world, FailureClass.WORLD_SIZE_MISMATCH)
            exit_report["exitCode"] = contract.EXIT_CONFIG
        else:
            exit_report = pod_exit(ended, stop_signal, alone=self._alone)
            if (
                self._settings.pod.uploads == "primary"
                and exit_report.get("class") == FailureClass.APPLICATION_ERROR
                and not first.end.stopped
            ):
                self._explain(exit_report)
        failed = "class" in exit_report
        if failed:
            # Report before the upload, because the pod may be killed during the upload.
            self._report_failure(pod, exit_report, first)
        else:
            self._succeeded = True
            if number := self._group.stop_signal:
                self._told_to_stop(number)
        closed = not any(cut_off(each.end, each.report) for each in ended)
        try:
            pod.finish(
                ended=closed, timeout=self._sync_seconds(pod, stopped=any(each.end.stopped for each in ended))
            )
        except ArtifactsUnavailable as error:
            if not failed and not self._only_log:
                exit_report = unavailable(self._settings, str(error), error.cause)
                if (number := self._group.stop_signal) and error.cause != FailureClass.SUPERSEDED:
                    exit_report = self._upload_stopped(number, str(error))
                self._succeeded = False
                return self._report_exit(exit_report, first)
            if error.cause != FailureClass.SUPERSEDED:  # The termination message reports it.
                log.warning("%s", error)
        pod.end_tracking(
            "KILLED" if stop_signal else "FAILED" if failed else "FINISHED",
            stopped=failed or stop_signal is not None,
        )
        if failed:
            self._report_failure(pod, exit_report, first)
        else:
            exit_report.update(pod.report())  # type: ignore[typeddict-item]  # a Report's fields are a Termination's
            if self._settings.pod.uploads == "primary" and stop_signal is None and pod.record_success():
                exit_report["recorded"] = True
            self._succeeded = False
            self._report_exit(exit_report, first)
        return exit_report["exitCode"]

    def _explain(self, exit_report: RankExit) -> None:
        """Extend the message of a bare exit code, if the program may have lost servers together with their node."""
        if silent := silent_servers(self._settings.environment):
            exit_report["class"] = FailureClass.CONNECTION_LOST
            exit_report["message"] += f", while {', '.join(silent[:MOST_NAMES])} did not answer"

    def _sync_seconds(self, pod: Pod, *, stopped: bool) -> float | None:
        """Return the limit of the last upload; None: no limit while the bucket accepts bytes."""
        longest = self._settings.sync_timeout
        if self._only_log:
            return min(longest, QUICK_STOP_SECONDS if stopped else LOG_SYNC_SECONDS)
        return stop_sync_seconds(longest, pod.grace) if stopped else None

    def _report_failure(self, pod: Pod, exit_report: RankExit, first: Ended) -> None:
        """Write the termination message of a failure.

        The message has the checkpoint from which the program did not go on, and the files that are not uploaded.
        """
        artifacts = pod.report().get("artifacts", {})
        if "restored" in artifacts or "notUploaded" in artifacts:
            exit_report["artifacts"] = artifacts
        self._report_exit(exit_report, first)

    def _report_exit(self, exit_report: RankExit, first: Ended | None = None) -> int:
        exit_report.pop("stopped", None)
        if "class" in exit_report and first is not None:
            exit_report["lastLogLines"] = first.member.program.last_lines.lines()
        write_termination(self._settings.termination_log, exit_report)
        return exit_report["exitCode"]


def run_replica(settings: Settings, command: Sequence[str]) -> int:
    """Run a replica's program. The exit code is the program's."""
    set_aside_earlier(settings.root)
    variables = {}
    if settings.pod.slots:
        # The command starts the ranks. RANK says which pod this is, as torchrun's --node-rank.
        settings = replace(settings, rank=None)
        variables["TORCHELASTIC_ERROR_FILE"] = str(torch_error_file(settings))
    log_name = f"{settings.pod.name}.log"
    program = LoggedProgram(settings, command, log_name, variables=variables)
    return Replica(settings, [Member(settings.pod.name, settings, program)], [log_name]).run()


def run_ranks(settings: Settings, command: Sequence[str]) -> int:
    """Run the program once for each rank of the pod. The exit code is that of the first rank that failed."""
    set_aside_earlier(settings.root)
    members = rank_members(settings, command)
    return Replica(settings, members, [rank_log(rank) for rank in settings.pod.ranks]).run()
