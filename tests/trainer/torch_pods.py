"""Pods of a TorchDistributed job on this machine, with the environment that the operator's plan gives them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.trainer.conftest import PODS, Workspace, free_ports

from dtj_trainer import contract


def torch_pods(
    make_workspace: Callable[..., Workspace],
    pods: int,
    slots: int = 1,
    *,
    by_command: bool = False,
    rounds: contract.Rounds | None = None,
    **more: str,
) -> list[Workspace]:
    """The workspaces of a job's pods. `by_command`: the job's command starts the ranks, as torchrun does. `rounds`:
    set where the ranks may be restarted in place.
    """
    master, barrier, peers = free_ports(3)
    others = contract.Peers("{}.invalid", {"worker": pods}) if rounds else None
    pod = replace(PODS["TorchDistributed", "worker"], slots=slots, rounds=rounds, peers=others)
    of_rounds = {contract.ENV_RESTORE_PEERS: f"loopback:{peers}"} if rounds else {}
    return [
        make_workspace(
            f"pod{index}",
            **{
                "DTJ_STRATEGY": "TorchDistributed",
                "DTJ_ROLE": "worker",
                "DTJ_INDEX": str(index),
                "DTJ_SLOTS_PER_WORKER": str(slots),
                "DTJ_WORLD_SIZE": str(pods * slots),
                "DTJ_UID": "uid-of-the-job",
                "DTJ_PEER_TIMEOUT_SECONDS": "60",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(master),
                "WORLD_SIZE": str(pods * slots),
                "OMP_NUM_THREADS": "1",
                **({"DTJ_START_BARRIER": f"127.0.0.1:{barrier}"} if pods > 1 else {}),
                "GROUP_RANK": str(index),
                **({contract.ENV_POD: replace(pod, index=index).to_json()} if rounds else {}),
                **of_rounds,
                **(_of_torchrun(index, pods, slots, master) if by_command or slots == 1 else {}),
                **({} if by_command else _of_ranks(index, pods, slots)),
                **more,
            },
        )
        for index in range(pods)
    ]


def _of_ranks(index: int, pods: int, slots: int) -> dict[str, str]:
    return {
        "RANK": str(index * slots),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": str(slots),
        "GROUP_WORLD_SIZE": str(pods),
    }


def _of_torchrun(index: int, pods: int, slots: int, master: int) -> dict[str, str]:
    return {
        "RANK": str(index),
        "PET_NNODES": str(pods),
        "PET_NPROC_PER_NODE": str(slots),
        "PET_NODE_RANK": str(index),
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": str(master),
        "PET_RDZV_BACKEND": "static",
        "PET_RDZV_ID": "uid-of-the-job",
        "PET_RDZV_ENDPOINT": f"127.0.0.1:{master}",
        "PET_MAX_RESTARTS": "0",
    }
