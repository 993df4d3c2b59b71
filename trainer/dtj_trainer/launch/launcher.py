"""The launcher of a Horovod job: waits for hosts, starts the ranks by mpirun or gloo, and reports why the run ended.

`main` calls it for the kind `launcher`. Not here: the start of a rank on its host (`horovod_rank`), the wait for
hosts (`peers`), the command of mpirun (`mpirun_hosts`), and the cause of a single rank's failure (`failure`).
"""

from __future__ import annotations

import logging
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from functools import partial
from queue import Empty
from typing import NamedTuple, cast

from dtj_trainer import contract
from dtj_trainer.artifacts.s3 import S3Error
from dtj_trainer.artifacts.sync import PodSync
from dtj_trainer.contract.failure_class import FailureClass
from dtj_trainer.launch.event_queue import EventQueue
from dtj_trainer.launch.failure import classify, signal_name
from dtj_trainer.launch.leftovers import Leftovers
from dtj_trainer.launch.mpirun_hosts import HostfileError, RankHosts, Start, rank_hosts, worker_names
from dtj_trainer.launch.output import LastLines, LogFile, writer_to
from dtj_trainer.launch.peers import PeersUnreachable, joined, listener_on
from dtj_trainer.launch.pod import LOG_SYNC_SECONDS, Grace, sync_settings
from dtj_trainer.launch.pod_connections import PodConnections, read_hello
from dtj_trainer.launch.pod_rounds import first_line
from dtj_trainer.launch.processes import adopt_orphans
from dtj_trainer.launch.program import SIGNAL_SECONDS, STOP_ALL_RANKS, Program, ProgramEnd
from dtj_trainer.launch.restart_in_place import Coordinator
from dtj_trainer.launch.round_agent import Agent, AgentAction, EndPrograms, StartPrograms, WithoutRounds
from dtj_trainer.launch.round_messages import Failed, Go, InvalidMessage, agent_message, line_of, restarts_of
from dtj_trainer.launch.round_server import RoundLink, RoundServer
from dtj_trainer.launch.settings import Settings
from dtj_trainer.launch.status_server import PhaseLog
from dtj_trainer.launch.termination import RankExit, forget_termination, split_marker, write_termination

# read_blame finds in mpirun's messages which process ended the job.


class Blame(NamedTuple):
    """What mpirun printed about the process that ended the job; None for what it did not print."""

    rank: int | None = None
    host: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    too_few_slots: bool = False


_BY_SIGNAL = re.compile(r"process rank (\d+) with PID \d+ on node (\S+) exited on signal (\d+)", re.DOTALL)
_PROCESS_NAME = re.compile(r"Process name: \[\[\d+,\d+\],(\d+)\]")
_EXIT_CODE = re.compile(r"Exit code:\s+(\d+)")
_NON_ZERO = re.compile(r"process(?:es)? returned\s+a non-zero exit code")
_TOO_FEW_SLOTS = re.compile(r"There are not enough slots available")


def read_blame(lines: Sequence[str], own_exit_code: int) -> Blame:
    """Parse mpirun's final message, for images whose ranks report nothing themselves.

    `own_exit_code` is mpirun's own code, which is that of the first failed process.
    """
    text = "\n".join(lines)
    if _TOO_FEW_SLOTS.search(text):
        return Blame(too_few_slots=True)
    if found := _BY_SIGNAL.search(text):
        return Blame(rank=int(found[1]), host=found[2], signal=int(found[3]))
    if code := _EXIT_CODE.search(text):
        name = _PROCESS_NAME.search(text)
        return Blame(rank=int(name[1]) if name else None, exit_code=int(code[1]))
    if _NON_ZERO.search(text):
        return Blame(exit_code=own_exit_code)
    return Blame()


_OWN_CHECKS: Set[str] = {
    FailureClass.WORLD_SIZE_MISMATCH,
    FailureClass.NO_ACCELERATOR,
    FailureClass.COMMAND_NOT_FOUND,
    FailureClass.MODULE_NOT_FOUND,
    FailureClass.OOM_KILLED,
    FailureClass.DISK_FULL,
    FailureClass.ARTIFACTS_UNAVAILABLE,
    FailureClass.SUPERSEDED,
}
"""Classes that are certain causes, even if other hosts were lost too."""

_LEFT_AFTER_SIGTERM = 128 + signal.SIGTERM
_MOST_HOSTS = 3
"""The largest number of pods whose refused files a message names."""


def decide(
    end: ProgramEnd,
    exits: Sequence[RankExit],
    mpirun_lines: Sequence[str],
    lost_hosts: Callable[[], dict[str, str]],
) -> contract.Termination:
    """Return the launcher's termination message, without last log lines.

    `exits`: the ranks' reports in the order of arrival. The cause is the first failed rank that was not asked to
    stop. `lost_hosts` returns the hosts that no longer answer with the reason; it is called only for a failed run.
    """
    stopped = [each for each in exits if each.get("stopped")]
    # An mpirun that is stopped during its start exits with 0 though no rank ran. Only the ranks' reports count then.
    if end.succeeded and (not end.stopped or (exits and not stopped)):
        first = next((each for each in exits if each.get("rank") == 0), RankExit())
        kept = {name: first[name] for name in ("progress", "artifacts", "phases") if name in first}
        if refused := _not_uploaded(first, exits):
            kept["artifacts"] = {**first.get("artifacts", {}), "notUploaded": refused}
        return cast(contract.Termination, {"exitCode": 0, **kept})
    causes = [each for each in exits if is_cause(each)]
    if stopped and all(each["exitCode"] == _LEFT_AFTER_SIGTERM for each in causes):
        causes = []  # These ranks left only because another rank was asked to stop.
    if end.stop_signal is not None and not causes:
        return {
            "class": FailureClass.SIGNAL,
            "message": f"the launcher was told to stop ({signal_name(end.stop_signal)})",
            "exitCode": 128 + end.stop_signal,
            "signal": end.stop_signal,
        }
    if causes and causes[0]["class"] in _OWN_CHECKS:
        return _without_stopped(causes[0])
    # A rank that was killed by SIGKILL, on a host that no longer answers, may have died with its pod or its node.
    own = [each for each in causes if each.get("signal") != signal.SIGKILL]
    lost = {
        host: reason
        for host, reason in lost_hosts().items()
        if not any(_is_host(host, each.get("host", "")) for each in own)
    }
    if lost:
        return _connection_lost(end, lost, causes)
    if causes:
        return _without_stopped(causes[0])
    return _without_ranks(end, exits, mpirun_lines)


def is_cause(report: RankExit) -> bool:
    """Return whether a rank failed that was not asked to stop."""
    return "class" in report and not report.get("stopped")


def _not_uploaded(first: RankExit, exits: Sequence[RankExit]) -> str:
    """Return the files that pods did not upload, by the reports of their ranks. `first`: the report of rank 0."""

    def refused(report: RankExit) -> str:
        return report.get("artifacts", {}).get("notUploaded", "")

    of_hosts = {each.get("host", ""): refused(each) for each in exits if refused(each)}
    of_hosts.pop(first.get("host", ""), None)
    named = [f"{host}: {text}" for host, text in sorted(of_hosts.items())]
    if len(named) > _MOST_HOSTS:
        named[_MOST_HOSTS:] = [f"and files of {len(named) - _MOST_HOSTS} more pods"]
    return "; ".join(filter(None, [refused(first), *named]))


def _is_host(in_hostfile: str, reported: str) -> bool:
    """Compare hosts: a rank reports its pod's short name, and the hostfile may have the full name."""
    return in_hostfile == reported or in_hostfile.partition(".")[0] == reported


def _without_stopped(exit_report: RankExit) -> contract.Termination:
    copy = RankExit(**exit_report)
    copy.pop("stopped", None)
    return copy


def _connection_lost(
    end: ProgramEnd, lost: dict[str, str], causes: Sequence[RankExit]
) -> contract.Termination:
    hosts = "; ".join(f"{host} ({reason})" for host, reason in lost.items())
    message = f"connection lost to {hosts}"
    if causes:
        exit_report = causes[0]
        message += f"; then rank {exit_report.get('rank')} on {exit_report.get('host')} failed: "
        message += f"{exit_report.get('message')}"
    code = causes[0]["exitCode"] if causes else end.exit_code
    return {
        "class": FailureClass.CONNECTION_LOST,
        "message": message,
        "host": next(iter(lost)),
        "exitCode": code,
    }


def _without_ranks(
    end: ProgramEnd, exits: Sequence[RankExit], mpirun_lines: Sequence[str]
) -> contract.Termination:
    """Derive the cause without a rank's report: from mpirun's messages, or the loss of a host with all its ranks."""
    if end.missing is not None:
        return {"class": FailureClass.COMMAND_NOT_FOUND, "message": end.missing, "exitCode": end.exit_code}
    blame = read_blame(mpirun_lines, end.exit_code)
    if blame.too_few_slots:
        return {
            "class": FailureClass.WORLD_SIZE_MISMATCH,
            "message": "mpirun: there are not enough slots on the hosts of the hostfile",
            "exitCode": contract.EXIT_CONFIG,
        }
    stopped = [each for each in exits if each.get("stopped")]
    if not stopped and end.signal is not None:
        cause, message = classify(end, "mpirun")
        return {
            "class": cause,
            "message": message,
            "exitCode": end.exit_code,
            "signal": end.signal,
        }
    if not stopped and (blame.exit_code is not None or blame.signal is not None):
        ended = ProgramEnd(
            blame.exit_code if blame.signal is None else 128 + blame.signal,  # type: ignore[arg-type]
            signal=blame.signal,
        )
        cause, message = classify(ended)
        found: contract.Termination = {"class": cause, "message": message, "exitCode": ended.exit_code}
        if blame.rank is not None:
            found["rank"] = blame.rank
        if blame.host is not None:
            found["host"] = blame.host
        if blame.signal is not None:
            found["signal"] = blame.signal
        return found
    if stopped:
        exit_report = stopped[0]
        message = (
            f"rank {exit_report.get('rank')} on {exit_report.get('host')} was told to stop: its pod ended"
        )
        return {
            "class": FailureClass.CONNECTION_LOST,
            "message": message,
            "rank": exit_report.get("rank", 0),
            "host": exit_report.get("host", ""),
            "exitCode": end.exit_code,
        }
    return {
        "class": FailureClass.CONNECTION_LOST,
        "message": f"mpirun ended with exit code {end.exit_code} and no rank reported a cause: a host or its "
        "connection was lost, or ranks could not be started",
        "exitCode": end.exit_code,
    }


# RanksRun is one start of the ranks: a round.

log = logging.getLogger(__name__)

LOG_NAME = "launcher-0.log"
_RANK_PREFIX = re.compile(rb"\[rank (\d+)\] ")
_MARKER = contract.RANK_EXIT_MARKER.encode()


class RanksRun:
    """One start of the ranks: the program that starts them, and what this program and the ranks have reported."""

    def __init__(
        self, start: Start, show: Callable[[bytes], None], on_exit: Callable[[RankExit], None]
    ) -> None:
        """`show`: gets the lines of the output, without the reports of ranks. `on_exit`: gets the reports."""
        self._show, self._on_exit = show, on_exit
        self._program = Program(*start, self._on_lines, stop_whole_group=False)
        self.exits: list[RankExit] = []
        self._own_lines = LastLines(200)
        """Lines without a rank's prefix: the output of mpirun or gloo."""
        self._rank_lines: dict[int, LastLines] = {}
        self.end: ProgramEnd | None = None
        self.killed = False
        """Whether the program was killed because the round ends."""

    def start(self, on_end: Callable[[ProgramEnd], None]) -> None:
        """Start the program. Call it in the main thread; `on_end` is called in another one."""
        if (end := self._program.start()) is not None:
            on_end(end)
            return
        threading.Thread(target=lambda: on_end(self._program.wait()), name="mpirun", daemon=True).start()

    def stop(self, number: int) -> None:
        """Let the ranks save a checkpoint and end. For signal handlers."""
        # SIGTERM makes mpirun kill the ranks a second later, in the middle of a checkpoint.
        self._program.stop(number, STOP_ALL_RANKS)
        threading.Timer(contract.STOP_SECONDS, self._program.stop, (number, signal.SIGTERM)).start()

    def kill(self) -> None:
        """Kill the program: mpirun's own way to end all ranks takes a second."""
        self.killed = self.end is None
        self._program.kill()

    def outcome(self, lost_hosts: Callable[[], dict[str, str]]) -> contract.Termination:
        """Return the launcher's termination message after the program's end; see `decide`."""
        assert self.end is not None
        return decide(self.end, self.exits, self._own_lines.lines(), lost_hosts)

    @property
    def has_cause(self) -> bool:
        """Whether a rank reported a failure."""
        return any(map(is_cause, self.exits))

    def last_lines(self, rank: int | None) -> list[str]:
        """Return the last lines of a rank, or of the program that starts the ranks."""
        of_rank = self._rank_lines.get(rank) if rank is not None else None
        return (of_rank or self._own_lines).lines()

    def _on_lines(self, lines: bytes) -> None:
        if _MARKER in lines:
            lines = b"".join(map(self._without_marker, lines.splitlines(keepends=True)))
        self._show(lines)
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
        self.exits.append(exit_report)
        self._on_exit(exit_report)
        return text.encode() if text.strip() else b""


# LauncherRounds holds the coordinator of the rounds, and the launcher's own agent. In a round, all ranks start in
# pods that stay alive: see `restart_in_place`.


class LauncherRounds:
    """The coordinator, and the agent of the launcher, whose program is mpirun. Use it in one thread, except `failed`.

    The workers' agents join by network. The launcher's agent reports the failures of all ranks, because mpirun prints
    them first.
    """

    def __init__(
        self,
        settings: Settings,
        listener: socket.socket,
        record: Callable[[RankExit | None], None],
        take: Callable[[AgentAction], None],
    ) -> None:
        """`listener`: where the workers' agents join; owned from now on. `record`, `take`: see RoundLink."""
        rounds = settings.pod.rounds
        assert rounds is not None
        names = [*worker_names(settings), settings.pod.name]
        self._coordinator = Coordinator(names, rounds.before, rounds.limit, settings.peer_timeout, asks=True)
        pods, port = len(names), listener.getsockname()[1]
        connections = PodConnections(
            listener, lambda line: read_hello(line, settings.uid, settings.attempt, pods), pods
        )
        self._server = RoundServer(connections.__enter__(), self._coordinator)
        self._server.start()
        self._agent = Agent(settings.peer_timeout)
        self._link = RoundLink(
            self._agent, lambda: joined(settings, "127.0.0.1", port, pods - 1), record, take
        )
        self._link.start()
        self._leftovers = Leftovers(settings, gpus=dict)

    @property
    def restarts(self) -> contract.RoundRestarts | None:
        """The restarts in place; None before the first one."""
        count = self._coordinator.round
        return restarts_of(count, self._coordinator.failure) if count else None

    @property
    def cause(self) -> RankExit | None:
        """The cause of the failure in this round, as far as agents have reported failures."""
        return self._coordinator.cause

    def failed(self, number: int, report: RankExit) -> None:
        """Take in a failure in a round. From any thread."""
        told = RankExit(**report)
        told.setdefault("role", "launcher")
        told.setdefault("index", 0)
        message = Failed(number, told)
        try:
            valid = agent_message(line_of(message)) is not None
        except (InvalidMessage, TypeError):
            valid = False  # A program printed a line that looks like a rank's report. The end of mpirun is reported.
        if valid:
            self._link.happened(lambda agent, now: agent.failed(told, now) if agent.round == number else [])

    def succeeded(self) -> None:
        """Take in that all ranks have succeeded."""
        self._link.happened(lambda agent, _: agent.done())

    def end_processes(self, kill: Callable[[], None]) -> None:
        """Kill mpirun by `kill`, and the processes that mpirun leaves behind: ssh, and the ranks of this machine."""
        self._leftovers.end_processes(kill)

    def ended(self, number: int) -> None:
        """Take in that mpirun of a round has ended, after its failure was reported."""
        if why := self._leftovers.remove(lambda: True):
            self.leave(why)
        else:
            self._link.happened(lambda agent, _: agent.ended(number))

    def leave(self, why: str) -> None:
        """Take part in no later round. `why`: a predicate of which the pod is the subject."""
        self._link.happened(lambda agent, _: agent.leave(why))

    def close(self) -> None:
        """Close all connections: the other agents go on without rounds."""
        self._link.close()
        self._server.close()


class Launcher:
    """The runs of the ranks on all hosts."""

    def __init__(self, settings: Settings, command: Sequence[str]) -> None:
        self._settings = settings
        self._command = command
        self._phases = PhaseLog()
        self._grace = Grace()
        self._events: EventQueue[ProgramEnd | AgentAction | signal.Signals] = EventQueue()
        self._rounds: LauncherRounds | None = None
        self._ranks: RanksRun | None = None
        """The latest start."""
        self._stop_signal: int | None = None
        """The signal that asked the launcher to stop."""

    def run(self) -> int:
        """Wait for the hosts, run, and write the termination message; return the exit code."""
        settings = self._settings
        self._phases.reached("started")
        self._log_file = LogFile(settings.logs / LOG_NAME, kept=settings.rotated_logs)
        self._pass_on = writer_to(sys.stdout.fileno())
        sync = self._start_log_sync()
        hosts = rank_hosts(settings)
        try:
            self._rounds = self._hold_rounds()
            hosts.wait()
            self._phases.reached("peersReady")
            return self._end(self._run_ranks(hosts), sync)
        except HostfileError as error:
            return self._end(
                _own_failure(FailureClass.APPLICATION_ERROR, str(error), contract.EXIT_CONFIG), sync
            )
        except PeersUnreachable as error:
            return self._end(
                _own_failure(FailureClass.PEERS_UNREACHABLE, str(error), contract.EXIT_UNAVAILABLE), sync
            )
        finally:
            if self._rounds:
                self._rounds.close()

    def _hold_rounds(self) -> LauncherRounds | None:
        settings = self._settings
        if settings.pod.rounds is None or settings.start_barrier is None:
            return None
        host, port = settings.start_barrier
        try:
            listener = listener_on(host, port)
        except OSError as error:
            log.warning(
                "ranks can't be restarted in place, because port %d can't be opened: %s", port, error.strerror
            )
            return None
        adopt_orphans()
        return LauncherRounds(settings, listener, self._record, self._events.put)

    def _record(self, report: RankExit | None) -> None:
        if report is None:
            forget_termination(self._settings.termination_log)
        else:
            write_termination(self._settings.termination_log, self._with_restarts(report))

    def _with_restarts(self, message: contract.Termination) -> contract.Termination:
        restarts = self._rounds.restarts if self._rounds else None
        return {**message, "restarts": restarts} if restarts else message

    def _run_ranks(self, hosts: RankHosts) -> contract.Termination:
        """Run round after round; return the termination message."""
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, self._told_to_stop)
        self._grace.watch()
        go: Go | None = None
        while True:
            number = go.round if go else 0
            ranks = RanksRun(
                hosts.start(self._command, number), self._show, partial(self._rank_exited, number)
            )
            self._ranks = ranks
            if go:
                self._show(f"{first_line(go)}\n".encode())
            if self._stop_signal is not None:
                ranks.stop(self._stop_signal)
            ranks.start(self._events.put)
            if (go := self._until_round_ends(ranks, number)) is None:
                return self._outcome(ranks, hosts)

    def _told_to_stop(self, number: int, _: object) -> None:
        self._stop_signal = number
        if self._ranks:
            self._ranks.stop(number)
        self._events.put(signal.Signals(number))

    def _rank_exited(self, number: int, report: RankExit) -> None:
        # A rank that exits as after SIGTERM may have agreed to stop with a rank whose pod got SIGTERM. Do not end the
        # other ranks, which then still save a checkpoint.
        if self._rounds and is_cause(report) and report.get("exitCode") != _LEFT_AFTER_SIGTERM:
            self._rounds.failed(number, report)

    def _until_round_ends(self, ranks: RanksRun, number: int) -> Go | None:
        """Return the start of the next round; None if no round follows, and mpirun has ended."""
        rounds = self._rounds
        over = rounds is None
        while not (over and ranks.end):
            try:
                event = self._events.get(timeout=SIGNAL_SECONDS)
            except Empty:
                continue
            match event:
                case ProgramEnd():
                    ranks.end = event
                    if rounds and not over:
                        _tell_end(rounds, ranks, number)
                case EndPrograms():
                    assert rounds is not None
                    rounds.end_processes(ranks.kill)
                    if ranks.end:
                        rounds.ended(number)
                case StartPrograms(go):
                    return go
                case WithoutRounds(why):
                    over = True
                    if why:
                        log.info("no restart in place: %s", why)
                case signal.Signals() if rounds:
                    rounds.leave("was told to end")
        return None

    def _outcome(self, ranks: RanksRun, hosts: RankHosts) -> contract.Termination:
        assert ranks.end is not None
        if ranks.killed and self._stop_signal is not None:
            # The launcher got the signal between two rounds.
            return decide(replace(ranks.end, stop_signal=self._stop_signal), [], [], dict)
        if ranks.killed and not ranks.has_cause:
            # An agent lost its connection, and mpirun was killed before mpirun itself noticed the loss.
            cause = self._rounds.cause if self._rounds else None
            if lost := hosts.lost():
                return _connection_lost(ranks.end, lost, [])
            if cause is not None:
                return cause
        return ranks.outcome(hosts.lost)

    def _show(self, lines: bytes) -> None:
        self._log_file.write(lines)
        self._pass_on(lines)

    def _end(self, message: contract.Termination, sync: PodSync | None) -> int:
        settings = self._settings
        exit_report = self._with_restarts(message).copy()
        failed = "class" in exit_report
        exit_report.setdefault("role", settings.pod.role)
        exit_report.setdefault("index", settings.pod.index)
        exit_report["phases"] = _merged(exit_report.get("phases", {}), self._phases.times())
        if failed:
            exit_report["lastLogLines"] = (
                self._ranks.last_lines(exit_report.get("rank")) if self._ranks else []
            )
            self._show(f"dtj: {exit_report['class']}: {exit_report.get('message', '')}\n".encode())
        elif sync and self._stop_signal is None:
            # Record the success before the upload of this log, which may last. The ranks' pods uploaded all else.
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


def _tell_end(rounds: LauncherRounds, ranks: RanksRun, number: int) -> None:
    """Tell the agents how mpirun has ended."""
    if not ranks.killed:
        message = ranks.outcome(dict)
        if "class" not in message:
            rounds.succeeded()
            return
        rounds.failed(number, cast(RankExit, message))
    rounds.ended(number)


def _own_failure(cause: FailureClass, message: str, code: int) -> contract.Termination:
    return {"class": cause, "message": message, "exitCode": code}


def _report_of(message: contract.Termination) -> contract.Report:
    """Return what rank 0 reported at its end."""
    report: contract.Report = {}
    if "progress" in message:
        report["progress"] = message["progress"]
    if "artifacts" in message:
        report["artifacts"] = message["artifacts"]
    if "restarts" in message:
        report["restarts"] = message["restarts"]
    return report


def _merged(of_rank: contract.Phases, own: contract.Phases) -> contract.Phases:
    """Merge the phases of rank 0's pod and of the launcher; a phase in both keeps the earlier time."""
    names = [*of_rank, *(name for name in own if name not in of_rank)]
    return {name: min(p[name] for p in (of_rank, own) if name in p) for name in names}


def run_launcher(settings: Settings, command: Sequence[str]) -> int:
    """Run a launcher pod. The exit code is that of the failed rank, if known."""
    return Launcher(settings, command).run()
