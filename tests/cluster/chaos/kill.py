"""SIGKILL, SIGSTOP or SIGCONT to a process in a container, sent from the machine of the node."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from tests import stub_training
from tests.cluster.jobs import until
from tests.cluster.local import cgroups, processes

Words = Sequence[str]


def kill(uid: str, which: Callable[[Words], bool], *others: str) -> str:
    """SIGKILL to the process of the pod with that uid whose command line is meant; what it was.

    `others`: uids of pods of which the same process is killed at the same time.
    """
    found = [_the_process(each, which) for each in (uid, *others)]
    processes.kill(pid for pid, _ in found)
    return describe(found[0][1])


def stop(uid: str, which: Callable[[Words], bool]) -> str:
    """SIGSTOP in place of SIGKILL."""
    pid, words = _the_process(uid, which)
    os.kill(pid, signal.SIGSTOP)
    return describe(words)


def resume(uid: str, which: Callable[[Words], bool]) -> None:
    """SIGCONT to a process that was stopped."""
    os.kill(_the_process(uid, which)[0], signal.SIGCONT)


def _the_process(uid: str, which: Callable[[Words], bool]) -> tuple[int, Words]:
    def find() -> dict[int, list[str]] | None:
        everyone = {pid: words_of(pid) for pid in cgroups.pod_processes(uid)}
        return {pid: words for pid, words in everyone.items() if which(words)} or None

    found = until(f"the process to kill in pod {uid}", find, 20)
    assert len(found) == 1, found
    return next(iter(found.items()))


def is_mpirun(words: Words) -> bool:
    """The launcher's program."""
    return words[0].endswith("mpirun")


def is_training(words: Words) -> bool:
    """The program itself, as which a rank or a replica runs: neither mpirun nor dtj-launch, which have its words."""
    programs = ("dtj_trainer.programs.", stub_training.NAME)
    return words[0].endswith("python") and "-c" in words[1:2] and words[3].startswith(programs)


def is_supervisor(words: Words) -> bool:
    """dtj-launch of the pod: neither tini, which started it, nor a rank's wrapper."""
    kinds = ("launcher", "worker", "replica", "ranks")
    return len(words) > 2 and words[1].endswith("/dtj-launch") and words[2] in kinds


def is_sshd(words: Words) -> bool:
    """The server by which mpirun starts the ranks of a worker: not the processes of its connections."""
    return "sshd -De " in " ".join(words)


def words_of(pid: int) -> list[str]:
    """Its command line; one empty word for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return [""]


def describe(words: Words) -> str:
    """Enough of a command line to tell what it is."""
    return "the program" if is_training(words) else " ".join(Path(word).name for word in words[:3])
