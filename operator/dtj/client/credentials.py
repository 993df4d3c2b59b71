"""The AWS environment with which a person reads a job's bucket."""

from __future__ import annotations

import asyncio

from dtj.api.errors import NotFound, Unreachable
from dtj.api.spec import ArtifactStore
from dtj.client.artifacts import Artifacts
from dtj.client.resource import DistributedTrainingJob
from dtj.client.store_environment import endpoint_of, job_settings, secret_environment, user_environment
from dtj.cluster.interface import ApiError
from dtj.cluster.user_api import UserApi

_CHOSEN = ("AWS_ACCESS_KEY_ID", "AWS_PROFILE")
"""If the user sets one of these variables, the client uses the credentials of the user."""


async def artifacts_of(api: UserApi, job: DistributedTrainingJob, endpoint: str | None = None) -> Artifacts:
    """Open the artifacts of a job.

    endpoint: URL of the store; by default the endpoint that the user named, then the endpoint of the job.
    Raises NotFound if the job has no bucket, and Unreachable if no credentials exist that may go to the endpoint.
    """
    if job.spec.artifacts is None or job.artifacts_uri is None:
        raise NotFound(f"{job.name} keeps no artifacts", "set spec.artifacts.uri of the job")
    return Artifacts(job.artifacts_uri, await environment_of(api, job, job.spec.artifacts, endpoint))


async def environment_of(
    api: UserApi, job: DistributedTrainingJob, store: ArtifactStore, endpoint: str | None
) -> dict[str, str]:
    """Return the AWS variables for the job's store.

    The user's own credentials are used if the user chose some, and if the user named the endpoint or the store is
    AWS S3. Else the credentials of the job's Secret are used. `dtj.client.store_environment` has the rule.
    Raises Unreachable if no credentials exist that may go to the endpoint.
    """
    user = await asyncio.to_thread(user_environment, endpoint)
    own_may_go_there = bool(endpoint_of(user)) or not store.endpoint
    if own_may_go_there and any(user.get(name) for name in _CHOSEN):
        return job_settings(job.spec) | user
    refusal = "the job names no Secret"
    if store.secret_name:
        try:
            secret = await api.secret(job.namespace, store.secret_name)
        except ApiError as error:
            refusal = f"the job's Secret {store.secret_name} can't be read: {' '.join(error.message.split())}"
        else:
            found = await asyncio.to_thread(secret_environment, job.spec, secret, user)
            if found is not None:
                return found
            missing = [key for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY") if not secret.get(key)]
            refusal = f"the job's Secret {store.secret_name} has no {' and no '.join(missing)}"
    if not own_may_go_there:
        raise Unreachable(
            f"no credentials for {job.artifacts_uri or store.uri} at {store.endpoint}: {refusal}, and your own "
            "credentials go only to an endpoint that you name",
            f"set AWS_ENDPOINT_URL_S3, to {store.endpoint} if you trust it with your credentials",
        )
    if not _sdk_has_credentials():
        raise Unreachable(
            f"no credentials for {job.artifacts_uri or store.uri}: {refusal}",
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
        )
    return job_settings(job.spec) | user


def _sdk_has_credentials() -> bool:
    """Return whether the AWS SDK finds credentials in a file, a role or the metadata of the machine."""
    import boto3

    return boto3.session.Session().get_credentials() is not None
