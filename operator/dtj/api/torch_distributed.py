"""The rules of strategy TorchDistributed.

Workers run the ranks of torch.distributed. The ranks are static: the environment variables of each pod set its ranks
and the address of rank 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dtj.api.pod_template import TRAINER_CONTAINER, own_program, program_of
from dtj.api.spec import JobSpec, StartedBy
from dtj.api.strategy import Role, ScriptMark, Starter, StrategyRules
from dtj.api.torch_command import Launcher, World, launcher_faults, launchers_in
from dtj_trainer import contract

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


def procs_per_worker(spec: JobSpec) -> int:
    """Ranks in each worker pod."""
    return spec.torch_options.procs_per_worker or spec.worker.gpus or 1


@dataclass(frozen=True)
class RanksStart:
    """How the ranks of a worker start."""

    by: StartedBy
    """Who starts the ranks: RANKS (dtj-launch) or COMMAND (the job's command, such as torchrun)."""
    reason: str
    """The reason for `by`, as a clause that `dtj plan` prints."""
    launchers: Sequence[Launcher]
    """The launchers, such as torchrun, in the job's command."""


def ranks_start(spec: JobSpec) -> RanksStart:
    """How the ranks of a worker start: as `startedBy` says, or as the command shows."""
    launchers, said = launchers_in(program_of(spec, spec.worker)), spec.torch_options.started_by
    if said is not StartedBy.AUTO:
        return RanksStart(said, f"torch.startedBy is {said}", launchers)
    if launchers:
        return RanksStart(StartedBy.COMMAND, f"the command calls {launchers[0].name}", launchers)
    return RanksStart(
        StartedBy.RANKS, "the command calls none of torchrun, accelerate launch and deepspeed", ()
    )


def _notes(spec: JobSpec) -> tuple[str, ...]:
    start = ranks_start(spec)
    who = "the command" if start.by is StartedBy.COMMAND else "dtj-launch"
    return (f"Ranks are started by {who}, {procs_per_worker(spec)} in each worker: {start.reason}.",)


def _faults(spec: JobSpec) -> Iterator[tuple[str, str]]:
    start = ranks_start(spec)
    if start.by is StartedBy.RANKS:
        yield from _faults_of_ranks(spec, start)
        return
    worker = spec.worker
    world = World(workers=worker.replicas, procs=procs_per_worker(spec), gpus=worker.gpus)
    for launcher in start.launchers:
        for option, message in launcher_faults(launcher, world):
            yield _field(spec, option.word if option else launcher.word), message


def _faults_of_ranks(spec: JobSpec, start: RanksStart) -> Iterator[tuple[str, str]]:
    for launcher in start.launchers:
        yield (
            "spec.torch.startedBy",
            f"Ranks starts the command once for each rank, and the command calls {launcher.name}, which starts ranks "
            "itself: use Auto or Command, or remove the launcher from the command",
        )
    if procs_per_worker(spec) == 1:
        return
    for index, variable in enumerate(spec.env):
        for name in contract.PER_RANK_VARIABLES:
            if f"$({name})" in (variable.value or "").replace("$$", ""):
                yield (
                    f"spec.env[{index}].value",
                    f"$({name}) differs between the ranks of a worker, and a variable is the same for all of them: "
                    "refer to it in spec.args, or read it in the program",
                )


def _field(spec: JobSpec, word: str) -> str:
    """Return the field with a word of the program: command or args, of the spec or of the worker's template."""
    command, args = own_program(spec.worker)
    own = f"spec.replicaSpecs.{WORKER}.template.spec.containers[{TRAINER_CONTAINER}]"
    fields = {f"{own}.command": command, f"{own}.args": args}
    if not command:
        fields = {
            "spec.command": spec.command,
            **({f"{own}.args": args} if args else {"spec.args": spec.args}),
        }
    return next(f"{field}[{words.index(word)}]" for field, words in fields.items() if word in words)


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
    holds_rounds=lambda _: True,
    script_marks=tuple(
        ScriptMark(name=name)
        for name in (
            "torch.distributed",
            "torch.nn.parallel.DistributedDataParallel",
            "lightning",
            "pytorch_lightning",
            "accelerate",
            "transformers.Trainer",
            "transformers.Seq2SeqTrainer",
            "deepspeed",
        )
    ),
    faults=_faults,
    notes=_notes,
    variables=VARIABLES,
)
