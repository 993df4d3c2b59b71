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
"""If the user sets one of these variables, the client uses the credentials of the user."""


async def artifacts_of(api: UserApi, job: DistributedTrainingJob, endpoint: str | None = None) -> Artifacts:
    """Open the artifacts of a job.

    endpoint: URL of the store; by default the endpoint of the job.
    Raises NotFound if the job has no bucket, and Unreachable if no credentials exist.
    """
    if job.spec.artifacts is None or job.artifacts_uri is None:
        raise NotFound(f"{job.name} keeps no artifacts", "set spec.artifacts.uri of the job")
    environment = await _environment(api, job, job.spec.artifacts, endpoint=endpoint)
    return Artifacts(job.artifacts_uri, environment)


async def _environment(
    api: UserApi,
    job: DistributedTrainingJob,
    store: ArtifactStore,
    *,
    endpoint: str | None,
) -> dict[str, str]:
    """Return the AWS variables for the job's store.

    The variables of the user take precedence over the S3 settings and the endpoint of the job. If the user chose no
    credentials, the credentials of the job's Secret are used. Raises Unreachable if no credentials exist.
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
    if not _sdk_has_credentials():
        raise Unreachable(
            f"no credentials for {job.artifacts_uri}: {refusal}",
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
        )
    return environment


def _sdk_has_credentials() -> bool:
    """Return whether the AWS SDK finds credentials in a file, a role or the metadata of the machine."""
    import boto3

    return boto3.session.Session().get_credentials() is not None
