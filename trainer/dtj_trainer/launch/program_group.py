"""Runs the programs of a pod together: one, or one for each of the pod's ranks."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from dtj_trainer import contract
from dtj_trainer.contract.failure_class import FailureClass
from dtj_trainer.launch.failure import cut_off
from dtj_trainer.launch.logged_program import LoggedProgram
from dtj_trainer.launch.pod import Pod
from dtj_trainer.launch.program import SIGNAL_SECONDS, ProgramEnd
from dtj_trainer.launch.settings import Settings
from dtj_trainer.launch.termination import RankExit

KILL_SECONDS = 5.0
"""Seconds from the SIGTERM after another program's failure to SIGKILL."""
CAUSE_SECONDS = 5.0
"""Seconds for the program that failed first to end. It may end later than programs that failed because of it."""
_LEFT_AFTER_SIGTERM = 128 + signal.SIGTERM


@dataclass(frozen=True, eq=False)
class Member:
    """One program of a pod. `name`: its name in RunningPrograms; `settings`: those of its rank."""

    name: str
    settings: Settings
    program: LoggedProgram


@dataclass(frozen=True)
class Ended:
    """A program that has ended."""

    member: Member
    end: ProgramEnd
    report: RankExit

    @property
    def is_cause(self) -> bool:
        """Whether the program failed and was not asked to stop."""
        return "class" in self.report and not self.report.get("stopped")

    @property
    def patience(self) -> float | None:
        """Seconds until this end ends the pod's other programs; None: never."""
        if not self.is_cause:
            return None
        if self.report["class"] != FailureClass.CONNECTION_LOST:
            return 0
        # Ranks that agree to save and leave do not end at the same time.
        return contract.STOP_SECONDS if self.report["exitCode"] == _LEFT_AFTER_SIGTERM else CAUSE_SECONDS


class ProgramGroup:
    """The programs of a pod. Use it in the main thread."""

    def __init__(self, members: Sequence[Member], describe: Callable[[Member, ProgramEnd], RankExit]) -> None:
        """`describe`: returns the report of a program's end."""
        self._members = members
        self._describe = describe
        self._ends: SimpleQueue[tuple[Member, ProgramEnd]] = SimpleQueue()
        self._expected = 0
        self._handlers: dict[int, Any] = {}
        """The handlers before `stop_by_signals`, by signal."""
        self.stop_signal: int | None = None
        """The signal that asked the pod to stop."""

    def stop_by_signals(self, kill_after: float) -> None:
        """Forward SIGTERM and SIGINT to all programs until `close`; kill them `kill_after` seconds later."""

        def stop(number: int, _: object) -> None:
            self.stop_signal = number
            self.stop_soon(number, kill_after)

        for number in (signal.SIGTERM, signal.SIGINT):
            self._handlers[number] = signal.signal(number, stop)

    def close(self) -> None:
        """Handle signals as before `stop_by_signals`."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def stop_soon(self, number: int, kill_after: float) -> None:
        """Ask all programs by a signal to stop; kill them after `kill_after` seconds."""
        for member in self._members:
            member.program.stop_soon(number, kill_after)

    def start(self, pod: Pod) -> None:
        """Start all programs, up to the first that can't be started."""
        for member in self._members:
            self._expected += 1
            if (end := member.program.start()) is not None:
                self._ends.put((member, end))
                return
            pod.programs.began(member.name, member.program.pid or 0)
            # The kernel kills a program when the thread that started it ends: start in this thread, wait in another.
            threading.Thread(target=self._wait, args=(member, pod), daemon=True).start()

    def _wait(self, member: Member, pod: Pod) -> None:
        self._ends.put((member, member.program.wait(pod.program_died)))

    def wait(self, pod: Pod) -> list[Ended]:
        """Return all programs in the order of their ends. The failure of one program ends the others."""
        ended: list[Ended] = []
        end_others_at = float("inf")
        while len(ended) < self._expected:
            try:
                left = max(end_others_at - time.monotonic(), 0)
                member, end = self._ends.get(timeout=min(left, SIGNAL_SECONDS))
            except Empty:
                if time.monotonic() >= end_others_at:
                    end_others_at = float("inf")
                    self.stop_soon(signal.SIGTERM, KILL_SECONDS)
                continue
            latest = Ended(member, end, self._describe(member, end))
            ended.append(latest)
            pod.note_torn(end.torn)
            if (patience := latest.patience) is not None:
                end_others_at = min(end_others_at, time.monotonic() + patience)
            if len(ended) < self._expected and not cut_off(end, latest.report):
                pod.programs.ended(member.name)
        # The others stay registered: no upload may take their files for closed before `Pod.finish` says so.
        # The output of a program may be read to its end later than that of a program that ended after it.
        return sorted(ended, key=lambda each: each.end.at)
