"""The rules of strategy Horovod.

Workers run the ranks, and a launcher starts the ranks by mpirun.
"""

from __future__ import annotations

from collections.abc import Mapping

from dtj.api.pod_template import SSH_VOLUME, own_program
from dtj.api.spec import JobSpec, ReplicaSpec
from dtj.api.strategy import Hosts, Role, ScriptMark, Starter, StrategyRules, digits_in_indexes

LAUNCHER = "launcher"
WORKER = "worker"


def slots_per_worker(spec: JobSpec) -> int:
    """Ranks in each worker pod."""
    given, worker = spec.horovod, spec.replica_specs.worker
    return (given and given.slots_per_worker) or (worker and worker.gpus) or 1


def hostfile_bytes(hosts: Hosts, pods: Mapping[str, int], procs: int) -> int:
    """Bytes of a job's hostfile."""
    workers = pods.get(WORKER, 0)
    line = len(f"{hosts.get(WORKER)} slots={procs}\n") - 1
    return workers * line + digits_in_indexes(workers)


def _ranks(spec: JobSpec, index: int) -> range:
    slots = slots_per_worker(spec)
    return range(index * slots, (index + 1) * slots)


def _holds_rounds(given: Mapping[str, ReplicaSpec]) -> bool:
    """Whether dtj-launch, which restarts ranks in place, runs in all pods. A template with a command of its own
    replaces dtj-launch in the pods of its role.
    """
    with_template = (replica for replica in given.values() if replica.replicas and replica.template)
    return not any(own_program(replica)[0] for replica in with_template)


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
    holds_rounds=_holds_rounds,
    volumes=(SSH_VOLUME,),
    peer_list_bytes=hostfile_bytes,
    script_marks=(ScriptMark(name="horovod"),),
    executables=("mpirun", "horovodrun"),
    shares_gpus=True,
)
