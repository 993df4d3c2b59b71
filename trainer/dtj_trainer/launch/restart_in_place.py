"""Decides when the ranks of a job start again in living pods. Does no I/O, and reads no clock.

The agents of a job keep a connection each to the coordinator. `Coordinator`, and `Agent` in `round_agent`, are the
two sides: an event goes in, actions come out, and the caller carries out the actions in their order. In messages:

    agent: failed → coordinator: stop → each agent: ready → coordinator: go, or end

`replica`, `worker` and `launcher` start the programs of a round. Until `joined`, and after `end`, a pod does what it
does without rounds. Times are seconds of one monotonic clock.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from dtj_trainer import contract
from dtj_trainer.contract.failure_class import FailureClass
from dtj_trainer.launch.round_messages import (
    PROTOCOL,
    AgentMessage,
    CoordinatorMessage,
    Done,
    End,
    Failed,
    Found,
    Go,
    Join,
    Joined,
    Leave,
    Ready,
    Seek,
    Snapshot,
    Stop,
    Wait,
    shown,
)
from dtj_trainer.launch.termination import RankExit

BACK_SECONDS = 5.0
"""Seconds after which a pod whose connection broke, and did not come back, counts as lost."""
CAUSE_SECONDS = 5.0
"""Seconds to wait after a lost connection is reported: the program that caused the loss may end later than the
programs that lost the connection."""
READY_SECONDS = 60.0
"""The longest time from `stop` to the last `ready`: 50 s for the memory of GPUs, and some for the processes."""
WAIT_SECONDS = 15.0
"""Seconds between two `wait` messages, which name what the coordinator waits for."""
_MOST_NAMES = 20
_RANK_0 = 0
"""The index of the pod of rank 0."""
_NO_PORT = contract.START_BARRIER_PORT
"""The port in `go` for a job whose ranks use no MASTER_PORT."""
_LEFT_AFTER_SIGTERM = 128 + signal.SIGTERM
NEVER_IN_PLACE = frozenset[str](
    {
        FailureClass.DISK_FULL,
        FailureClass.DATA_CORRUPT,
        FailureClass.WORLD_SIZE_MISMATCH,
        FailureClass.COMMAND_NOT_FOUND,
        FailureClass.MODULE_NOT_FOUND,
        FailureClass.NO_ACCELERATOR,
        FailureClass.SUPERSEDED,
    }
)
"""After these failures, ranks are not restarted in place: the same pods would fail again."""


@dataclass(frozen=True)
class PodEnd:
    """How a pod's part in a round ended.

    `pod`: its name, as `worker-1`. `report`: of a program that failed and was not asked to stop. `done`: all programs
    succeeded. `lost`: the connection broke, and is not back. `leaves`: why the pod takes no part in a later round.
    """

    pod: str
    report: RankExit | None = None
    done: bool = False
    lost: bool = False
    leaves: str = ""


@dataclass(frozen=True)
class Past:
    """The state of the job from which `decide_round` decides.

    `round`: the round that ended, 0 for the first start, so that this is also the number of restarts in place.
    `before`: the program's restarts when the pods were made. `began_with`: the snapshot of the last `go`. `newest`:
    the newest snapshot that can be restored. `port`: a free MASTER_PORT.
    """

    round: int
    before: int
    began_with: Snapshot | None
    newest: Snapshot | None
    port: int


def is_own(report: RankExit) -> bool:
    """Return whether the program failed by itself, and not because it lost another one."""
    return report["class"] != FailureClass.CONNECTION_LOST


def cause_of(ends: Sequence[PodEnd]) -> RankExit | None:
    """Return the report that names the cause: own failures come before lost connections.

    `ends`: in the order of arrival.
    """
    reports = [each.report for each in ends if each.report is not None]
    return next(filter(is_own, reports), reports[0] if reports else None)


def _told_to_all(report: RankExit | None) -> RankExit | None:
    """Return the part of the cause that each pod gets: a short one, because thousands of pods may get it."""
    if report is None:
        return None
    told = RankExit(**report)
    told["message"] = shown(report["message"])
    told.pop("lastLogLines", None)
    return told


def decide_round(ends: Sequence[PodEnd], past: Past, limit: int) -> Go | End:
    """Return whether all ranks start again in these pods. `ends`: in the order of arrival; `limit`: backoffLimit."""
    for each in ends:
        if each.leaves:
            return End(f"{each.pod} {each.leaves}")
        if each.lost:
            return End(f"the connection to {each.pod} is lost")
        if each.done:
            return End(f"{each.pod} has succeeded and ended")
        if each.report and each.report["class"] in NEVER_IN_PLACE:
            return End(f"{each.pod} would fail again: {each.report['class']}")
    restarts = past.before + past.round
    if restarts >= limit:
        return End(f"the program was restarted {restarts} times: backoffLimit is {limit}")
    if past.round and not _newer(past.newest, past.began_with):
        return End("no new checkpoint was taken since the last restart in place")
    return Go(past.round + 1, past.port, past.newest)


def _newer(newest: Snapshot | None, than: Snapshot | None) -> bool:
    return newest is not None and (than is None or newest.order > than.order)


def patience(report: RankExit) -> float:
    """Return the seconds from a failure to the end of the other programs: the cause may show later."""
    if is_own(report):
        return 0.0
    # Ranks that agree to save and leave do not end at the same time.
    return contract.STOP_SECONDS if report["exitCode"] == _LEFT_AFTER_SIGTERM else CAUSE_SECONDS


# --- the coordinator ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Tell:
    """Send a message to all connected pods."""

    message: CoordinatorMessage


@dataclass(frozen=True)
class Say:
    """Send a message on one connection."""

    connection: int
    message: CoordinatorMessage


@dataclass(frozen=True)
class Close:
    """Close a connection. No event of it follows."""

    connection: int


@dataclass(frozen=True)
class Prepare:
    """Find the newest snapshot and a free port, then call `prepared`, or `unprepared`."""


CoordinatorAction = Tell | Say | Close | Prepare


class _Phase(Enum):
    JOINING = auto()
    RUNNING = auto()
    STOPPING = auto()
    OVER = auto()


@dataclass
class _Pod:
    birth: int
    connection: int | None


class Coordinator:
    """The side that decides. The work of an event does not grow with the number of pods.

    A `connection` is a number that no other connection has, so that the end of an earlier connection of a pod does
    not count as that of the later one.
    """

    def __init__(
        self, pods: Sequence[str], before: int, limit: int, peer_timeout: float, *, asks: bool = False
    ) -> None:
        """`pods`: their names, by index. `before`, `limit`: see `Past` and `decide_round`. `peer_timeout`: seconds in
        which the agents want an answer, and Prepare has to end. `asks`: ask the agent of the pod of rank 0 instead of
        Prepare: that pod is not the coordinator's, and its ranks need no MASTER_PORT.
        """
        self._asks = asks
        self._names, self._count = pods, len(pods)
        self._before, self._limit, self._peer_timeout = before, limit, peer_timeout
        self._wait_seconds = min(WAIT_SECONDS, peer_timeout / 4)
        self._phase = _Phase.JOINING
        self._pods: dict[int, _Pod] = {}
        self._connected: dict[int, int] = {}
        """The index of the pod by its connection."""
        self._ends: dict[int, PodEnd] = {}
        """How pods ended in this round, in the order of arrival."""
        self._lost_since: dict[int, float] = {}
        self._ready: set[int] = set()
        """The pods that are connected and have said `ready` on this connection."""
        self._ended: set[int] = set()
        """The pods that have said `ready` in this round: none of their programs runs."""
        self._stop_at = self._deadline = self._wait_at = float("inf")
        self._preparing = False
        self._began_with: Snapshot | None = None
        self._why = ""
        self.round = 0
        """The round whose ranks run, or have ended. Also the number of restarts in place."""
        self.failure: RankExit | None = None
        """The cause of the last restart in place."""

    @property
    def over(self) -> bool:
        """Whether no round follows."""
        return self._phase is _Phase.OVER

    @property
    def cause(self) -> RankExit | None:
        """The cause of the failure in this round, as far as the pods have told; None: none has failed."""
        return cause_of(list(self._ends.values()))

    def joined(
        self, connection: int, index: int, birth: int, join: Join, now: float
    ) -> list[CoordinatorAction]:
        """Take in that a pod joins. `index`: below the number of pods. `birth`: the attempt in which it was made."""
        if self.over:
            return [Say(connection, End(self._why)), Close(connection)]
        known = self._pods.get(index)
        if join.protocol != PROTOCOL or (known and birth < known.birth):
            return [Close(connection)]
        if self._phase is _Phase.JOINING and join.round != 0:
            return self._end(f"{self._names[index]} has not started its programs with the others")
        if known and birth > known.birth and not (self._stopping and index in self._ended):
            return self._end(f"{self._names[index]} was replaced while ranks of the former pod may still run")
        actions: list[CoordinatorAction] = []
        if known and known.connection is not None:
            del self._connected[known.connection]
            actions.append(Close(known.connection))
        self._pods[index] = _Pod(birth, connection)
        self._connected[connection] = index
        self._lost_since.pop(index, None)
        self._ready.discard(index)
        if self._asks and index == _RANK_0:
            self._preparing = False  # `seek` is sent again, on the new connection.
        if self._phase is _Phase.JOINING and len(self._connected) == self._count:
            self._phase = _Phase.RUNNING
            actions.append(Tell(Joined()))
        elif self._phase is _Phase.RUNNING:
            # The agent ended its programs when it lost the connection.
            actions += self._lost_programs(index, now)
        elif self._stopping:
            actions.append(Say(connection, Stop(self.round)))
        return actions

    def said(self, connection: int, message: AgentMessage, now: float) -> list[CoordinatorAction]:
        """Take in a message on a connection that has joined."""
        index = self._connected.get(connection)
        if index is None or self.over:
            return []
        match message:
            case Leave(why):
                return self._decide(PodEnd(self._names[index], leaves=why))
            case Failed(number, report) if number == self.round:
                return self._failed(index, report, now)
            case Done(number) if number == self.round:
                return self._done(index)
            case Ready(number) if number == self.round and self._stopping:
                self._ready.add(index)
                self._ended.add(index)
                return self._prepare_if_ready(now)
            case Found(number, snapshot, why) if number == self.round and index == _RANK_0 and self._asks:
                return self.unprepared(why) if why else self.prepared(snapshot, _NO_PORT, now)
        return []

    def broke(self, connection: int, now: float) -> list[CoordinatorAction]:
        """Take in the end of a connection, or its silence."""
        index = self._connected.pop(connection, None)
        if index is None:
            return []
        self._pods[index].connection = None
        self._ready.discard(index)
        done = index in self._ends and self._ends[index].done
        if self.over or done or self._phase is _Phase.JOINING:
            return []
        self._lost_since[index] = now
        return self._lost_programs(index, now) if self._phase is _Phase.RUNNING else []

    def prepared(self, newest: Snapshot | None, port: int, now: float) -> list[CoordinatorAction]:
        """Take in what Prepare asked for."""
        if not self._preparing or self.over:
            return []
        self._preparing = False
        if len(self._ready) < self._count:
            self._deadline = now + READY_SECONDS
            return []
        past = Past(self.round, self._before, self._began_with, newest, port)
        ends = list(self._ends.values())
        decision = decide_round(ends, past, self._limit)
        if isinstance(decision, End):
            return self._end(decision.why)
        self.round, self._began_with = decision.round, newest
        self.failure = _told_to_all(cause_of(ends))
        self._phase = _Phase.RUNNING
        self._stop_at = self._deadline = self._wait_at = float("inf")
        for each in (self._ends, self._ready, self._ended):
            each.clear()
        return [Tell(replace(decision, failure=self.failure))]

    def unprepared(self, why: str) -> list[CoordinatorAction]:
        """Take in that Prepare failed."""
        return [] if self.over else self._end(why)

    def closes(self) -> list[CoordinatorAction]:
        """Take in that the coordinator's own pod ends. The programs of other pods continue."""
        return [] if self.over else self._end("the pod that coordinates the restarts has ended")

    def tick(self, now: float) -> list[CoordinatorAction]:
        """Take in that time has passed. Call it at least once a second."""
        if self.over:
            return []
        # The dictionary is in the order of the losses: the first entry is the oldest one.
        for index, since in self._lost_since.items():
            if now - since < BACK_SECONDS:
                break
            return self._decide(PodEnd(self._names[index], lost=True))
        if self._phase is _Phase.RUNNING and now >= self._stop_at:
            return self._stop(now)
        if now >= self._deadline:
            return self._end(f"the time limit for the restart has passed: {self._missing()}")
        if now >= self._wait_at:
            self._wait_at = now + self._wait_seconds
            return [Tell(Wait(self._missing()))]
        return []

    @property
    def _stopping(self) -> bool:
        return self._phase is _Phase.STOPPING

    def _report_of(self, index: int) -> RankExit | None:
        return self._ends[index].report if index in self._ends else None

    def _lost_programs(self, index: int, now: float) -> list[CoordinatorAction]:
        message = f"the connection to {self._names[index]} broke"
        lost: RankExit = {
            "class": FailureClass.CONNECTION_LOST,
            "message": message,
            "index": index,
            "exitCode": contract.EXIT_UNAVAILABLE,
        }
        return self._failed(index, lost, now)

    def _failed(self, index: int, report: RankExit, now: float) -> list[CoordinatorAction]:
        if self._phase is _Phase.JOINING:
            return self._end(f"{self._names[index]} failed before all pods had joined")
        known = self._report_of(index)
        if known is None or (is_own(report) and not is_own(known)):
            self._ends.pop(index, None)
            self._ends[index] = PodEnd(self._names[index], report)
        self._stop_at = min(self._stop_at, now + patience(report))
        self._wait_at = min(self._wait_at, now + self._wait_seconds)
        if self._phase is _Phase.RUNNING and (now >= self._stop_at or len(self._ends) == self._count):
            return self._stop(now)
        return []

    def _done(self, index: int) -> list[CoordinatorAction]:
        end = PodEnd(self._names[index], done=True)
        if self._phase is not _Phase.RUNNING:
            return self._decide(end)
        self._ends[index] = end
        if all(each.done for each in self._ends.values()) and len(self._ends) == self._count:
            self._phase, self._why = _Phase.OVER, "all pods have succeeded"
        return []

    def _stop(self, now: float) -> list[CoordinatorAction]:
        if succeeded := next((each for each in self._ends.values() if each.done), None):
            return self._decide(succeeded)
        self._phase = _Phase.STOPPING
        self._deadline = now + READY_SECONDS
        return [Tell(Stop(self.round))]

    def _prepare_if_ready(self, now: float) -> list[CoordinatorAction]:
        if len(self._ready) < self._count or self._preparing:
            return []
        self._preparing = True
        self._deadline = now + self._peer_timeout
        first = self._pods[_RANK_0].connection
        return [Say(first, Seek(self.round))] if self._asks and first is not None else [Prepare()]

    def _decide(self, end: PodEnd) -> list[CoordinatorAction]:
        """End the rounds because of an end after which no round follows, whatever else happened."""
        decision = decide_round([end], Past(self.round, self._before, None, None, 0), self._limit)
        assert isinstance(decision, End)
        return self._end(decision.why)

    def _end(self, why: str) -> list[CoordinatorAction]:
        self._phase, self._why = _Phase.OVER, why
        return [Tell(End(why))]

    def _missing(self) -> str:
        if self._preparing:
            return "the coordinator looks for the newest checkpoint"
        if not self._stopping:
            return "the coordinator waits for the cause of a failure"
        missing = [name for index, name in enumerate(self._names) if index not in self._ready]
        names = ", ".join(missing[:_MOST_NAMES])
        more = f" and {len(missing) - _MOST_NAMES} more" if len(missing) > _MOST_NAMES else ""
        return f"{len(missing)} of {self._count} pods have programs that still run: {names}{more}"
