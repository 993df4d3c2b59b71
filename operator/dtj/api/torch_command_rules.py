"""Faults of the launchers in a command. Options of a launcher win over the variables that the operator sets, so that
an option can make each worker a training of its own, or give other numbers to the ranks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from dtj.api.accelerate import VARIABLES, missing_options
from dtj.api.torch_command import ACCELERATE, DEEPSPEED, TORCHRUN, Launcher, Option

_THIS_HOST = re.compile(r"(localhost|127(\.[0-9]+){3}|0\.0\.0\.0|\[?(::1|0:0:0:0:0:0:0:1)\]?)(:[0-9]+)?")


@dataclass(frozen=True)
class World:
    """The ranks of a job."""

    workers: int
    """Pods of the job."""
    procs: int
    """Ranks in each pod."""
    gpus: int
    """GPUs of each pod."""


def launcher_faults(launcher: Launcher, world: World) -> Iterator[tuple[Option | None, str]]:
    """Yield the faults of a launcher: the option at fault, or None for the launcher itself, and the message."""
    if launcher.name == DEEPSPEED and world.workers > 1:
        yield (
            None,
            f"the deepspeed command starts the ranks of other hosts by ssh, and the {world.workers} workers serve no "
            "ssh: start the script itself ([python, train.py]), and dtj gives each rank the RANK, LOCAL_RANK and "
            "WORLD_SIZE that deepspeed.initialize reads, or start the script by torchrun",
        )
        return
    for name, wrong in _CHECKS[launcher.name].items():
        option = launcher.options.get(name)
        if option is not None and option.literal is not None and (said := wrong(option.literal, world)):
            yield option, f"{option.written} {said}: {_remedy(launcher, name)}"
    if launcher.name == ACCELERATE and launcher.at is None:
        yield from _unsaid(launcher, world)


def _unsaid(launcher: Launcher, world: World) -> Iterator[tuple[None, str]]:
    """Yield a fault where options are missing in the text of a shell, into which the operator inserts nothing."""
    if world.workers == 1 and world.procs == (world.gpus or 1):
        return  # accelerate starts a process for each GPU that it finds.
    if missing := missing_options(launcher, world.workers, world.procs):
        yield (
            None,
            "accelerate launch takes the number of machines and processes, the rank and the address from its options "
            f"alone: write `accelerate launch {' '.join(map(_in_shell, missing))} …`, or make accelerate the command "
            "itself ([accelerate, launch, train.py]), and the operator inserts the options",
        )


def _in_shell(option: str) -> str:
    """Return an option with the references of a shell in place of those of the kubelet."""
    return re.sub(r"\$\((\w+)\)", r"$\1", option)


def _remedy(launcher: Launcher, name: str) -> str:
    if _CHECKS[launcher.name][name] is _not_the_procs:
        return (
            "remove it; torch.procsPerWorker, by default the worker's gpus, else 1, gives the number of ranks"
        )
    if launcher.name == TORCHRUN and name != "--standalone":
        return f"remove it; torchrun reads PET_{name[2:].replace('-', '_').upper()}, which the operator sets"
    for option, variable in VARIABLES.items() if launcher.name == ACCELERATE else ():
        if option.replace("_", "-") == name:
            whole = f"{option}=$({variable})"
            return (
                f"remove it, and the operator inserts {whole}" if launcher.at else f"write {_in_shell(whole)}"
            )
    return "remove it"


def _not_the_workers(value: str, world: World) -> str | None:
    count = str(world.workers)
    return None if value in (count, f"{count}:{count}") else f"must be the number of workers, {count}"


def _not_the_ranks(value: str, world: World) -> str | None:
    count = world.workers * world.procs
    return None if value == str(count) else f"must be the number of ranks of all workers, {count}"


def _one_rank_for_all(value: str, world: World) -> str | None:
    if world.workers == 1:
        return None if value == "0" else "must be 0, the index of the only worker"
    return f"gives all {world.workers} workers the same rank"


def _this_host(value: str, world: World) -> str | None:
    if world.workers == 1 or not _THIS_HOST.fullmatch(value):
        return None
    return f"names each worker's own host, so that the {world.workers} workers never meet"


def _dynamic(value: str, world: World) -> str | None:
    if world.workers == 1 or value == "static":
        return None
    return "must be static, because other backends give the ranks to the workers in any order, not by their index"


def _alone(_: str, world: World) -> str | None:
    return f"lets each of the {world.workers} workers train alone" if world.workers > 1 else None


def _restarts(value: str, world: World) -> str | None:
    if world.workers == 1 or value == "0":
        return None
    return (
        "must be 0, because ranks that one worker starts again can't join those of the others (the operator starts "
        "all workers again, runPolicy.backoffLimit times)"
    )


def _not_the_procs(value: str, world: World) -> str | None:
    if value == str(world.procs) or (value in ("gpu", "auto") and world.gpus == world.procs):
        return None
    return f"must be the number of ranks of a worker, {world.procs}"


def _own_port(value: str, world: World) -> str | None:
    return "gives each worker another port" if value == "0" and world.workers > 1 else None


def _one_process(_: str, world: World) -> str | None:
    return f"starts one process in a worker, and not {world.procs}" if world.procs > 1 else None


_Check = Callable[[str, World], str | None]
_CHECKS: Mapping[str, Mapping[str, _Check]] = {
    TORCHRUN: {
        "--standalone": _alone,
        "--nnodes": _not_the_workers,
        "--node-rank": _one_rank_for_all,
        "--nproc-per-node": _not_the_procs,
        "--rdzv-endpoint": _this_host,
        "--master-addr": _this_host,
        "--rdzv-backend": _dynamic,
        "--max-restarts": _restarts,
    },
    ACCELERATE: {
        "--num-machines": _not_the_workers,
        "--num-processes": _not_the_ranks,
        "--machine-rank": _one_rank_for_all,
        "--main-process-ip": _this_host,
        "--main-process-port": _own_port,
        "--rdzv-backend": _dynamic,
        "--max-restarts": _restarts,
        "--cpu": _one_process,
    },
    DEEPSPEED: {"--num-gpus": _not_the_procs},
}
"""What is wrong with a literal value of an option, after the option in a sentence; None: nothing."""
