"""Derives the end of a pod from the ends of its programs."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from dtj_trainer.contract.failure_class import FailureClass
from dtj_trainer.launch.failure import signal_name
from dtj_trainer.launch.program import ProgramEnd
from dtj_trainer.launch.program_group import Ended
from dtj_trainer.launch.termination import RankExit


def decisive(ended: Sequence[Ended], stop_signal: int | None) -> Ended:
    """Return the program whose end is the pod's.

    `ended`: in the order of the ends. `stop_signal`: the signal that asked the pod to stop. The first program with a
    failure of its own decides, else the first program that failed because of others, else the first rank.
    """
    causes = [each for each in ended if each.is_cause]
    own = [each for each in causes if each.report["class"] != FailureClass.CONNECTION_LOST]
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
