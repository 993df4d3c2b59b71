"""The rules of strategy Horovod, and its block of the spec.

Workers run the ranks, and a launcher starts the ranks by mpirun.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from dtj.api.base import ApiModel, Number
from dtj.api.mpijob import VOLUMES
from dtj.api.names import host_name
from dtj.api.strategy import Role, ScriptMark, Starter, StrategyRules, count_of_digits

if TYPE_CHECKING:
    from dtj.api.job import Job
    from dtj.api.spec import JobSpec

LAUNCHER = "launcher"
WORKER = "worker"
SSH_VOLUME = "dtj-ssh"


class HorovodLauncher(StrEnum):
    """Who makes the launcher of a Horovod job."""

    NATIVE = "Native"
    MPI_JOB = "MPIJob"


class Horovod(ApiModel):
    """What only strategy Horovod has."""

    launcher: HorovodLauncher = HorovodLauncher.NATIVE
    """Native: the operator makes the pods itself. MPIJob: it makes an MPIJob of kubeflow.org/v2beta1, and Kubeflow's
    mpi-operator, which has to be installed, makes the pods. Immutable."""
    slots_per_worker: Annotated[int, Field(ge=1, le=1024), Number] | None = None
    """Ranks in each worker pod. Default: the gpus of a worker, else 1."""


def slots_per_worker(spec: JobSpec) -> int:
    """Ranks in each worker pod."""
    return spec.horovod_options.slots_per_worker or spec.worker.gpus or 1


def hostfile_bytes(job: Job) -> int:
    """Bytes of the job's hostfile."""
    worker = job.spec.replica_specs.worker
    if worker is None:
        return 0
    host = host_name(job.name, job.namespace, WORKER, 0)
    line = len(f"{host} slots={slots_per_worker(job.spec)}\n") - 1
    return worker.replicas * line + count_of_digits(worker.replicas)


def _ranks(spec: JobSpec, index: int) -> range:
    slots = slots_per_worker(spec)
    return range(index * slots, (index + 1) * slots)


def _volumes(spec: JobSpec) -> tuple[str, ...]:
    return VOLUMES if spec.by_mpi_operator else (SSH_VOLUME,)


HOROVOD = StrategyRules(
    name="Horovod",
    description="ranks started by mpirun over ssh, gradients averaged by allreduce",
    roles={
        LAUNCHER: Role(
            implied=True,
            single=True,
            without_gpus="the launcher trains nothing; give workers gpus",
            created_first=False,
            decides=True,
            collects_ranks=True,
            resources={"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}},
        ),
        WORKER: Role(required=True, runs_program=False, reports=True, option="workers", ranks=_ranks),
    },
    starter=Starter(image="dtj-trainer-horovod", module="horovod_image_classification"),
    block="horovod",
    volumes=_volumes,
    peer_list_bytes=hostfile_bytes,
    script_marks=(ScriptMark(name="horovod"),),
    executables=("mpirun", "horovodrun"),
    shares_gpus=True,
)
