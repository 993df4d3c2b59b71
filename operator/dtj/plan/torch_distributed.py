"""torch.distributed with static ranks: the environment of a worker's pod says its ranks and the address of rank 0.

Where dtj starts the ranks, the variables are those that torchrun gives to a rank (`RANK`, `MASTER_ADDR`, …). Where
the command starts the ranks, the variables are those that torchrun reads instead of its flags (`PET_NNODES`, …). A
pod with one rank has both, so that the program may also be a script that calls torchrun.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from dtj.api.accelerate import ENV_USE_CPU, missing_options
from dtj.api.job import Job, Manifest
from dtj.api.names import host_name
from dtj.api.pod_template import TRAINER_CONTAINER, asks_for_devices, limits_of, program_of
from dtj.api.quantities import amount
from dtj.api.torch_command import ACCELERATE
from dtj.api.torch_distributed import WORKER, StartedBy, procs_per_worker, ranks_start
from dtj.plan.model import Plan, Replica
from dtj.plan.pods import headless_service, replica_pod, replicas, restoring_peers
from dtj.plan.start import START, config_map, script, started
from dtj_trainer import contract

_FIRST_PORT, _PORTS = 29500, 100
_SHUTDOWN_SECONDS = contract.STOP_SECONDS - 2
"""Seconds from the SIGTERM of torchrun's ranks to their SIGKILL; torchrun's own default is 30. Ranks of torchrun live
in sessions of their own: torchrun must end the ranks before dtj-launch kills torchrun."""
_REFERENCE = re.compile(r"\$\$|\$\(([^()]*)\)")


def torch_distributed_plan(job: Job) -> Plan:
    """Return the objects of the job's current attempt. The job must have no faults."""
    worker = job.spec.worker
    start = ranks_start(job.spec)
    by_command = start.by is StartedBy.COMMAND
    workers = replicas(job, WORKER, worker.replicas, job.status.current_attempt)
    names = tuple(replica.name for replica in workers)
    world = _World(job, by_command=by_command)
    program = program_of(job.spec, worker)
    if world.procs > 1 and not by_command:
        program = _for_each_rank(program)
    for launcher in start.launchers:
        if launcher.name == ACCELERATE and launcher.at is not None:
            program[launcher.at : launcher.at] = missing_options(launcher, world.workers, world.procs)

    def pod(replica: Replica) -> Manifest:
        info = contract.PodInfo(
            role=WORKER,
            index=replica.index,
            slots=world.procs,
            part="primary",
            restores=True,
            reads_data=True,
            peers=restoring_peers(job, {WORKER: worker.replicas}),
        )
        extra = {"containers": [_container(world, replica.index)]}
        env = world.environment(replica.index)
        manifest = replica_pod(job, replica, worker, info, command=[*START], env=env, extra=extra)
        started(manifest, program)
        return manifest

    return Plan(
        service=headless_service(job),
        config=config_map(job, {} if by_command else {"strategy.sh": script("torch.sh")}),
        ssh_secret=None,
        stages=(workers,),
        pod=pod,
        decisive=names,
        reporter=names[0],
        serves_progress=frozenset(names),
        port_variables=dict.fromkeys(("MASTER_PORT", "PET_MASTER_PORT"), names[0]),
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
        return procs_per_worker(self.job.spec)

    @property
    def may_call_torchrun(self) -> bool:
        """Whether a torchrun in the program can start the ranks of a pod."""
        return self.by_command or self.procs == 1

    @property
    def port(self) -> int:
        """MASTER_PORT. Another process may hold the port: the next attempt takes another one."""
        return _FIRST_PORT + self.job.status.current_attempt % _PORTS

    def environment(self, index: int) -> dict[str, str]:
        """Return the variables of one worker's pod."""
        master = host_name(self.job.name, self.job.namespace, WORKER, 0)
        ranks = self.workers * self.procs
        env = {
            contract.ENV_WORLD_SIZE: str(ranks),
            contract.ENV_SLOTS_PER_WORKER: str(self.procs),
            "MASTER_ADDR": master,
            "MASTER_PORT": str(self.port),
            "WORLD_SIZE": str(ranks),
            "GROUP_RANK": str(index),
        }
        if self.may_call_torchrun:
            env |= self._for_torchrun(index, master)
        if not self.by_command:
            env |= self._for_ranks(index)
        if self.workers > 1:
            env[contract.ENV_START_BARRIER] = f"{master}:{contract.START_BARRIER_PORT}"
        return env | self._defaults

    def _for_ranks(self, index: int) -> dict[str, str]:
        """Return what torchrun would give to the first rank of the pod."""
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
            "TORCHELASTIC_RESTART_COUNT": str(job.status.current_attempt - 1),
            "TORCHELASTIC_MAX_RESTARTS": str(job.run_policy.backoff_limit),
            "TORCHELASTIC_ERROR_FILE": str(contract.ROOT / contract.TORCH_ERROR_FILE.format(rank=first)),
        }

    def _for_torchrun(self, index: int, master: str) -> dict[str, str]:
        """Return what torchrun reads instead of its flags, and RANK as a PyTorchJob has it: the pod's number."""
        return {
            "RANK": str(index),
            "PET_NNODES": str(self.workers),
            "PET_NPROC_PER_NODE": str(self.procs),
            "PET_NODE_RANK": str(index),
            "PET_MASTER_ADDR": master,
            "PET_MASTER_PORT": str(self.port),
            "PET_RDZV_BACKEND": "static",
            "PET_RDZV_ENDPOINT": f"{master}:{self.port}",
            "PET_RDZV_ID": self.job.uid,
            "PET_MAX_RESTARTS": "0",
        }

    @cached_property
    def _defaults(self) -> dict[str, str]:
        """The variables that the job may set itself, without those that its `env` sets.

        The ranks of a container share its CPU limit. Without a limit, several ranks get one thread each, as torchrun
        has it.
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


def _for_each_rank(program: Sequence[str]) -> list[str]:
    """Escape the references to variables that differ by rank, so that the kubelet leaves them to dtj-launch."""
    return [
        _REFERENCE.sub(
            lambda found: f"${found[0]}" if found[1] in contract.PER_RANK_VARIABLES else found[0], word
        )
        for word in program
    ]


def _container(world: _World, index: int) -> Manifest:
    ports = [{"name": "progress", "containerPort": contract.PROGRESS_PORT}]
    if index == 0:
        ports.append({"name": "master", "containerPort": world.port})
        if world.workers > 1:
            ports.append({"name": "start-barrier", "containerPort": contract.START_BARRIER_PORT})
    return {"name": TRAINER_CONTAINER, "ports": ports}
