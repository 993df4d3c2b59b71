"""A pod with user's programs, from the restore to the termination message.

The kind `replica` runs the user's command once. The kind `ranks` runs it once for each rank of the pod. In a job with
rounds, either runs it again in each round.
"""

from __future__ import annotations

import errno
import json
import logging
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from queue import Empty
from typing import Any

from dtj_trainer import contract
from dtj_trainer.contract.failure_class import FailureClass
from dtj_trainer.launch.event_queue import EventQueue
from dtj_trainer.launch.failure import (
    explain,
    forget_failures,
    rank_exit,
    signal_name,
    torch_error_file,
    unavailable,
)
from dtj_trainer.launch.leftovers import Leftovers
from dtj_trainer.launch.peers import PeersUnreachable, PortTaken, StartBarrier
from dtj_trainer.launch.pod import (
    LOG_SYNC_SECONDS,
    Pod,
    PrerequisiteMissing,
    begin_staging,
    set_aside_earlier,
    stop_sync_seconds,
)
from dtj_trainer.launch.pod_rounds import PodRounds, first_line, round_variables
from dtj_trainer.launch.processes import end_descendants
from dtj_trainer.launch.program import SIGNAL_SECONDS, LoggedProgram, ProgramEnd
from dtj_trainer.launch.program_group import (
    KILL_SECONDS,
    Ended,
    Member,
    MemberEnd,
    ProgramGroup,
    decisive,
    in_round,
    pod_exit,
    rank_log,
    rank_members,
)
from dtj_trainer.launch.round_agent import EndPrograms, StartPrograms, WithoutRounds
from dtj_trainer.launch.round_messages import Go, restarts_of
from dtj_trainer.launch.settings import Settings
from dtj_trainer.launch.spare import Spares
from dtj_trainer.launch.termination import RankExit, forget_termination, write_termination
from dtj_trainer.launch.tracking import tracker_variables
from dtj_trainer.launch.world_check import LOCAL_RANK, WorldCheck

# silent_servers finds the tasks of a TensorFlow cluster that do not answer: TensorFlow reports their loss by any of
# many errors.

CONNECT_SECONDS = 3.0
_CHECKS_AT_A_TIME = 32


def silent_servers(environment: Mapping[str, str]) -> list[str]:
    """Return the host:port of the tasks in TF_CONFIG whose nodes do not answer.

    A task that refuses the connection is not silent: its node runs, and its pod reports its own end. The task of this
    pod refuses the connection too, because its program has ended.
    """
    try:
        cluster = json.loads(environment.get(contract.ENV_TF_CONFIG, ""))["cluster"]
        servers = [str(address) for addresses in cluster.values() for address in addresses]
    except (ValueError, KeyError, TypeError, AttributeError):
        return []
    with ThreadPoolExecutor(_CHECKS_AT_A_TIME) as pool:
        return [each for each, silent in zip(servers, pool.map(_is_silent, servers), strict=True) if silent]


def _is_silent(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        return isinstance(error, TimeoutError) or error.errno == errno.EHOSTUNREACH
    except (ValueError, OverflowError):
        pass  # An invalid address says nothing about a node.
    return False


log = logging.getLogger(__name__)

QUICK_STOP_SECONDS = 5.0
"""For a pod that uploads only a log: seconds for the program's end, and again for the log's upload."""

MOST_NAMES = 4
"""The largest number of servers in a message."""


@dataclass(frozen=True)
class Leaves:
    """The event that the pod takes no part in a later round. `why`: a predicate of which the pod is the subject."""

    why: str


class _Start:
    """One start of the pod's programs: what is made anew in each round."""

    def __init__(self, members: Sequence[Member], group: ProgramGroup) -> None:
        self.members, self.group = members, group
        self.at_ns = 0
        """When the programs were started, by the wall clock, in nanoseconds."""
        self.check: WorldCheck | None = None
        self.round = 0
        """The round that ends, once the programs were killed because of it."""
        self.killed = False
        """Whether the programs were killed because their round ends."""
        self.gone = False
        """Whether nothing of the killed programs is left."""

    @property
    def wrong_world(self) -> str | None:
        """What is wrong with the ranks that the programs have started."""
        return self.check.fault if self.check else None


Members = Callable[[Mapping[str, str]], Sequence[Member]]
"""Returns the programs of a pod, with the variables that a round changes."""


class Replica:
    """One pod with its programs."""

    def __init__(
        self, settings: Settings, members: Members, log_names: Sequence[str], spares: Spares | None = None
    ) -> None:
        """`spares`: those by which `members` start in a round."""
        self._settings = settings
        self._members, self._spares = members, spares
        self._log_names = tuple(log_names)
        self._only_log = settings.pod.uploads == "other"
        """Whether the pod uploads only its log. A failed upload of a log is no failure, and is not waited for
        long."""
        self._alone = settings.pod.slots >= settings.world_size
        """Whether the job has no other pod with ranks."""
        self._events: EventQueue[object] = EventQueue()
        """What the main thread has to do: MemberEnd, Leaves, and the actions of the rounds' agent."""
        self._start = self._new_start({})
        self._handlers: dict[int, Any] = {}
        """The handlers of signals before those of this object."""
        self._stop_signal: int | None = None
        """The signal that asked the pod to stop."""
        self._joined: PodRounds | None = None
        self._in_rounds = False
        """Whether a failure may be followed by a round."""
        self._leftovers: Leftovers | None = None
        self._why = ""
        """Why no round followed."""
        self._fault: PrerequisiteMissing | None = None
        """Why the programs of a round could not be started."""
        self._restarts: contract.RoundRestarts | None = None
        self._succeeded = False
        """Whether the programs have succeeded, and the pod has not reported it yet."""

    def run(self) -> int:
        """Run the programs to their end, then upload their artifacts; return the exit code."""
        self._forget_failures()
        forget_termination(self._settings.termination_log)
        try:
            pod = Pod(self._settings, log_names=self._log_names, on_superseded=self._stop_programs)
        except PrerequisiteMissing as error:
            return self._report_exit(unavailable(self._settings, str(error), error.cause))
        try:
            return self._run_in(pod)
        finally:
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
            if self._joined:
                self._joined.close()
            if self._spares:
                self._spares.close()
            pod.close()

    def _run_in(self, pod: Pod) -> int:
        try:
            pod.prepare()
            begin_staging(self._settings)
            barrier = self._start_barrier(pod)
            pod.open()
            if barrier:
                self._wait_at(barrier, pod)
        except PrerequisiteMissing as error:
            return self._report_exit(unavailable(self._settings, str(error), error.cause))
        # Ranks save a checkpoint together, also those of a pod that uploads only its log.
        quick = self._only_log and not self._settings.pod.slots
        self._stop_by_signals(kill_after=QUICK_STOP_SECONDS if quick else contract.STOP_SECONDS)
        pod.grace.watch(self._told_to_stop)
        self._start_programs(pod)
        self._follow(pod)
        pod.note_torn(end_descendants(self._settings.kept_whole).torn)
        if self._start.check:
            self._start.check.stop()
        pod.phases.reached("programEnded")
        return self._ended(pod, self._start.group.ended)

    def _stop_by_signals(self, kill_after: float) -> None:
        """Forward SIGTERM and SIGINT to all programs; kill them `kill_after` seconds later."""

        def stop(number: int, _: object) -> None:
            self._stop_signal = number
            self._start.group.stop_soon(number, kill_after)
            self._events.put(Leaves("was told to end"))

        for number in (signal.SIGTERM, signal.SIGINT):
            self._handlers[number] = signal.signal(number, stop)

    def _new_start(self, of_round: Mapping[str, str]) -> _Start:
        members = self._members(of_round)
        return _Start(members, ProgramGroup(members, self._describe, self._events.put))

    def _start_programs(self, pod: Pod) -> None:
        for member in self._start.members:
            member.program.give(tracker_variables(member.settings))
        pod.phases.reached("programStarted")
        self._start.at_ns = time.time_ns()
        self._start.group.start(pod)
        self._start.check = self._check_world(self._start)

    def _forget_failures(self) -> None:
        for member in self._start.members:
            forget_failures(member.settings)

    def _follow(self, pod: Pod) -> None:
        """Do what the events of this pod, and the agent of its rounds, ask for. Return when no program runs, and no
        round follows.
        """
        while self._start.group.runs or self._in_rounds:
            group = self._start.group
            self._tend_spares(pod)
            try:
                event = self._events.get(
                    timeout=SIGNAL_SECONDS if self._in_rounds else group.until_others_end()
                )
            except Empty:
                if not self._in_rounds:
                    group.end_others()
                continue
            match event:
                case MemberEnd():
                    self._member_ended(pod, event)
                case EndPrograms(number):
                    self._start.round = number
                    self._end_programs(pod)
                case StartPrograms(go):
                    self._start_again(pod, go)
                case WithoutRounds(why):
                    self._in_rounds, self._why = False, why
                    if why and not (group.runs and not group.ended):
                        log.info("no restart in place follows: %s", why)
                case Leaves(why) if self._joined:
                    self._joined.leave(why)
            start = self._start
            if self._in_rounds and start.killed and not start.group.runs and not start.gone:
                self._programs_gone(pod)

    def _tend_spares(self, pod: Pod) -> None:
        if self._spares and self._in_rounds:
            self._spares.tend(lambda: pod.saved_since(self._start.at_ns))
        elif self._spares:
            self._spares.close()

    def _member_ended(self, pod: Pod, event: MemberEnd) -> None:
        start = self._start
        latest = start.group.take(event, pod)
        if self._joined is None:
            return
        if latest.is_cause:
            self._joined.failed(self._failure_of(pod, RankExit(**latest.report), latest))
        elif not (start.group.runs or start.killed or any(each.is_cause for each in start.group.ended)):
            if all(each.end.succeeded for each in start.group.ended):
                self._joined.done()
            else:
                self._joined.leave("has ended its programs")

    def _end_programs(self, pod: Pod) -> None:
        """Kill the programs, because their round ends."""
        assert self._leftovers
        self._start.killed = True
        pod.note_torn(self._leftovers.end_processes(self._start.group.end))

    def _programs_gone(self, pod: Pod) -> None:
        """Remove what is left of killed programs, and report it to the rounds' agent."""
        assert self._joined
        assert self._leftovers
        self._start.gone = True
        if self._start.check:
            self._start.check.stop()
        self._forget_failures()
        pod.end_round(closed=self._start.group.closed)
        if why := self._leftovers.remove(self._may_not_start(pod)):
            self._joined.leave(why)
        else:
            self._joined.ended(self._start.round)

    def _may_not_start(self, pod: Pod) -> Callable[[], bool]:
        return lambda: self._stop_signal is not None or pod.superseded is not None

    def _start_again(self, pod: Pod, go: Go) -> None:
        """Start the programs of a round."""
        assert self._joined
        self._start = self._new_start(round_variables(self._settings.environment, go))
        if self._settings.pod.uploads == "primary":
            self._restarts = pod.restarts = restarts_of(go.round, go.failure)
        try:
            pod.begin_round(go.round, go.snapshot)
        except PrerequisiteMissing as error:
            self._fault = error
            self._joined.leave(f"can't begin round {go.round}: {error}")
            return
        if not self._may_not_start(pod)():
            for member in self._start.members:
                member.program.tell(first_line(go))
            self._start_programs(pod)

    def _start_barrier(self, pod: Pod) -> StartBarrier | None:
        if self._settings.start_barrier is None and self._settings.pod.rounds is None:
            return None
        barrier = StartBarrier(self._settings, lambda: pod.superseded is not None)
        barrier.open()
        return barrier

    def _wait_at(self, barrier: StartBarrier, pod: Pod) -> None:
        """Wait for the job's other pods. Raises PrerequisiteMissing."""
        try:
            held = barrier.wait()
        except PeersUnreachable as error:
            raise PrerequisiteMissing(str(error), FailureClass.PEERS_UNREACHABLE) from error
        except PortTaken as error:
            raise PrerequisiteMissing(str(error), FailureClass.PORT_IN_USE) from error
        if superseded := pod.superseded:
            raise superseded
        pod.phases.reached("peersReady")
        if held:
            self._leftovers = Leftovers(self._settings)
            self._joined = PodRounds(
                self._settings,
                barrier,
                held,
                newest_snapshot=pod.newest_snapshot,
                record=self._record,
                take=self._events.put,
            )
            self._in_rounds = True

    def _check_world(self, start: _Start) -> WorldCheck | None:
        """Watch the ranks that the user's programs start."""
        by_command = start.members[0].settings.rank is None
        # If one command starts the pod's ranks, LOCAL_RANK may be a variable of the job: then it proves no rank.
        if not self._settings.pod.slots or (by_command and LOCAL_RANK in self._settings.environment):
            return None
        programs = {
            pid: self._settings.pod.ranks if (rank := member.settings.rank) is None else range(rank, rank + 1)
            for member in start.members
            if (pid := member.program.pid) is not None
        }

        def stop() -> None:
            start.group.stop_soon(signal.SIGTERM, KILL_SECONDS)
            self._events.put(Leaves("runs other ranks than the job asks for"))

        check = WorldCheck(self._settings, programs, stop, by_command=by_command)
        check.start()
        return check

    def _stop_programs(self) -> None:
        self._start.group.stop_soon(signal.SIGTERM, QUICK_STOP_SECONDS)
        self._events.put(Leaves("was superseded by a later attempt"))

    def _told_to_stop(self, number: int) -> None:
        """Report a signal that arrives during the last upload, because the pod may be killed before the end of it."""
        if self._succeeded:
            self._report_exit(self._upload_stopped(number))

    def _upload_stopped(self, number: int, why: str = "") -> RankExit:
        return self._told_to_end(number, f"during its last upload{why and f': {why}'}")

    def _told_to_end(self, number: int, when: str) -> RankExit:
        exit_report = rank_exit(self._settings, ProgramEnd(128 + number))
        exit_report["class"], exit_report["signal"] = FailureClass.SIGNAL, number
        exit_report["message"] = f"the pod was told to stop ({signal_name(number)}) {when}"
        return exit_report

    def _describe(self, member: Member, end: ProgramEnd) -> RankExit:
        lines = member.program.last_lines.lines()
        exit_report = rank_exit(member.settings, end, lines)
        if self._settings.pod.slots and not end.succeeded:
            file, rank = torch_error_file(member.settings), member.settings.rank
            explain(exit_report, end, lines, file, rank=rank, alone=self._alone)
        return exit_report

    def _exit_report(self, pod: Pod, ended: Sequence[Ended], first: Ended | None) -> RankExit:
        """Return the pod's report, without progress, artifacts and log lines. `first`: the decisive end."""
        if superseded := pod.superseded:
            # The programs' own ends do not matter after a later attempt has taken over.
            return unavailable(self._settings, str(superseded), superseded.cause)
        if wrong_world := self._start.wrong_world:
            exit_report = unavailable(self._settings, wrong_world, FailureClass.WORLD_SIZE_MISMATCH)
            exit_report["exitCode"] = contract.EXIT_CONFIG
            return exit_report
        if first is None or (self._start.killed and not first.is_cause):
            return self._between_rounds()
        exit_report = pod_exit(ended, self._stop_signal, alone=self._alone)
        if (
            self._settings.pod.uploads == "primary"
            and exit_report.get("class") == FailureClass.APPLICATION_ERROR
            and not first.end.stopped
        ):
            self._explain(exit_report)
        return exit_report

    def _between_rounds(self) -> RankExit:
        """Return the report of a pod whose programs were ended for a round that did not follow."""
        if self._fault:
            return unavailable(self._settings, str(self._fault), self._fault.cause)
        if number := self._stop_signal:
            return self._told_to_end(number, "while its ranks were restarted in place")
        message = f"the ranks were ended for a restart in place, which did not follow: {self._why}"
        return unavailable(self._settings, message, FailureClass.CONNECTION_LOST)

    def _ended(self, pod: Pod, ended: Sequence[Ended]) -> int:
        stop_signal = self._stop_signal
        first = decisive(ended, stop_signal) if ended else None
        exit_report = self._exit_report(pod, ended, first)
        failed = "class" in exit_report
        if failed:
            # Report before the upload, because the pod may be killed during the upload.
            self._report_failure(pod, exit_report, first)
        else:
            self._succeeded = True
            if number := self._stop_signal:
                self._told_to_stop(number)
        closed = first is not None and self._start.group.closed
        stopped = any(each.end.stopped for each in ended) and not (self._start.killed and stop_signal is None)
        try:
            pod.finish(ended=closed, timeout=self._sync_seconds(pod, stopped=stopped))
        except PrerequisiteMissing as error:
            if not failed and not self._only_log:
                exit_report = unavailable(self._settings, str(error), error.cause)
                if (number := self._stop_signal) and error.cause != FailureClass.SUPERSEDED:
                    exit_report = self._upload_stopped(number, str(error))
                self._succeeded = False
                return self._report_exit(exit_report, first)
            # The termination message already reports that a later attempt has taken over.
            if error.cause != FailureClass.SUPERSEDED:
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
        """Extend a message that has only an exit code, if tasks of TF_CONFIG do not answer, as on a lost node."""
        if silent := silent_servers(self._settings.environment):
            exit_report["class"] = FailureClass.CONNECTION_LOST
            exit_report["message"] += f", while {', '.join(silent[:MOST_NAMES])} did not answer"

    def _sync_seconds(self, pod: Pod, *, stopped: bool) -> float | None:
        """Return the limit of the last upload; None: no limit while the bucket accepts bytes."""
        longest = self._settings.sync_timeout
        if self._only_log:
            return min(longest, QUICK_STOP_SECONDS if stopped else LOG_SYNC_SECONDS)
        return stop_sync_seconds(longest, pod.grace) if stopped else None

    def _report_failure(self, pod: Pod, exit_report: RankExit, first: Ended | None) -> None:
        """Write the termination message of a failure."""
        self._report_exit(self._failure_of(pod, exit_report, first))

    def _failure_of(self, pod: Pod, exit_report: RankExit, first: Ended | None) -> RankExit:
        """Complete the report of a failure: with the checkpoint from which the program did not go on, the files that
        are not uploaded, and the last lines of a program.
        """
        artifacts = pod.report().get("artifacts", {})
        if "restored" in artifacts or "notUploaded" in artifacts:
            exit_report["artifacts"] = artifacts
        if first is not None:
            exit_report["lastLogLines"] = first.member.program.last_lines.lines()
        return exit_report

    def _record(self, report: RankExit | None) -> None:
        """Write the termination message of a failure that a round may follow, or remove it."""
        if report is None:
            forget_termination(self._settings.termination_log)
        else:
            self._report_exit(RankExit(**report))

    def _report_exit(self, exit_report: RankExit, first: Ended | None = None) -> int:
        exit_report.pop("stopped", None)
        if "class" in exit_report and first is not None:
            exit_report["lastLogLines"] = first.member.program.last_lines.lines()
        if self._restarts:
            exit_report["restarts"] = self._restarts
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

    def members(of_round: Mapping[str, str]) -> list[Member]:
        words = in_round(settings, command, of_round)
        program = LoggedProgram(settings, words, log_name, variables={**of_round, **variables})
        return [Member(settings.pod.name, settings, program)]

    return Replica(settings, members, [log_name]).run()


def run_ranks(settings: Settings, command: Sequence[str]) -> int:
    """Run the program once for each rank of the pod. The exit code is that of the first rank that failed."""
    set_aside_earlier(settings.root)
    rounds = settings.pod.rounds
    spares = Spares() if rounds and rounds.spare else None
    members = partial(rank_members, settings, command, spares=spares)
    return Replica(settings, members, [rank_log(rank) for rank in settings.pod.ranks], spares).run()
