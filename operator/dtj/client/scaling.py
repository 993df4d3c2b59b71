"""Changed numbers of replicas."""

from __future__ import annotations

from collections.abc import Mapping

from dtj.api.errors import DtjError, Unusable
from dtj.api.job import Manifest
from dtj.client.resource import DistributedTrainingJob, InvalidJobError


def scaled(job: DistributedTrainingJob, replicas: Mapping[str, int]) -> Manifest:
    """Return the change of `replicaSpecs` that gives a job these numbers of replicas.

    Raises DtjError, Unusable or InvalidJobError if the job can't have them.
    """
    if job.status.finished:
        raise DtjError(f"{job.name} is {job.status.phase}: the replicas of a finished job can't change")
    manifest = job.to_manifest()
    roles = manifest["spec"]["replicaSpecs"]
    if not replicas:
        raise Unusable("no role is given", "give the number of replicas by role, e.g. worker=4")
    for role, count in replicas.items():
        if role not in roles:
            raise Unusable(f"{job.name} has no {role}: its roles are {', '.join(roles)}")
        roles[role] = {**roles[role], "replicas": count}
    if job_faults := DistributedTrainingJob.from_manifest(manifest).faults():
        raise InvalidJobError(job.name, job_faults)
    return {role: {"replicas": count} for role, count in replicas.items()}
