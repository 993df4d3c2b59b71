"""The side of one pod in the rounds of a job: see `restart_in_place`. Does no I/O, and reads no clock."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from dtj_trainer.launch.restart_in_place import is_own
from dtj_trainer.launch.round_messages import (
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
)
from dtj_trainer.launch.termination import RankExit


@dataclass(frozen=True)
class Send:
    """Send a message to the coordinator."""

    message: AgentMessage


@dataclass(frozen=True)
class Record:
    """Write the termination message, or remove it. The pod may be killed at any time."""

    report: RankExit | None


@dataclass(frozen=True)
class EndPrograms:
    """Kill all programs of this round, then call `ended`, or `leave` if one of them does not end."""

    round: int


@dataclass(frozen=True)
class FindSnapshot:
    """Find the newest snapshot, then call `found`."""


@dataclass(frozen=True)
class StartPrograms:
    """Put the checkpoints folder back to the snapshot, and start the programs of this round."""

    go: Go


@dataclass(frozen=True)
class WithoutRounds:
    """Go on as a pod without rounds: running programs run to their end, and the container ends with its own failure.

    `why`: the failure of a pod whose programs were killed without a failure of their own.
    """

    why: str


AgentAction = Send | Record | EndPrograms | FindSnapshot | StartPrograms | WithoutRounds


class _State(Enum):
    JOINING = auto()
    """Before `joined`: the programs of round 0 run, or wait to be started."""
    RUNNING = auto()
    STOPPING = auto()
    """Programs are killed."""
    READY = auto()
    """No program runs."""
    OVER = auto()


class Agent:
    """The side of one pod, from its first connection to the end of all rounds."""

    def __init__(self, peer_timeout: float, *, running: bool = True) -> None:
        """`peer_timeout`: seconds in which the coordinator has to answer. `running`: whether programs run already."""
        self._peer_timeout = peer_timeout
        self._state = _State.JOINING
        self._runs = running
        self._connected = False
        self._report: RankExit | None = None
        self._answered: float | None = None
        """Since when the coordinator owes an answer; None: it owes none."""
        self.round: int | None = 0 if running else None
        """The last round that was started or stopped here; None: none."""

    @property
    def over(self) -> bool:
        """Whether the pod goes on without rounds."""
        return self._state is _State.OVER

    @property
    def began(self) -> bool:
        """Whether a failure may be followed by a round."""
        return self._state not in (_State.JOINING, _State.OVER)

    def connected(self) -> list[AgentAction]:
        """Take in a new connection to the coordinator."""
        if self.over:
            return []
        self._connected = True
        actions: list[AgentAction] = [Send(Join(self.round))]
        if self.round is not None and self._report is not None:
            actions.append(Send(Failed(self.round, self._report)))
        return actions  # The coordinator repeats a `stop` that this pod has missed.

    def broke(self, now: float) -> list[AgentAction]:
        """Take in the end of the connection, or its silence. The pod connects again and again until it is over."""
        if self.over or not self._connected:
            return []
        self._connected = False
        if self._state is _State.JOINING:
            return self._leave_rounds("the pod of the coordinator restarts no ranks in place")
        self._owed(now)
        return self._end_programs()

    def heard(self, message: CoordinatorMessage, now: float) -> list[AgentAction]:
        """Take in a message of the coordinator."""
        if self.over:
            return []
        if self._answered is not None:
            self._answered = now
        match message:
            case Joined() if self._state is _State.JOINING:
                self._state = _State.RUNNING
            case Stop(number) if self.round is None or number >= self.round:
                return self._stop(number, now)
            case Seek(number) if self._state is _State.READY and number == self.round:
                return [FindSnapshot()]
            case Go(number) if self._state is _State.READY and number - 1 == self.round:
                self._state, self.round, self._runs = _State.RUNNING, number, True
                self._report = self._answered = None
                return [Record(None), StartPrograms(message)]
            case End(why):
                return self._leave_rounds(why)
        return []

    def failed(self, report: RankExit, now: float) -> list[AgentAction]:
        """Take in the failure of a program that was not asked to stop."""
        if self._state is _State.JOINING:
            return self.leave("failed before all pods had joined")
        known = self._report
        better = known is None or (is_own(report) and not is_own(known))
        if self._state not in (_State.RUNNING, _State.STOPPING) or not better:
            return []
        self._report = report
        self._owed(now)
        assert self.round is not None
        return [Record(report), *self._send(Failed(self.round, report))]

    def done(self) -> list[AgentAction]:
        """Take in that all programs succeeded."""
        if self.over:
            return []
        actions = self._send(Done(self.round or 0))
        return [*actions, *self._leave_rounds("")]

    def ended(self, number: int) -> list[AgentAction]:
        """Take in that no process of a round's programs is left. Call it after `failed` for their failures.

        A pod may call it twice, and the second time after the next round has begun.
        """
        if number != self.round:
            return []
        self._runs = False
        if self._state is not _State.STOPPING:
            return []
        self._state = _State.READY
        assert self.round is not None
        return self._send(Ready(self.round))

    def found(self, snapshot: Snapshot | None, why: str = "") -> list[AgentAction]:
        """Take in the result of FindSnapshot. `why`: why no snapshot can be had."""
        if self._state is not _State.READY:
            return []
        assert self.round is not None
        return self._send(Found(self.round, snapshot, why))

    def leave(self, why: str) -> list[AgentAction]:
        """Take in that the pod was told to end, was superseded, or has a process that does not end.

        `why`: a predicate of which the pod is the subject.
        """
        return [] if self.over else [*self._send(Leave(why)), *self._leave_rounds(f"the pod {why}")]

    def tick(self, now: float) -> list[AgentAction]:
        """Take in that time has passed. Call it at least once a second."""
        if self.over or self._answered is None or now - self._answered < self._peer_timeout:
            return []
        return self.leave(f"had no answer of the coordinator for {self._peer_timeout:g} s")

    def _stop(self, number: int, now: float) -> list[AgentAction]:
        if number != self.round:
            self._report = None  # The pod missed a `go`: its failure belongs to an earlier round.
        self.round = number
        self._owed(now)
        return self._end_programs() or (self._send(Ready(number)) if self._state is _State.READY else [])

    def _end_programs(self) -> list[AgentAction]:
        """Kill what runs; return nothing if nothing runs, or is killed already."""
        if self._state in (_State.STOPPING, _State.READY):
            return []
        self._state = _State.STOPPING if self._runs else _State.READY
        assert self.round is not None
        return [EndPrograms(self.round)] if self._runs else []

    def _owed(self, now: float) -> None:
        if self._answered is None:
            self._answered = now

    def _send(self, message: AgentMessage) -> list[AgentAction]:
        return [Send(message)] if self._connected else []

    def _leave_rounds(self, why: str) -> list[AgentAction]:
        self._state = _State.OVER
        return [WithoutRounds(why)]
