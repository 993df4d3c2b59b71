"""Processor seconds of the stages of `make test` and of their tests.

A stage runs in a cgroup of its own, which counts all its processes, also those that nobody waits for. The pods of the
local cluster are in other cgroups, which count for the stage of the cluster. Where no cgroup (version 1) can be made,
as without root, nothing is counted.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests import warm

ROOT = Path("/sys/fs/cgroup/cpuacct")
CPU = Path("/sys/fs/cgroup/cpu")
PREFERRED = 8 * 1024
"""The weight of eight processes."""
_PODS = "dtj-*"
"""See tests.cluster.local.cgroups."""


def in_group(stage: str, command: Sequence[str]) -> tuple[str, ...]:
    """The command that runs a command in the stage's cgroup."""
    with suppress(OSError):
        _group(stage).mkdir(exist_ok=True)
    return _entering(_group(stage), stage, command)


def _entering(group: Path, stage: str, command: Sequence[str]) -> tuple[str, ...]:
    return ("sh", "-c", f'echo $$ > "{group}/cgroup.procs" 2> /dev/null; exec "$@"', stage, *command)


@contextmanager
def preferred(stage: str, command: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the command that runs a command with the weight of several processes, as long as the context lasts.

    Processes that outlive the command have their usual weight afterwards.
    """
    group = CPU / f"make-test-{stage}"
    with suppress(OSError):
        group.mkdir(exist_ok=True)
        (group / "cpu.shares").write_text(str(PREFERRED))
    try:
        yield _entering(group, stage, command)
    finally:
        with suppress(OSError):
            while left := (group / "cgroup.procs").read_text().split():
                for process in left:
                    with suppress(ProcessLookupError):
                        (CPU / "cgroup.procs").write_text(process)
            group.rmdir()


def of_stage(stage: str) -> float | None:
    """Seconds of the stage's cgroup so far."""
    return _seconds(_group(stage))


def of_this_group() -> float | None:
    """Seconds so far of the cgroup of this process, and of the pods of the local cluster."""
    own = [
        line.split(":", 2)[2]
        for line in Path("/proc/self/cgroup").read_text().splitlines()
        if ":cpuacct:" in line
    ]
    used = [_seconds(group) for group in (*(ROOT / path.strip("/") for path in own), *ROOT.glob(_PODS))]
    return sum(filter(None, used)) if own and used[0] is not None else None


def remove(stage: str) -> None:
    """Remove the stage's cgroup, unless a process of it still runs."""
    with suppress(OSError):
        _group(stage).rmdir()


def of_this_process() -> float:
    """Seconds so far of this process, of the children that it waited for, and of its warm programs."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used) + warm.used()


def _group(stage: str) -> Path:
    return ROOT / f"make-test-{stage}"


def _seconds(group: Path) -> float | None:
    with suppress(OSError):
        return int((group / "cpuacct.usage").read_text()) / 1e9
    return None
