"""Checks that the ranks which a program starts are those that the job asked for.

Flags of torchrun take precedence over its variables PET_*. With `--nnodes=1` for example, each pod of the job would
train alone, and the job would succeed with a model of a part of the data. The same happens where dtj-launch starts a
program for each rank, and the program is a script that calls torchrun.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from dtj_trainer.launch.processes import children_by_parent, command_of, environment_of
from dtj_trainer.launch.settings import Settings

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 10.0
MOST_OF_A_CORE = 0.02
"""The share of a core that the looks at the processes may use."""
LOCAL_RANK = "LOCAL_RANK"
_PYTHON = re.compile(r"python[0-9.]*")
_MODULE_OPTION = re.compile(r"-[a-zA-Z]*m")
_TORCHRUN = {"torchrun", "torch.distributed.run", "torch.distributed.launch"}
_LAUNCHERS = {
    *_TORCHRUN,
    *("accelerate", "accelerate-launch", "accelerate.commands.launch"),
    *("deepspeed", "deepspeed.launcher.runner", "deepspeed.launcher.launch"),
}
_WINS = "takes precedence over the variables PET_*; remove the flag"
_BY_COMMAND = "torch.startedBy: Command"


class WorldCheck:
    """Watches the processes below the pod's programs for ranks with another world size, or with other numbers."""

    def __init__(
        self,
        settings: Settings,
        programs: Mapping[int, range],
        on_fault: Callable[[], None],
        *,
        by_command: bool,
    ) -> None:
        """`programs`: the ranks of each program, by its process. `on_fault`: called once, after `fault` is set.

        `by_command`: whether the pod's one program starts the ranks. Else each program is a rank, and may start none.
        """
        self._settings = settings
        self._programs = programs
        self._on_fault = on_fault
        self._by_command = by_command
        self._ended = threading.Event()
        self._seen: set[int] = set()
        self.fault: str | None = None
        """What is wrong with the ranks that run; None while nothing is known to be wrong."""

    def start(self) -> None:
        """Watch in the background."""
        threading.Thread(target=self._watch, name="world", daemon=True).start()

    def stop(self) -> None:
        """Stop watching, because the programs have ended."""
        self._ended.set()

    def _watch(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while not self._ended.wait(pause):
            began = time.thread_time()
            self.fault = self._look()
            if self.fault:
                self._on_fault()
                return
            if self._by_command and self._seen == set(self._settings.pod.ranks):
                log.info("this pod runs the ranks that the job asks for")
                return
            # Pause longer after a costly look: on a machine with thousands of processes, a look takes a third of a
            # second.
            spent = time.thread_time() - began
            pause = max(min(pause * 1.2, LONGEST_PAUSE_SECONDS), spent / MOST_OF_A_CORE)

    def _look(self) -> str | None:
        """Return what is wrong with the processes that run now, or None."""
        children = children_by_parent()
        for program, own in self._programs.items():
            for launcher, environment in launchers_and_ranks(
                program, children, None if self._by_command else own[0]
            ):
                fault = self._judge_launcher(launcher, own) if launcher else self._judge(environment, own)
                if fault:
                    return fault
        return None

    def _judge_launcher(self, launcher: RankStarter, own: range) -> str | None:
        """Return what is wrong with a process above the ranks, or None.

        With --standalone and PET_NNODES, torchrun waits on its own host for nodes that never come. Of several
        torchruns in a pod, those that can't listen on MASTER_PORT would fail first.
        """
        if launcher.name not in _TORCHRUN:
            return None
        asked, name, several = (
            self._settings.world_size,
            self._settings.pod.name,
            self._settings.pod.slots > 1,
        )
        if several and not self._by_command:
            what = f"dtj-launch starts the {self._settings.pod.slots} ranks of {name}"
            return f"{what}, and the program of rank {own[0]} calls torchrun, which starts others: set {_BY_COMMAND}"
        if "--standalone" in launcher.options and asked > self._settings.pod.slots:
            what = f"{asked} ranks were asked for, and torchrun on {name} connects to no other pod"
            return f"{what}: remove --standalone"
        return None

    def _judge(self, environment: dict[str, str], own: range) -> str | None:
        """Return what is wrong with a rank, or None."""
        world, rank = environment.get("WORLD_SIZE", ""), environment.get("RANK", "")
        asked, name = self._settings.world_size, self._settings.pod.name
        if not (world.isdecimal() and rank.isdecimal()):
            return None
        more = (
            ""
            if self._by_command
            else f". For a program that starts the ranks of a worker, set {_BY_COMMAND}"
        )
        if int(world) != asked:
            flags = "--nnodes" if int(world) == len(own) else "--nnodes or --nproc-per-node"
            what = f"{asked} ranks were asked for, and the command started {world} on {name}"
            return f"{what}: a flag such as {flags} {_WINS}{more}"
        if int(rank) not in own:
            what = f"{name} was to run {_ranks(own)} of {asked}, and the command started rank {rank} there"
            return f"{what}: a flag such as --node-rank {_WINS}{more}"
        self._seen.add(int(rank))
        return None


def _ranks(ranks: range) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"


class RankStarter(NamedTuple):
    """A running program that starts ranks. `options`: the words between its name and the script."""

    name: str
    options: list[str]


def launcher_of(words: Sequence[str]) -> RankStarter | None:
    """Return the launcher that runs by a command line; None for another program."""
    program = _without_python(words)
    if not program or (name := Path(program[0]).name) not in _LAUNCHERS:
        return None
    return RankStarter(name, list(takewhile(lambda word: not word.endswith(".py"), program[1:])))


def _without_python(words: Sequence[str]) -> Sequence[str]:
    """Return a command line from the script or module that an interpreter runs on."""
    if not words or not _PYTHON.fullmatch(Path(words[0]).name):
        return words
    at = 1
    while at < len(words) and words[at].startswith("-"):
        if _MODULE_OPTION.fullmatch(words[at]):
            return words[at + 1 :]
        at += 2 if words[at] in ("-X", "-W") else 1
    return words[at:]


def launchers_and_ranks(
    program: int, children: Mapping[int, Sequence[int]], rank: int | None
) -> Iterator[tuple[RankStarter | None, dict[str, str]]]:
    """Yield the launchers below a program, and None with the environment of each rank that runs there.

    rank: that of the program; None for a program without one, below which each process with LOCAL_RANK is a rank. A
    program that is a rank gives LOCAL_RANK to all that it starts, so that below it only what a launcher has started
    is one. A launcher without the program's RANK is no part of the training. What a rank starts itself is no rank of
    the job, even if it has LOCAL_RANK.
    """
    todo = [(program, rank is None)]
    while todo:
        pid, may_be_rank = todo.pop()
        launcher = launcher_of(command_of(pid))
        environment = environment_of(pid) if launcher or may_be_rank else {}
        if launcher and rank is not None and environment.get("RANK") != str(rank):
            launcher = None
        if launcher:
            yield launcher, environment
        elif LOCAL_RANK in environment:
            yield None, environment
            continue
        todo += [(child, rank is None or launcher is not None) for child in children.get(pid, ())]
