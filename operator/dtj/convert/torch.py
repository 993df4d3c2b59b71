"""Conversion to strategy TorchDistributed: the number of ranks in each worker, and who starts the ranks."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dtj.api.job import Manifest
from dtj.api.torch_command import TORCHRUN, launchers_in
from dtj.api.torch_distributed import TORCH_DISTRIBUTED, VARIABLES, WORKER, StartedBy
from dtj.convert.notes import Notes
from dtj.convert.replicas import Role, common_spec, refuse_entrypoint
from dtj.convert.security import secure
from dtj.convert.torchrun import Torchrun, read_torchrun

_PYTHON = re.compile(r"(?:^|[\s;&|(/])python[0-9.]*(?=\s|$)")
_SCRIPT = re.compile(r"\S\.sh(?=\s|$)")
_WORLD_SIZE = re.compile(r"\$[({]?WORLD_SIZE\b")


@dataclass(frozen=True)
class Asked:
    """The ranks in each node, as the other operator has them."""

    procs: str
    """A number, or auto, gpu or cpu, as `torchrun --nproc-per-node` takes them."""
    field: str
    """The field of the input with this number."""
    python_is_rank: bool = False
    """Whether a program that torchrun does not start is a rank: RANK is the node's number, as in a PyTorchJob."""

    @property
    def number(self) -> int:
        """The number, or 1 if the node decides: the factor of WORLD_SIZE in a PyTorchJob."""
        return int(self.procs) if self.procs.isdecimal() else 1


class _OfTheNode(Exception):
    """A number of ranks that only the node decides."""


def torch_spec(role: Role, asked: Asked, notes: Notes) -> Manifest:
    """Return dtj's spec of a job with this role alone. If the job can't be converted, the notes have the reasons."""
    role.name = WORKER
    where = f"{role.path}.template.spec.containers.command"
    words = [*role.program[0], *role.program[1]]
    if not role.program[0]:
        refuse_entrypoint(role, where, notes)
        return {}
    for name in [name for name in role.env if name in VARIABLES]:
        value = role.env.pop(name).get("value")
        notes.add(
            f"{role.path}.template.spec.containers.env[{name}]", value, "left out: the operator sets it"
        )
    torch: Manifest = {}
    gpus = next(iter(role.accelerators.values()), 0)
    try:
        procs, by_command = _start(words, asked, gpus)
    except _OfTheNode as error:
        notes.refuse(asked.field, asked.procs, str(error))
        return {}
    if procs != (gpus or 1):
        torch["procsPerWorker"] = procs
    if by_command:
        torch["startedBy"] = StartedBy.COMMAND.value
        notes.add(
            where,
            None,
            f"runs once in each worker, and starts the ranks itself: PET_NPROC_PER_NODE is {procs}",
        )
    if (torchrun := read_torchrun(words)) is not None:
        _settle_torchrun(torchrun, role, procs, where, notes)
    _refuse_world_size(role, asked, procs, where, notes)
    secure([role], False, notes)
    spec = {"strategy": TORCH_DISTRIBUTED.name, **common_spec([role])}
    return spec | ({"torch": torch} if torch else {})


def _start(words: list[str], asked: Asked, gpus: int) -> tuple[int, bool]:
    """Return the ranks in each worker, and whether dtj must be told that the command starts them.

    Raises _OfTheNode.
    """
    torchrun = read_torchrun(words)
    if torchrun is not None:
        return _ranks_in_node(torchrun.literal("nproc_per_node") or asked.procs, gpus), False
    launchers = launchers_in(words)
    if launchers and launchers[0].name != TORCHRUN:
        # Other launchers read no PET_NPROC_PER_NODE.
        return (asked.number if asked.procs.isdecimal() else gpus or 1), False
    text = " ".join(words)
    if asked.python_is_rank and asked.number == 1 and _PYTHON.search(text) and not _SCRIPT.search(text):
        return 1, False
    return _ranks_in_node(asked.procs, gpus), not launchers


def _ranks_in_node(procs: str, gpus: int) -> int:
    """Return what torchrun makes of `--nproc-per-node` on a node with so many GPUs. Raises _OfTheNode."""
    if procs.isdecimal() and int(procs):
        return int(procs)
    if procs in ("auto", "gpu") and gpus:
        return gpus
    if procs in ("auto", "cpu"):
        raise _OfTheNode(
            "one rank for each CPU of the node, and nodes differ: write the number of ranks in each node"
        )
    if procs == "gpu":
        raise _OfTheNode(
            "one rank for each GPU, and the pods have no GPU: write the number of ranks in each node"
        )
    raise _OfTheNode("must be a number, auto, gpu or cpu")


def _settle_torchrun(torchrun: Torchrun, role: Role, procs: int, where: str, notes: Notes) -> None:
    """Leave the number and the place of the ranks to the operator's variables."""
    for option, why in torchrun.faults(role.replicas):
        notes.refuse(where, option, why)
    if torchrun.left_out:
        restarts = torchrun.literal("max_restarts") or "0"
        retries = "" if restarts == "0" else "; runPolicy.backoffLimit limits the restarts of the whole job"
        notes.add(
            where,
            " ".join(torchrun.left_out),
            f"left out: torchrun has the operator's variables PET_*, with PET_NNODES: {role.replicas} and "
            f"PET_NPROC_PER_NODE: {procs}{retries}",
        )
        role.program = (torchrun.command, [])


def _refuse_world_size(role: Role, asked: Asked, procs: int, where: str, notes: Notes) -> None:
    words = [*role.program[0], *role.program[1]]
    if asked.python_is_rank and asked.number != procs and _WORLD_SIZE.search(" ".join(words)):
        notes.refuse(
            where,
            "WORLD_SIZE",
            f"{role.replicas * asked.number} in Kubeflow, and {role.replicas * procs} in dtj, the number of ranks: "
            "write PET_NNODES for the number of nodes",
        )
