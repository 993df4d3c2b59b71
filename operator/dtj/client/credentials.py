"""The AWS environment with which a person reads a job's bucket."""

from __future__ import annotations

from dtj.api.errors import NotFound, Unreachable
from dtj.api.spec import ArtifactStore
from dtj.client.artifacts import Artifacts
from dtj.client.resource import DistributedTrainingJob
from dtj.client.store_environment import store_environment
from dtj.cluster.port import ApiError
from dtj.cluster.user_api import UserApi

_CHOSEN = ("AWS_ACCESS_KEY_ID", "AWS_PROFILE")
"""Who sets one of these wants those credentials."""


async def artifacts_of(api: UserApi, job: DistributedTrainingJob, endpoint: str | None = None) -> Artifacts:
    """What a job has in its bucket. endpoint: the store's, where not the job's own. Raises NotFound, Unreachable."""
    if job.spec.artifacts is None or job.artifacts_uri is None:
        raise NotFound(f"{job.name} keeps no artifacts", "spec.artifacts.uri says where to")
    environment = await _environment(api, job, job.spec.artifacts, endpoint=endpoint)
    return Artifacts(job.artifacts_uri, environment)


async def _environment(
    api: UserApi,
    job: DistributedTrainingJob,
    store: ArtifactStore,
    *,
    endpoint: str | None,
) -> dict[str, str]:
    """The variables for the job's store: the user's own, with the job's S3 settings, its endpoint and, where the
    user has chosen no credentials, those of the job's Secret. Raises Unreachable where there are none at all.
    """
    environment = store_environment(job.spec, endpoint)
    if any(environment.get(name) for name in _CHOSEN):
        return environment
    refusal = "the job names no Secret"
    if store.secret_name:
        try:
            secret = await api.secret(job.namespace, store.secret_name)
        except ApiError as error:
            refusal = f"the job's Secret {store.secret_name} can't be read: {' '.join(error.message.split())}"
        else:
            return environment | {key: value for key, value in secret.items() if key.startswith("AWS_")}
    if not _found_elsewhere():
        raise Unreachable(
            f"no credentials for {job.artifacts_uri}: {refusal}",
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
        )
    return environment


def _found_elsewhere() -> bool:
    """Whether the AWS SDK has credentials of a file, a role or the machine."""
    import boto3

    return boto3.session.Session().get_credentials() is not None
