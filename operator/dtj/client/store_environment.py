"""The AWS variables with which a user reads the store of a job.

This module does not import the Kubernetes client, because local commands use this module too.
"""

from __future__ import annotations

import os

from dtj.api.spec import JobSpec
from dtj_trainer import contract

_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")


def store_environment(spec: JobSpec, endpoint: str | None) -> dict[str, str]:
    """Return the AWS variables of the user, with the S3 settings and the endpoint of the job as defaults.

    Settings of the job from a Secret or a ConfigMap are left out. endpoint: URL of the store for this user.
    """
    settings = {v.name: v.value for v in spec.env if v.name in contract.S3_SETTINGS and v.value is not None}
    own = {k: v for k, v in os.environ.items() if k.startswith("AWS_") or k in contract.S3_SETTINGS}
    environment = settings | own
    if endpoint is None and spec.artifacts and not any(environment.get(name) for name in _ENDPOINTS):
        endpoint = spec.artifacts.endpoint
    return environment | ({"AWS_ENDPOINT_URL_S3": endpoint} if endpoint else {})
