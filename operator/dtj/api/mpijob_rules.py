"""Faults of a job that mpi-operator carries out: mpi-operator reports them only in an event of its MPIJob."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from dtj.api.job import Fault, Job
from dtj.api.mpijob import MOUNTS, VOLUMES
from dtj.api.pod_template import TRAINER_CONTAINER, objects_of, pod_spec
from dtj.api.scheduling import Gang
from dtj.api.spec import ReplicaSpec


def mpijob_faults(job: Job) -> Iterator[Fault]:
    """Yield what mpi-operator refuses or makes no pods of; nothing for a job without mpi-operator."""
    if not job.spec.by_mpi_operator:
        return
    gang = job.spec.run_policy.scheduling_policy.gang
    if gang is not Gang.NONE:
        yield Fault(
            "spec.runPolicy.schedulingPolicy.gang",
            f"must be None with horovod.launcher: MPIJob, got {gang}: mpi-operator makes gangs (--gang-scheduling), "
            "and Kueue queues the MPIJob by the job's label kueue.x-k8s.io/queue-name",
        )
    for role, replica in job.spec.replica_specs.given().items():
        yield from _template(f"spec.replicaSpecs.{role}.template.spec", replica)


def _template(path: str, replica: ReplicaSpec) -> Iterator[Fault]:
    spec = pod_spec(replica)
    for index, volume in enumerate(objects_of(spec.get("volumes"))):
        if volume.get("name") in VOLUMES:
            yield Fault(
                f"{path}.volumes[{index}].name",
                f"{volume['name']} belongs to mpi-operator (horovod.launcher: MPIJob); use another name",
            )
    for container in objects_of(spec.get("containers")):
        for mount in objects_of(container.get("volumeMounts")):
            mount_path = posixpath.normpath(str(mount.get("mountPath", "")))
            if container.get("name") == TRAINER_CONTAINER and mount_path in MOUNTS:
                yield Fault(
                    f"{path}.containers[{TRAINER_CONTAINER}].volumeMounts",
                    f"{mount_path} belongs to mpi-operator (horovod.launcher: MPIJob); use another path",
                )
