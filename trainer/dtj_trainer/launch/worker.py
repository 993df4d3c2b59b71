"""A worker whose pod runs ranks: serves ssh, restores before programs start, and uploads while they run."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty

from dtj_trainer import contract
from dtj_trainer.contract.failure_class import FailureClass
from dtj_trainer.launch.event_queue import EventQueue
from dtj_trainer.launch.leftovers import Leftovers
from dtj_trainer.launch.peers import joined
from dtj_trainer.launch.pod import (
    LOG_SYNC_SECONDS,
    Pod,
    PrerequisiteMissing,
    begin_staging,
    set_aside_earlier,
    stop_sync_seconds,
)
from dtj_trainer.launch.processes import adopt_orphans
from dtj_trainer.launch.round_agent import (
    Agent,
    AgentAction,
    EndPrograms,
    FindSnapshot,
    StartPrograms,
    WithoutRounds,
)
from dtj_trainer.launch.round_messages import Go, restarts_of
from dtj_trainer.launch.round_server import RoundLink
from dtj_trainer.launch.settings import Settings
from dtj_trainer.launch.spare_starts import RankStarts, Request
from dtj_trainer.launch.supervisor_socket import Answer, Attached, ControlServer
from dtj_trainer.launch.termination import forget_termination, write_termination
from dtj_trainer.parent_death import die_with_parent

# Supervises the ranks of one pod: records which ranks run, ends them, and does the final sync.

log = logging.getLogger(__name__)


KILL_SECONDS = 5.0
"""Seconds for the connections of killed wrappers to end."""
_OTHER_ROUND = Answer("the pod runs no ranks of this round", {}, FailureClass.CONNECTION_LOST)


class RankSupervisor:
    """Implements `control.Supervision` for a pod: the ranks of one round after those of another."""

    def __init__(
        self,
        pod: Pod,
        round_may_follow: Callable[[], bool] = lambda: False,
        on_success: Callable[[], None] = lambda: None,
    ) -> None:
        """`round_may_follow`: whether a failure may be followed by a round. `on_success`: called before the last
        upload, when all ranks of the pod have ended and none has failed.
        """
        self._pod = pod
        self._round_may_follow, self._on_success = round_may_follow, on_success
        self._changed = threading.Condition()
        self._finishing = threading.Lock()
        self._finished = False
        """Whether the last upload has begun: then no round follows in this pod."""
        self._told_to_end = False
        self._begin(0)

    def _begin(self, number: int) -> None:
        self._round = number
        self._running: dict[int, Attached] = {}
        """The running ranks, by rank."""
        self._starting = 0
        """Ranks that may start their programs, and have not attached yet."""
        self._closed = True
        """Whether the programs that have ended so far ended by themselves."""
        self._failed = False
        self._opened = False
        self._closed_by: PrerequisiteMissing | None = None
        self._over = False
        """Whether no rank of this round may run any more."""

    def begin(self, number: int) -> None:
        """Take ranks of this round from now on, as soon as the pod is open. No rank of an earlier one runs."""
        with self._changed:
            self._begin(number)
            self._changed.notify_all()

    def opened(self, error: PrerequisiteMissing | None = None) -> None:
        """Let the ranks start after the pod is open. With an error, answer the ranks that the pod can't be opened."""
        with self._changed:
            self._closed_by, self._opened = error, True
            self._changed.notify_all()

    def no_round_follows(self) -> None:
        """Take in that `round_may_follow` has become False."""
        with self._changed:
            self._changed.notify_all()

    def ready(self, number: int) -> Answer:
        """Wait until the pod is open for ranks of this round, and return the result."""
        with self._changed:
            self._changed.wait_for(lambda: self._refuses(number) or (self._round == number and self._opened))
            if self._refuses(number):
                return _OTHER_ROUND
            if (error := self._closed_by) is None:
                self._starting += 1
                return Answer(None, {})
        return Answer(str(error), self._pod.report(), error.cause)

    def not_started(self, number: int) -> None:
        """Record that a rank that was let start has gone without a program."""
        with self._changed:
            self._no_longer_starting(number)

    def _no_longer_starting(self, number: int) -> None:
        if number == self._round:
            self._starting -= 1
            self._changed.notify_all()

    def is_open(self, number: int) -> bool:
        """Whether programs of this round may start."""
        with self._changed:
            return self._opened and self._round == number and not self._over

    def _refuses(self, number: int) -> bool:
        return self._told_to_end or self._is_past(number)

    def _is_past(self, number: int) -> bool:
        """Whether no rank of this round will run in this pod any more."""
        if self._round == number:
            return self._over
        return self._round > number or not self._round_may_follow()

    def attached(self, rank: Attached) -> None:
        """Record that a rank's program runs. Kill it if its round is over; ask it to end if the pod has to."""
        with self._changed:
            self._no_longer_starting(rank.round)
            if late := self._is_past(rank.round):
                _kill_rank(rank)
            else:
                self._pod.programs.began(str(rank.rank), rank.program_pid)
                self._running[rank.rank] = rank
                if self._told_to_end:
                    _ask_to_end(rank)
        if not late:
            self._pod.phases.reached("programStarted")
            log.info("rank %d runs as process %d", rank.rank, rank.program_pid)

    def died(self, at_ns: int) -> None:
        """Record that a rank's program was killed, so that its last file may be incomplete."""
        self._pod.program_died(at_ns)

    def ended(self, rank: Attached, *, failed: bool, cut_off: bool, torn: Sequence[Path]) -> None:
        """Record that a rank's program ended; see `Supervision.ended`."""
        self._pod.note_torn(torn)
        self._gone(rank, failed=failed, cut_off=cut_off)

    def lost(self, rank: Attached) -> None:
        """Kill the program of a wrapper that was killed."""
        if not self._over:
            log.warning("the wrapper of rank %d is gone; its processes are ended", rank.rank)
        _signal_group(rank.program_pid, signal.SIGKILL)
        self._gone(rank, failed=True, cut_off=True)

    def _gone(self, rank: Attached, *, failed: bool, cut_off: bool) -> None:
        if self._running.get(rank.rank) != rank:
            return  # `attached` killed this rank, because its round was over.
        if cut_off:
            self._pod.program_died(time.time_ns())
        self._pod.programs.ended(str(rank.rank))
        with self._changed:
            self._running.pop(rank.rank)
            self._closed &= not cut_off
            self._failed |= failed
            if not self._running:
                self._pod.phases.reached("programEnded")
            self._changed.notify_all()

    def finish(self, number: int) -> Answer:
        """Wait until no rank runs in this pod, upload everything, and return the result.

        After a failure, wait until no round can follow: the next one would go on with this pod's uploads.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._is_past(number) or self._may_finish())
            if self._is_past(number):
                return _OTHER_ROUND
            self._finished = True
            ended, failed = self._closed, self._failed
        if not failed:
            self._on_success()
        with self._finishing:
            try:
                self._pod.finish(ended=ended)
            except PrerequisiteMissing as error:
                return Answer(str(error), self._pod.report(), error.cause)
            self._pod.end_tracking("FINISHED")
        return Answer(None, self._pod.report())

    def _may_finish(self) -> bool:
        return not self._running and not (self._failed and self._round_may_follow())

    def end_round(self) -> bool:
        """Let no more ranks of this round start; return whether a round may follow: False once the last upload has
        begun.
        """
        with self._changed:
            self._over = not self._finished
            self._changed.notify_all()
            return self._over

    def kill(self) -> None:
        """Kill the ranks of this round after `end_round`, and wait for their ends."""
        with self._changed:
            for rank in self._running.values():
                _kill_rank(rank)
            self._changed.wait_for(lambda: not self._running, KILL_SECONDS)

    @property
    def all_closed(self) -> bool:
        """Whether the programs of all ranks of this round have ended by themselves."""
        return self._closed and not self._starting and not self._running

    @property
    def runs(self) -> bool:
        """Whether a rank runs."""
        return bool(self._running)

    def stop(self) -> bool:
        """Ask the running ranks to end, then kill them; return whether all closed their files."""
        with self._changed:
            self._told_to_end = True
            self._changed.notify_all()
            for rank in self._running.values():
                _ask_to_end(rank)
            self._changed.wait_for(lambda: not self._running and not self._starting, contract.STOP_SECONDS)
            left = list(self._running.values())
        for rank in left:
            _signal_group(rank.program_pid, signal.SIGKILL)
        with self._changed:
            self._changed.wait_for(lambda: not self._running, 2.0)
            return self.all_closed


def _ask_to_end(rank: Attached) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(rank.wrapper_pid, signal.SIGTERM)


def _kill_rank(rank: Attached) -> None:
    # Kill the wrapper first, because it would report the end of its program to the launcher as a failure.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(rank.wrapper_pid, signal.SIGKILL)
    _signal_group(rank.program_pid, signal.SIGKILL)


def _signal_group(leader: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


# Sshd runs the sshd of a worker, by which mpirun starts ranks from another host.

SSHD_FOLDERS = "/usr/sbin:/usr/local/sbin"
"""Folders of sshd that are not on every user's PATH."""
STOP_SECONDS = 5.0


class SshdMissing(Exception):
    """The image has no sshd."""


class Sshd:
    """A running sshd. Start it in the main thread, because sshd ends with the thread that started it."""

    def __init__(self, config_dir: Path) -> None:
        """Start sshd with the job's `sshd_config`. Raises SshdMissing."""
        program = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:{SSHD_FOLDERS}")
        if program is None:
            raise SshdMissing("the image has no sshd, which a Horovod worker needs: install openssh-server")
        self._process = subprocess.Popen(  # noqa: S603 - fixed words and our own config
            [program, "-De", "-f", str(config_dir / "sshd_config")],
            stdin=subprocess.DEVNULL,
            preexec_fn=die_with_parent(),
        )

    @property
    def ended(self) -> bool:
        """Whether sshd has ended by itself."""
        return self._process.poll() is not None

    @property
    def exit_code(self) -> int | None:
        """The exit code of an sshd that has ended."""
        return self._process.returncode

    def stop(self) -> None:
        """End sshd."""
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()


POLL_SECONDS = 0.2
TEND_SECONDS = 1.0
"""The pause between two looks at the spares."""


class Worker:
    """One worker pod, which runs until a signal stops it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stopping = False
        self._actions: EventQueue[AgentAction | Request] = EventQueue()
        """The actions of the rounds' agent, and the requests of ranks to start programs."""
        self._agent = Agent(settings.peer_timeout)
        self._link: RoundLink | None = None
        """The connection to the launcher's agent; None in a pod without rounds."""
        self._leftovers: Leftovers | None = None
        rounds = settings.pod.rounds if settings.start_barrier else None
        self._starts: RankStarts | None = None
        if rounds and rounds.spare:
            # Few jobs keep spares: do not import the module in all pods.
            from dtj_trainer.launch.spare import Spares

            self._starts = RankStarts(Spares(), self._actions.put)
        self._opened_ns = 0
        """When the ranks of the round could start, by the wall clock, in nanoseconds."""
        self._tended = 0.0

    def run(self) -> int:
        """Serve until SIGTERM, then upload what is left; return the exit code."""
        settings = self._settings
        set_aside_earlier(settings.root)
        forget_termination(settings.termination_log)
        try:
            pod = Pod(settings, log_names=None)
        except PrerequisiteMissing as error:
            return self._fail(error.cause, str(error), contract.EXIT_UNAVAILABLE)
        handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        supervisor = RankSupervisor(pod, lambda: self._agent.began, self._succeeded)
        try:
            pod.prepare()
            with contextlib.closing(
                ControlServer(settings.control_socket, supervisor, self._starts)
            ) as control:
                control.start()
                return self._serve(pod, supervisor)
        finally:
            self._end_spares()
            if self._link:
                self._link.close()
            pod.close()
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _serve(self, pod: Pod, supervisor: RankSupervisor) -> int:
        settings = self._settings
        begin_staging(settings)
        sshd: Sshd | None = None
        if settings.pod.rounds and settings.start_barrier:
            # Adopt orphans to find them: orted, and processes that ranks put into new sessions, outlive their parent.
            adopt_orphans()
            self._leftovers = Leftovers(settings)
        try:
            if not settings.ssh_after_restore:
                # mpirun may connect during the restore: the ranks wait for its end.
                sshd = self._let_ranks_in()
            pod.open()
            signal.signal(signal.SIGTERM, self._stop)
            signal.signal(signal.SIGINT, self._stop)
            pod.grace.watch()
            if settings.ssh_after_restore:
                sshd = self._let_ranks_in()
            self._let_start(supervisor)
            self._join_rounds()
            self._follow(pod, supervisor, sshd)
        except SshdMissing as error:
            return self._fail(FailureClass.COMMAND_NOT_FOUND, str(error), contract.EXIT_COMMAND_NOT_FOUND)
        except PrerequisiteMissing as error:
            code = self._fail(error.cause, str(error), contract.EXIT_UNAVAILABLE)
            self._leave(supervisor, f"can't start its ranks: {error}")
            supervisor.opened(error)
            if sshd:
                sshd.stop()
            return code
        if superseded := pod.superseded:
            self._leave(supervisor, "was replaced by a pod of a later attempt")
            supervisor.stop()
            code = self._fail(superseded.cause, str(superseded), contract.EXIT_UNAVAILABLE)
            # Upload the logs, which need no claim. The later attempt has the claim for all other artifacts.
            with contextlib.suppress(PrerequisiteMissing):
                pod.finish(ended=False, timeout=LOG_SYNC_SECONDS)
            if sshd:
                sshd.stop()
            return code
        if sshd and not self._stopping:
            self._leave(supervisor, "has no sshd any more")
            supervisor.stop()
            code = self._fail(
                FailureClass.APPLICATION_ERROR,
                f"sshd ended with exit code {sshd.exit_code}; its messages are in the log of the pod's container",
                contract.EXIT_CONFIG,
            )
            self._last_sync(pod, ended=False)
            return code
        log.info("worker %d was asked to stop", settings.pod.index)
        self._leave(supervisor, "was told to end")
        all_closed = supervisor.stop()
        seconds = stop_sync_seconds(settings.sync_timeout, pod.grace)
        complete = self._last_sync(pod, ended=all_closed, timeout=seconds)
        pod.end_tracking("KILLED", stopped=True)
        if sshd:
            sshd.stop()
        return 0 if complete else contract.EXIT_UNAVAILABLE

    def _follow(self, pod: Pod, supervisor: RankSupervisor, sshd: Sshd | None) -> None:
        """Do what rounds and ranks ask for, until the pod has to end. Raises PrerequisiteMissing."""
        while not self._stopping and not pod.superseded and not (sshd and sshd.ended):
            with contextlib.suppress(Empty):
                self._carry_out(self._actions.get(timeout=POLL_SECONDS), pod, supervisor)
            self._tend_spares(pod)
        self._end_spares()

    def _join_rounds(self) -> None:
        if self._leftovers is None:
            return
        settings = self._settings

        def connect() -> socket.socket:
            assert settings.start_barrier is not None
            return joined(settings, *settings.start_barrier, settings.pod.index)

        # Record no failures, because the launcher reports them. A worker's pod runs until it gets SIGTERM.
        self._link = RoundLink(self._agent, connect, lambda _: None, self._actions.put)
        self._link.start()

    def _happened(self, event: Callable[[Agent, float], list[AgentAction]]) -> None:
        if self._link:
            self._link.happened(event)

    def _succeeded(self) -> None:
        self._happened(lambda agent, _: agent.done())

    def _leave(self, supervisor: RankSupervisor, why: str) -> None:
        self._happened(lambda agent, _: agent.leave(why))
        supervisor.no_round_follows()

    def _carry_out(self, action: AgentAction | Request, pod: Pod, supervisor: RankSupervisor) -> None:
        """Carry out what the agent decided. Raises PrerequisiteMissing."""
        match action:
            case EndPrograms(number):
                self._end_round(pod, supervisor, number)
            case FindSnapshot():
                self._find_snapshot(pod)
            case StartPrograms(go):
                self._begin_round(pod, supervisor, go)
            case Request():
                assert self._starts is not None
                self._starts.answer(action, late=not supervisor.is_open(action.wanted.round))
            case WithoutRounds(why):
                self._end_spares()
                supervisor.no_round_follows()
                if why:
                    log.info("no restart in place: %s", why)

    def _end_round(self, pod: Pod, supervisor: RankSupervisor, number: int) -> None:
        """End all processes of the container except sshd and this process's services, and report it to the agent."""
        assert self._leftovers is not None
        if not supervisor.end_round():
            return  # The pod has succeeded meanwhile, and has reported it to the coordinator.
        pod.note_torn(self._leftovers.end_processes(supervisor.kill))
        pod.end_round(closed=supervisor.all_closed)
        why = self._leftovers.remove(lambda: self._stopping)
        if why or supervisor.runs:
            self._leave(supervisor, why or "has ranks that SIGKILL does not end")
        else:
            self._happened(lambda agent, _: agent.ended(number))

    def _find_snapshot(self, pod: Pod) -> None:
        newest, why = None, ""
        try:
            newest = pod.newest_snapshot()
        except PrerequisiteMissing as error:
            why = str(error)
        self._happened(lambda agent, _: agent.found(newest, why))

    def _begin_round(self, pod: Pod, supervisor: RankSupervisor, go: Go) -> None:
        """Put the checkpoints back, and let the ranks of a round start. Raises PrerequisiteMissing."""
        if self._settings.pod.uploads == "primary":
            pod.restarts = restarts_of(go.round, go.failure)
        supervisor.begin(go.round)
        pod.begin_round(go.round, go.snapshot)
        self._let_start(supervisor)

    def _let_start(self, supervisor: RankSupervisor) -> None:
        self._opened_ns = time.time_ns()
        supervisor.opened()

    def _tend_spares(self, pod: Pod) -> None:
        if self._starts and self._agent.began and time.monotonic() >= self._tended + TEND_SECONDS:
            self._tended = time.monotonic()
            self._starts.tend(lambda: pod.saved_since(self._opened_ns))

    def _end_spares(self) -> None:
        if self._starts:
            self._starts.close()

    def _let_ranks_in(self) -> Sshd | None:
        """Start sshd, unless ranks are started on this machine without ssh. Raises SshdMissing."""
        settings = self._settings
        sshd = None if settings.local_workers else Sshd(settings.config_dir)
        by = f"ssh on port {settings.ssh_port}" if sshd else "ranks of this machine"
        log.info("worker %d is ready for %s", settings.pod.index, by)
        return sshd

    def _stop(self, *_: object) -> None:
        self._stopping = True

    def _last_sync(self, pod: Pod, *, ended: bool, timeout: float | None = None) -> bool:
        try:
            pod.finish(ended=ended, timeout=timeout)
        except PrerequisiteMissing as error:
            self._fail(error.cause, str(error), contract.EXIT_UNAVAILABLE)
            return False
        return True

    def _fail(self, cause: FailureClass, message: str, code: int) -> int:
        log.error("%s", message)
        write_termination(
            self._settings.termination_log,
            {
                "class": cause,
                "message": message,
                "role": self._settings.pod.role,
                "index": self._settings.pod.index,
                "host": self._settings.host,
                "exitCode": code,
            },
        )
        return code


def run_worker(settings: Settings, command: Sequence[str]) -> int:
    """Run a worker pod. The user's command arrives later, with the ranks."""
    del command
    return Worker(settings).run()
