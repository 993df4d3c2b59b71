"""Checks that the ranks which a job's own command starts are those that the job asked for.

Flags of torchrun take precedence over its variables PET_*. With `--standalone` for example, each pod of the job would
train alone, and the job would succeed with a model of a part of the data.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator

from dtj_trainer.launch.process_tree import children_by_parent, environment_of
from dtj_trainer.launch.settings import Settings

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 10.0
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
            for environment in started_ranks(self._program):
                self.fault = self._judge(environment)
                if self.fault:
                    log.error("%s", self.fault)
                    self._on_fault()
                    return
            if self._seen == set(self._settings.pod.ranks):
                return
            pause = min(pause * 1.2, LONGEST_PAUSE_SECONDS)

    def _judge(self, environment: dict[str, str]) -> str | None:
        """Return what is wrong with a rank, or None."""
        world, rank = environment.get("WORLD_SIZE", ""), environment.get("RANK", "")
        asked, own, name = self._settings.world_size, self._settings.pod.ranks, self._settings.pod.name
        if not (world.isdecimal() and rank.isdecimal()):
            return None
        if int(world) != asked:
            flags = "--standalone or --nnodes" if int(world) == len(own) else "--nnodes or --nproc-per-node"
            what = f"{asked} ranks were asked for, and the command started {world} on {name}"
            return f"{what}: a flag such as {flags} {_WINS}"
        if int(rank) not in own:
            what = f"{name} was to run {_ranks(own)} of {asked}, and the command started rank {rank} there"
            return f"{what}: a flag such as --node-rank {_WINS}"
        self._seen.add(int(rank))
        return None


def _ranks(ranks: range) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"


def started_ranks(program: int) -> Iterator[dict[str, str]]:
    """Yield the environments of the ranks below a process: processes that got LOCAL_RANK from their parents.

    What a rank starts itself is no rank of the job, even if it has LOCAL_RANK.
    """
    children = children_by_parent()
    todo = [program]
    while todo:
        for pid in children.get(todo.pop(), ()):
            environment = environment_of(pid)
            if "LOCAL_RANK" in environment:
                yield environment
            else:
                todo.append(pid)
