"""The ranks of a PyTorch job in one pod: their environments, commands and programs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from dtj_trainer import contract
from dtj_trainer.launch.failure import torch_error_file
from dtj_trainer.launch.logged_program import LoggedProgram
from dtj_trainer.launch.program_group import Member
from dtj_trainer.launch.settings import Settings, SettingsError

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


def rank_log(rank: int) -> str:
    """Return the name of a rank's log."""
    return f"rank-{rank}.log"


def rank_members(settings: Settings, command: Sequence[str]) -> list[Member]:
    """Return the programs of the pod's ranks.

    In a pod with one rank, the kubelet has expanded all references to variables. In a pod with several, it has left
    those to the variables of a rank. Raises SettingsError in a pod without ranks.
    """
    if not settings.pod.slots:
        raise SettingsError(f"{contract.ENV_POD}: slots must be at least 1 in a pod that runs ranks")
    several = settings.pod.slots > 1
    members = []
    for rank in settings.pod.ranks:
        variables = rank_variables(settings, rank)
        program = LoggedProgram(
            settings,
            expanded(command, variables) if several else command,
            rank_log(rank),
            prefix=f"[rank {rank}] " if several else "",
            variables=variables,
        )
        members.append(Member(str(rank), replace(settings, rank=rank), program))
    return members
