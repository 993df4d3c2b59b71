"""The environment in which a person reads a job's store. Without the Kubernetes client: local commands use it too."""

from __future__ import annotations

import os

from dtj.api.spec import JobSpec
from dtj_trainer import contract

_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")


def store_environment(spec: JobSpec, endpoint: str | None) -> dict[str, str]:
    """The user's own AWS variables, with the S3 settings of the job and its endpoint where the user gives none.

    Settings of the job that come from a Secret or a ConfigMap are left out. endpoint: URL of the store for this user.
    """
    settings = {v.name: v.value for v in spec.env if v.name in contract.S3_SETTINGS and v.value is not None}
    own = {k: v for k, v in os.environ.items() if k.startswith("AWS_") or k in contract.S3_SETTINGS}
    environment = settings | own
    if endpoint is None and spec.artifacts and not any(environment.get(name) for name in _ENDPOINTS):
        endpoint = spec.artifacts.endpoint
    return environment | ({"AWS_ENDPOINT_URL_S3": endpoint} if endpoint else {})
