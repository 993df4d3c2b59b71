"""Derives the cause of the whole run from the ranks' reports and from mpirun's end."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence, Set
from typing import cast

from dtj_trainer import contract
from dtj_trainer.contract.failure_class import FailureClass
from dtj_trainer.launch.failure import classify, signal_name
from dtj_trainer.launch.mpirun import read_blame
from dtj_trainer.launch.program import ProgramEnd
from dtj_trainer.launch.termination import RankExit

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
"""Refused files of so many pods are named."""


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
    causes = [each for each in exits if "class" in each and not each.get("stopped")]
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
    lost = {
        host: reason
        for host, reason in lost_hosts().items()
        if not any(_is_host(host, each.get("host", "")) for each in causes)
    }
    if lost:
        return _connection_lost(end, lost, causes)
    if causes:
        return _without_stopped(causes[0])
    return _without_ranks(end, exits, mpirun_lines)


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
        message += f"; then rank {exit_report.get('rank')} on {exit_report.get('host')}: {exit_report.get('message')}"
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
