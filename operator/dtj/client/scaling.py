"""Validation of a changed number of replicas."""

from __future__ import annotations

from collections.abc import Mapping

from dtj.api.errors import Unusable
from dtj.client.resource import DistributedTrainingJob, InvalidJobError


def check_scaled(job: DistributedTrainingJob, replicas: Mapping[str, int]) -> None:
    """Raise Unusable or InvalidJobError if the job can't have these numbers of replicas."""
    manifest = job.to_manifest()
    roles = manifest["spec"]["replicaSpecs"]
    if not replicas:
        raise Unusable("no role is given", "give the number of replicas by role, e.g. worker=4")
    for role, count in replicas.items():
        if role not in roles:
            raise Unusable(f"{job.name} has no {role}: its roles are {', '.join(roles)}")
        roles[role] = {**roles[role], "replicas": count}
    scaled = DistributedTrainingJob.from_manifest(manifest)
    if job_faults := scaled.faults():
        raise InvalidJobError(job.name, job_faults)
