"""The plan of TorchDistributed: the variables of a pod give the numbers of its ranks and the address of rank 0.

If dtj starts the ranks, the variables are those that torchrun gives to a rank (`RANK`, `MASTER_ADDR`, …). If the
command starts the ranks, the variables are those that torchrun reads instead of its flags (`PET_NNODES`, …). A pod
with one rank has both, so that the program may also be a script that calls torchrun.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

from dtj.api.job import Job
from dtj.api.names import pod_name
from dtj.api.pod_template import asks_for_devices, limits_of, program_of
from dtj.api.quantities import amount
from dtj.api.shape import Replica, shape_of
from dtj.api.spec import StartedBy
from dtj.api.torch_command import ACCELERATE, ENV_USE_CPU, missing_options
from dtj.api.torch_distributed import WORKER, ranks_start
from dtj.plan.config_map import config_map, script
from dtj.plan.model import Plan
from dtj.plan.pods import headless_service, ranks_info
from dtj.plan.recipe import Host, Port, Recipe, Text, Value, address
from dtj_trainer import contract

_FIRST_PORT, _PORTS = 29500, 100
_SHUTDOWN_SECONDS = contract.STOP_SECONDS - 2
"""Seconds from torchrun's SIGTERM to its ranks until their SIGKILL; torchrun's own default is 30. torchrun must end
its ranks before dtj-launch kills torchrun: the ranks have sessions of their own, and would continue without it."""
_REFERENCE = re.compile(r"\$\$|\$\(([^()]*)\)")


def torch_distributed_plan(job: Job) -> Plan:
    """Return the objects of the job's current attempt. The job must have no faults."""
    worker = job.spec.worker
    start = ranks_start(job.spec)
    by_command = start.by is StartedBy.COMMAND
    shape = shape_of(job)
    world = _World(job, by_command=by_command)
    program = program_of(job.spec, worker)
    for launcher in start.launchers:
        if launcher.name == ACCELERATE and launcher.at is not None:
            program[launcher.at : launcher.at] = missing_options(launcher, world.workers, world.procs)

    def recipe(replica: Replica) -> Recipe:
        index = replica.index
        info = ranks_info(job, WORKER, index, pods=worker.replicas, slots=world.procs)
        return Recipe(
            spec=worker,
            info=info,
            program=_left_to_launch(program, world.expanded_by_launch(rounds=info.rounds is not None)),
            environment=world.environment(index),
            ports=world.ports(index),
        )

    return Plan(
        shape=shape,
        service=headless_service(job),
        config=config_map(job, {} if by_command else {"strategy.sh": script("torch.sh")}),
        recipe=recipe,
    )


@dataclass(frozen=True)
class _World:
    """The ranks of an attempt."""

    job: Job
    by_command: bool
    """Whether the command starts the ranks of a pod."""

    @property
    def workers(self) -> int:
        return self.job.spec.worker.replicas

    @cached_property
    def procs(self) -> int:
        """Ranks in each pod."""
        return self.job.procs

    @property
    def may_call_torchrun(self) -> bool:
        """Whether a torchrun in the program can start the ranks of a pod."""
        return self.by_command or self.procs == 1

    def expanded_by_launch(self, *, rounds: bool) -> frozenset[str]:
        """Return the variables whose values dtj-launch knows, and not the kubelet: those that differ by rank, and in
        a job whose ranks are restarted in place those that differ by round.
        """
        by_rank = contract.PER_RANK_VARIABLES if self.procs > 1 and not self.by_command else ()
        return frozenset((*by_rank, *(contract.PER_ROUND_VARIABLES if rounds else ())))

    @property
    def port(self) -> int:
        """MASTER_PORT. Another process may hold the port: the next attempt takes another one."""
        return _FIRST_PORT + self.job.attempt % _PORTS

    @cached_property
    def master(self) -> str:
        """Name of the pod with rank 0."""
        return pod_name(self.job.name, WORKER, 0)

    def environment(self, index: int) -> dict[str, Value]:
        """Return the variables of one worker's pod."""
        ranks = self.workers * self.procs
        env: dict[str, Value] = {
            contract.ENV_WORLD_SIZE: str(ranks),
            contract.ENV_SLOTS_PER_WORKER: str(self.procs),
            "MASTER_ADDR": Host(self.master),
            "MASTER_PORT": Port(self.master, self.port),
            "WORLD_SIZE": str(ranks),
            "GROUP_RANK": str(index),
        }
        if self.may_call_torchrun:
            env |= self._for_torchrun(index)
        if not self.by_command:
            env |= self._for_ranks(index)
        if self.workers > 1:
            env[contract.ENV_START_BARRIER] = address(self.master, contract.START_BARRIER_PORT)
        return env | self._defaults

    def ports(self, index: int) -> dict[str, int]:
        """Return the ports of one worker's pod."""
        # Keep this port first, as earlier releases did: pods of the same spec stay the same after an upgrade.
        ports = {"progress": contract.PROGRESS_PORT}
        if index == 0:
            ports["master"] = self.port
            if self.workers > 1:
                ports["start-barrier"] = contract.START_BARRIER_PORT
        return ports

    def _for_ranks(self, index: int) -> dict[str, str]:
        """Return the variables that torchrun would set for the first rank of the pod."""
        job, first = self.job, index * self.procs
        size = str(self.workers * self.procs)
        return {
            "RANK": str(first),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": str(self.procs),
            "GROUP_WORLD_SIZE": str(self.workers),
            "ROLE_RANK": str(first),
            "ROLE_WORLD_SIZE": size,
            "TORCHELASTIC_RUN_ID": job.uid,
            "TORCHELASTIC_RESTART_COUNT": str(job.attempt - 1),
            "TORCHELASTIC_MAX_RESTARTS": str(job.run_policy.backoff_limit),
            "TORCHELASTIC_ERROR_FILE": str(contract.ROOT / contract.TORCH_ERROR_FILE.format(rank=first)),
        }

    def _for_torchrun(self, index: int) -> dict[str, Text]:
        """Return the variables that torchrun reads instead of flags, and RANK as in a PyTorchJob: the pod's index."""
        return {
            "RANK": str(index),
            "PET_NNODES": str(self.workers),
            "PET_NPROC_PER_NODE": str(self.procs),
            "PET_NODE_RANK": str(index),
            "PET_MASTER_ADDR": Host(self.master),
            "PET_MASTER_PORT": Port(self.master, self.port),
            "PET_RDZV_BACKEND": "static",
            "PET_RDZV_ENDPOINT": address(self.master, self.port),
            "PET_RDZV_ID": self.job.uid,
            "PET_MAX_RESTARTS": "0",
        }

    @cached_property
    def _defaults(self) -> dict[str, str]:
        """Return defaults for variables that the job's `env` does not set.

        The ranks of a container share its CPU limit. Without a limit, several ranks get one thread each, as with
        torchrun.
        """
        worker = self.job.spec.worker
        defaults = {}
        if self.may_call_torchrun:
            defaults["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = str(_SHUTDOWN_SECONDS)
        if not asks_for_devices(worker):
            defaults[ENV_USE_CPU] = "true"
        limit = limits_of(worker).get("cpu")
        if limit is not None:
            defaults["OMP_NUM_THREADS"] = str(max(1, int(amount(limit)) // self.procs))
        elif self.procs > 1:
            defaults["OMP_NUM_THREADS"] = "1"
        own = {variable.name for variable in self.job.spec.env}
        return {name: value for name, value in defaults.items() if name not in own}


def _left_to_launch(program: Sequence[str], names: Collection[str]) -> list[str]:
    """Escape the references to these variables, so that the kubelet leaves them to dtj-launch."""
    return [
        _REFERENCE.sub(lambda found: f"${found[0]}" if found[1] in names else found[0], word)
        for word in program
    ]
