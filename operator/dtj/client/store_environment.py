"""The AWS variables with which a user reads a store, and the endpoints that may see the user's own credentials.

Rule: the user's own credentials go only to AWS and to an endpoint that the user named: by an option, a variable, or
the AWS configuration file. The author of a job named the endpoint of the job. Such an endpoint is used with the
credentials of the job's Secret alone, and never if it is a link-local address.

This module does not import the Kubernetes client, because local commands use this module too.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Mapping
from urllib.parse import urlsplit

from dtj.api.errors import Unreachable, Unusable
from dtj.api.spec import JobSpec
from dtj_trainer import contract

S3_ENDPOINT = "AWS_ENDPOINT_URL_S3"
_ENDPOINTS = (S3_ENDPOINT, "AWS_ENDPOINT_URL")
_OWN_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_SECURITY_TOKEN",
)
_METADATA_SERVICES = frozenset({ipaddress.ip_address("fd00:ec2::254")})
"""Addresses of metadata services that are not link-local."""


def user_environment(endpoint: str | None = None) -> dict[str, str]:
    """Return the AWS variables of the user, with the endpoint that the user named.

    endpoint: the URL of an option; by default that of a variable, then that of the AWS configuration file. Without
    any, the store is AWS S3. Raises Unusable if the AWS configuration can't be read.
    """
    own = {k: v for k, v in os.environ.items() if k.startswith("AWS_") or k in contract.S3_SETTINGS}
    named = endpoint or endpoint_of(own) or _configured_endpoint()
    return own | ({S3_ENDPOINT: named} if named else {})


def store_environment(spec: JobSpec, endpoint: str | None) -> dict[str, str]:
    """Return the AWS variables of the user, with the S3 settings and the endpoint of a job file as defaults.

    Only for a job file of this machine: who runs the file named its endpoint. Settings of the job from a Secret or a
    ConfigMap are left out. endpoint: URL of the store for this user.
    """
    environment = job_settings(spec) | user_environment(endpoint)
    of_the_file = spec.artifacts.endpoint if spec.artifacts else None
    if of_the_file and not endpoint_of(environment):
        environment[S3_ENDPOINT] = of_the_file
    return environment


def secret_environment(
    spec: JobSpec, secret: Mapping[str, str], user: Mapping[str, str]
) -> dict[str, str] | None:
    """Return the AWS variables with the credentials of a job's Secret; None if the Secret has no key.

    user: the result of `user_environment`. The endpoint that the user named takes precedence over those of the job
    and of the Secret. An endpoint of the job gets nothing secret of the user.
    Raises Unreachable if the endpoint is link-local.
    """
    theirs = {key: value for key, value in secret.items() if key.startswith("AWS_")}
    # Use the Secret only if it has both keys: otherwise, the AWS SDK would send the user's own credentials.
    if not (theirs.get("AWS_ACCESS_KEY_ID") and theirs.get("AWS_SECRET_ACCESS_KEY")):
        return None
    rest = {key: value for key, value in user.items() if key not in _OWN_CREDENTIALS}
    named = endpoint_of(user)
    of_the_job = (spec.artifacts.endpoint if spec.artifacts else None) or endpoint_of(theirs)
    if not named and of_the_job:
        refuse_link_local(of_the_job)
        rest.pop(contract.ENV_S3_SSE_CUSTOMER_KEY, None)
    environment = job_settings(spec) | rest | theirs
    for variable in _ENDPOINTS:
        environment.pop(variable, None)
    where = named or of_the_job
    return environment | ({S3_ENDPOINT: where} if where else {})


def job_settings(spec: JobSpec) -> dict[str, str]:
    """Return the S3 settings of a job, such as the encryption of objects."""
    return {v.name: v.value for v in spec.env if v.name in contract.S3_SETTINGS and v.value is not None}


def endpoint_of(environment: Mapping[str, str]) -> str | None:
    """Return the endpoint of AWS variables, or None for AWS S3."""
    return next((environment[name] for name in _ENDPOINTS if environment.get(name)), None)


def refuse_link_local(endpoint: str) -> None:
    """Raise Unreachable if an endpoint resolves to a link-local address, such as that of a metadata service."""
    try:
        host, port = urlsplit(endpoint).hostname or "", urlsplit(endpoint).port
    except ValueError as error:
        raise Unreachable(f"the job's endpoint {endpoint} is not a URL: {error}") from None
    try:
        found = {str(address[4][0]) for address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError):
        return  # The host name does not resolve. The later request fails with a message about the host.
    for address in found:
        if _is_link_local(address):
            raise Unreachable(
                f"the job's endpoint {endpoint} resolves to {address}, a link-local address, which no store has",
                "set AWS_ENDPOINT_URL_S3 to the URL of the store for this machine",
            )


def _is_link_local(text: str) -> bool:
    address = ipaddress.ip_address(text.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_link_local or address in _METADATA_SERVICES


def _configured_endpoint() -> str | None:
    """Return the endpoint for S3 in the user's AWS configuration file."""
    # Import here: the import of botocore takes 0.1 s, which only callers that use a store should spend.
    from botocore.configprovider import ConfiguredEndpointProvider
    from botocore.exceptions import BotoCoreError
    from botocore.session import Session

    session = Session()
    try:
        if session.get_config_variable("ignore_configured_endpoint_urls"):
            return None
        provider = ConfiguredEndpointProvider(session.full_config, session.get_scoped_config(), "s3", {})
        found = provider.provide()
    except BotoCoreError as error:
        raise Unusable(f"the AWS configuration can't be used: {error}") from None
    return str(found) if found else None
