"""Checks that the ranks which a job's own command starts are those that the job asked for.

Flags of torchrun take precedence over its variables PET_*. With `--nnodes=1` for example, each pod of the job would
train alone, and the job would succeed with a model of a part of the data.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path

from dtj_trainer.launch.process_tree import children_by_parent, command_of, environment_of
from dtj_trainer.launch.settings import Settings

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 10.0
LOCAL_RANK = "LOCAL_RANK"
_LAUNCHERS = {"torchrun", "torch.distributed.run", "torch.distributed.launch"}
_LAUNCHER_WORDS = 5
"""The launcher's name is among so many words of its command line, after an interpreter with its options."""
_WINS = "takes precedence over the variables PET_*; remove the flag"


class WorldCheck:
    """Watches the processes of a command until all ranks of the pod were seen, or a wrong one."""

    def __init__(self, settings: Settings, program: int, on_fault: Callable[[], None]) -> None:
        """`program`: the command's process. `on_fault`: called once, after `fault` is set."""
        self._settings = settings
        self._program = program
        self._on_fault = on_fault
        self._ended = threading.Event()
        self._seen: set[int] = set()
        self.fault: str | None = None
        """What is wrong with the ranks that run; None while nothing is known to be wrong."""

    def start(self) -> None:
        """Watch in the background."""
        threading.Thread(target=self._watch, name="world", daemon=True).start()

    def stop(self) -> None:
        """Stop to watch, because the command has ended."""
        self._ended.set()

    def _watch(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while not self._ended.wait(pause):
            self.fault = self._look()
            if self.fault:
                log.error("%s", self.fault)
                self._on_fault()
                return
            if self._seen == set(self._settings.pod.ranks):
                log.info("all ranks of this pod are as asked for")
                return
            pause = min(pause * 1.2, LONGEST_PAUSE_SECONDS)

    def _look(self) -> str | None:
        """Return what is wrong with the processes that run now, or None."""
        for pid, environment in launchers_and_ranks(self._program):
            fault = self._judge(environment) if LOCAL_RANK in environment else self._judge_launcher(pid)
            if fault:
                return fault
        return None

    def _judge_launcher(self, pid: int) -> str | None:
        """Return what is wrong with a process above the ranks, or None.

        With --standalone and PET_NNODES, torchrun waits on its own host for nodes that never come.
        """
        alone = self._settings.world_size == len(self._settings.pod.ranks)
        if alone or "--standalone" not in torchrun_options(command_of(pid)):
            return None
        asked, name = self._settings.world_size, self._settings.pod.name
        return f"{asked} ranks were asked for, and torchrun on {name} connects to no other pod: remove --standalone"

    def _judge(self, environment: dict[str, str]) -> str | None:
        """Return what is wrong with a rank, or None."""
        world, rank = environment.get("WORLD_SIZE", ""), environment.get("RANK", "")
        asked, own, name = self._settings.world_size, self._settings.pod.ranks, self._settings.pod.name
        if not (world.isdecimal() and rank.isdecimal()):
            return None
        if int(world) != asked:
            flags = "--nnodes" if int(world) == len(own) else "--nnodes or --nproc-per-node"
            what = f"{asked} ranks were asked for, and the command started {world} on {name}"
            return f"{what}: a flag such as {flags} {_WINS}"
        if int(rank) not in own:
            what = f"{name} was to run {_ranks(own)} of {asked}, and the command started rank {rank} there"
            return f"{what}: a flag such as --node-rank {_WINS}"
        self._seen.add(int(rank))
        return None


def _ranks(ranks: range) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"


def torchrun_options(words: Sequence[str]) -> list[str]:
    """Return the words between torchrun and the script in a command line; empty for another command."""
    names = [Path(word).name for word in words[:_LAUNCHER_WORDS]]
    at = next((at for at, name in enumerate(names) if name in _LAUNCHERS), len(words))
    return list(takewhile(lambda word: not word.endswith(".py"), words[at + 1 :]))


def launchers_and_ranks(program: int) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the processes from a program down to the ranks, with their environments.

    A rank is a process that got LOCAL_RANK from its parent. What a rank starts itself is no rank of the job, even if
    it has LOCAL_RANK.
    """
    children = children_by_parent()
    todo = [program]
    while todo:
        pid = todo.pop()
        environment = environment_of(pid)
        yield pid, environment
        if LOCAL_RANK not in environment:
            todo += children.get(pid, ())
