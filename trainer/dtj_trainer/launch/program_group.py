"""The programs of a pod: their commands and environments, one start of all of them, and what their ends mean."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from dtj_trainer import contract
from dtj_trainer.contract.failure_class import FailureClass
from dtj_trainer.launch.failure import cut_off, signal_name, torch_error_file
from dtj_trainer.launch.pod import Pod
from dtj_trainer.launch.program import SIGNAL_SECONDS, LoggedProgram, ProgramEnd
from dtj_trainer.launch.restart_in_place import is_own, patience
from dtj_trainer.launch.settings import Settings, SettingsError
from dtj_trainer.launch.spare import Spares
from dtj_trainer.launch.termination import RankExit

KILL_SECONDS = 5.0
"""Seconds from the SIGTERM after another program's failure to SIGKILL."""


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
        return patience(self.report) if self.is_cause else None


@dataclass(frozen=True)
class MemberEnd:
    """The event that a program has ended."""

    member: Member
    end: ProgramEnd


class ProgramGroup:
    """One start of the programs of a pod. Use it in the main thread; `stop_soon` in any."""

    def __init__(
        self,
        members: Sequence[Member],
        describe: Callable[[Member, ProgramEnd], RankExit],
        tell: Callable[[MemberEnd], None],
    ) -> None:
        """`describe`: returns the report of a program's end. `tell`: gets each end, in another thread, to be given to
        `take` in the main thread.
        """
        self._members = members
        self._describe, self._tell = describe, tell
        self._expected = 0
        self._ended: list[Ended] = []
        self._end_others_at = float("inf")

    def stop_soon(self, number: int, kill_after: float) -> None:
        """Ask all programs by a signal to stop; kill them after `kill_after` seconds."""
        for member in self._members:
            member.program.stop_soon(number, kill_after)

    def end(self) -> None:
        """Kill all programs, because their round ends."""
        for member in self._members:
            member.program.end()

    def start(self, pod: Pod) -> None:
        """Start all programs, up to the first that can't be started."""
        for member in self._members:
            self._expected += 1
            if (end := member.program.start()) is not None:
                self._tell(MemberEnd(member, end))
                return
            pod.programs.began(member.name, member.program.pid or 0)
            # The kernel kills a program when the thread that started it ends: start in this thread, wait in another.
            threading.Thread(target=self._wait, args=(member, pod), daemon=True).start()

    def _wait(self, member: Member, pod: Pod) -> None:
        self._tell(MemberEnd(member, member.program.wait(pod.program_died)))

    @property
    def runs(self) -> bool:
        """Whether a program runs, or `take` has not got its end yet."""
        return len(self._ended) < self._expected

    @property
    def ended(self) -> list[Ended]:
        """The programs that have ended, in the order of their ends.

        The output of a program may be read to its end later than that of a program that ended after it.
        """
        return sorted(self._ended, key=lambda each: each.end.at)

    @property
    def closed(self) -> bool:
        """Whether all programs that have ended did so by themselves: the files that they wrote are complete."""
        return not any(cut_off(each.end, each.report) for each in self._ended)

    def take(self, event: MemberEnd, pod: Pod) -> Ended:
        """Take in the end of a program."""
        member, end = event.member, event.end
        latest = Ended(member, end, self._describe(member, end))
        self._ended.append(latest)
        pod.note_torn(end.torn)
        if (patience := latest.patience) is not None:
            self._end_others_at = min(self._end_others_at, time.monotonic() + patience)
        # Keep a killed program, and the last one, registered: no upload may take their files for complete before
        # `Pod.finish`.
        if self.runs and not cut_off(end, latest.report):
            pod.programs.ended(member.name)
        return latest

    def until_others_end(self) -> float:
        """Return the seconds until a failure of one program ends the others, SIGNAL_SECONDS at most."""
        return min(max(self._end_others_at - time.monotonic(), 0), SIGNAL_SECONDS)

    def end_others(self) -> None:
        """Ask the other programs to stop after the failure of one, if it is time."""
        if time.monotonic() >= self._end_others_at:
            self._end_others_at = float("inf")
            self.stop_soon(signal.SIGTERM, KILL_SECONDS)


# These functions derive the end of a pod from the ends of its programs.


def decisive(ended: Sequence[Ended], stop_signal: int | None) -> Ended:
    """Return the program whose end is the pod's.

    `ended`: in the order of the ends. `stop_signal`: the signal that asked the pod to stop. The first program with a
    failure of its own decides, else the first program that failed because of others, else the first rank.
    """
    causes = [each for each in ended if each.is_cause]
    own = [each for each in causes if is_own(each.report)]
    failed = [each for each in ended if "class" in each.report]
    if own:
        return own[0]
    if causes and stop_signal is None:
        return causes[0]
    if failed:
        return failed[0]
    return min(ended, key=lambda each: each.report.get("rank", 0))


def _left(end: ProgramEnd, stop_signal: int) -> bool:
    """Return whether a program exited as one does that handles a stop signal: with 0, or with 128 plus the signal."""
    return end.signal is None and end.exit_code in (0, 128 + stop_signal)


def pod_exit(ended: Sequence[Ended], stop_signal: int | None, *, alone: bool) -> RankExit:
    """Return the pod's report, without progress, artifacts and log lines.

    `alone`: whether the job has no other pod.
    """
    first = decisive(ended, stop_signal)
    report = RankExit(**first.report)
    many = len(ended) > 1
    if (
        stop_signal is not None
        and not first.is_cause
        and (_left(first.end, stop_signal) or first.member.settings.pod.slots)
    ):
        # A program that exits with 0 after a stop signal may not have finished its work.
        report["class"] = FailureClass.SIGNAL
        name = signal_name(stop_signal)
        report["message"] = (
            f"the program did not end after {name}, and was killed"
            if first.end.signal == signal.SIGKILL
            else f"the program ended when it was told to stop ({name})"
        )
        report["exitCode"], report["signal"] = 128 + stop_signal, stop_signal
    elif many and report.get("class") == FailureClass.CONNECTION_LOST:
        early = [each for each in ended[: ended.index(first)] if each.end.succeeded]
        if early:
            report["message"] += f"; rank {early[0].report.get('rank')} had ended with exit code 0"
            if alone:
                report["class"] = FailureClass.APPLICATION_ERROR
    return report


# These functions make the environments, commands and programs of a PyTorch job's ranks in one pod.

_REFERENCE = re.compile(r"\$\((\w+)\)")


def rank_variables(settings: Settings, rank: int) -> dict[str, str]:
    """Return the variables of one rank that differ from those of the pod, as torchrun names them."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank - settings.pod.ranks.start),
        "ROLE_RANK": str(rank),
        "TORCHELASTIC_ERROR_FILE": str(torch_error_file(replace(settings, rank=rank))),
    }


def expanded(command: Sequence[str], variables: Mapping[str, str]) -> list[str]:
    """Replace `$(NAME)` for each of these variables, as Kubernetes does. Other references stay."""
    return [_REFERENCE.sub(lambda found: variables.get(found[1], found[0]), word) for word in command]


def in_round(settings: Settings, command: Sequence[str], of_round: Mapping[str, str]) -> Sequence[str]:
    """Replace the references that the kubelet leaves to dtj-launch in a job with rounds."""
    if settings.pod.rounds is None:
        return command
    names = (name for name in contract.PER_ROUND_VARIABLES if name in settings.environment)
    return expanded(command, {**{name: settings.environment[name] for name in names}, **of_round})


def rank_log(rank: int) -> str:
    """Return the name of a rank's log."""
    return f"rank-{rank}.log"


def rank_members(
    settings: Settings,
    command: Sequence[str],
    of_round: Mapping[str, str] | None = None,
    spares: Spares | None = None,
) -> list[Member]:
    """Return the programs of the pod's ranks. `of_round`: the variables that a round changes. `spares`: those of the
    pod, if it has some.

    In a pod with one rank, the kubelet has expanded all references to variables. In a pod with several, it has left
    those to the variables of a rank. Raises SettingsError in a pod without ranks.
    """
    if not settings.pod.slots:
        raise SettingsError(f"{contract.ENV_POD}: slots must be at least 1 in a pod that runs ranks")
    several = settings.pod.slots > 1
    words = in_round(settings, command, of_round or {})
    members = []
    for rank in settings.pod.ranks:
        variables = rank_variables(settings, rank)
        program = LoggedProgram(
            settings,
            expanded(words, variables) if several else words,
            rank_log(rank),
            prefix=f"[rank {rank}] " if several else "",
            variables={**(of_round or {}), **variables},
            starter=spares.starter(f"rank {rank}") if spares else None,
        )
        members.append(Member(str(rank), replace(settings, rank=rank), program))
    return members
