"""The rules of strategy TorchDistributed, and its block of the spec.

Workers run the ranks of torch.distributed. The ranks are static: the environment of each pod says all.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from dtj.api.base import ApiModel, Number
from dtj.api.pod_template import program_of
from dtj.api.strategy import Role, Starter, StrategyRules
from dtj.api.torch_command import launchers_in
from dtj_trainer import contract

if TYPE_CHECKING:
    from dtj.api.spec import JobSpec

WORKER = "worker"


VARIABLES = frozenset(
    {
        *contract.PER_RANK_VARIABLES,
        *("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
        *("GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
        *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"),
        *("TORCHELASTIC_USE_AGENT_STORE", "PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK"),
        *("PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_RDZV_BACKEND", "PET_RDZV_ENDPOINT", "PET_RDZV_ID"),
        *("PET_MAX_RESTARTS", "PET_STANDALONE"),
    }
)
"""The variables of torch.distributed and of torchrun by which the ranks find each other."""


class StartedBy(StrEnum):
    """Who starts the ranks of a worker."""

    AUTO = "Auto"
    RANKS = "Ranks"
    COMMAND = "Command"


class Torch(ApiModel):
    """What only strategy TorchDistributed has."""

    procs_per_worker: Annotated[int, Field(ge=1, le=1024), Number] | None = None
    """Ranks in each worker pod. Default: the gpus of a worker, else 1."""
    started_by: StartedBy = StartedBy.AUTO
    """Who starts the ranks of a worker. Ranks: dtj starts the command once for each rank. Command: dtj starts the
    command once in each worker, and the command starts the ranks, as torchrun does. Auto: Command where the command
    calls torchrun or `accelerate launch`, else Ranks."""


def procs_per_worker(spec: JobSpec) -> int:
    """Ranks in each worker pod."""
    return spec.torch_options.procs_per_worker or spec.worker.gpus or 1


def ranks_start(spec: JobSpec) -> Start:
    """Who starts the ranks of a job, and why. `by` is Ranks or Command."""
    started_by = spec.torch_options.started_by
    command = launchers_in(program_of(spec, spec.worker))
    if started_by is StartedBy.AUTO:
        return Start(StartedBy.COMMAND, command[0].name) if command else Start(StartedBy.RANKS)
    return Start(started_by, command[0].name if command else None)


@dataclass(frozen=True)
class Start:
    """How the ranks of a job start."""

    by: StartedBy
    """Ranks or Command."""
    launcher: str | None = None
    """Name of the program in the command that starts ranks, for example torchrun."""


def _ranks(spec: JobSpec, index: int) -> range:
    procs = procs_per_worker(spec)
    return range(index * procs, (index + 1) * procs)


TORCH_DISTRIBUTED = StrategyRules(
    name="TorchDistributed",
    description="static ranks of torch.distributed, started by dtj or by the job's own torchrun",
    roles={
        WORKER: Role(
            required=True, decides=True, all_decide=True, reports=True, option="workers", ranks=_ranks
        )
    },
    starter=Starter(image="dtj-trainer-horovod", module="torch_image_classification"),
    block="torch",
    variables=VARIABLES,
)
