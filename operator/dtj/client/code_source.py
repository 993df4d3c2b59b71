"""Finds the archive of a job: in its ConfigMap while the ConfigMap exists, else in the bucket."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from hashlib import sha256
from http import HTTPStatus
from typing import TYPE_CHECKING

from dtj.api.errors import NotFound
from dtj.client.artifacts import Artifacts
from dtj.client.code_files import code_of
from dtj.client.credentials import artifacts_of
from dtj.client.store_environment import user_environment
from dtj.cluster.interface import ApiError
from dtj_trainer import contract

if TYPE_CHECKING:
    from dtj.api.spec import Code
    from dtj.client.resource import DistributedTrainingJob
    from dtj.cluster.user_api import UserApi


async def find_code(api: UserApi, job: DistributedTrainingJob, endpoint: str | None) -> bytes | Artifacts:
    """Return the archive in the ConfigMap of a job, or else the bucket that has a copy of the archive.

    endpoint: URL of the store; see `artifacts_of`. Raises NotFound if the archive is nowhere, and ApiError.
    """
    code = code_of(job)
    archive = await _in_cluster(api, job, code, code.config_map) if code.config_map else None
    if archive is not None:
        return archive
    if job.spec.artifacts is not None:
        return await artifacts_of(api, job, endpoint)
    if code.uri:
        return Artifacts(code.uri.rpartition("/")[0], await asyncio.to_thread(user_environment, endpoint))
    raise NotFound(
        f"the ConfigMap {code.config_map} no longer has the code of {job.name}, and the job keeps no artifacts",
        "a job with spec.artifacts keeps its code in the bucket",
    )


async def _in_cluster(api: UserApi, job: DistributedTrainingJob, code: Code, name: str) -> bytes | None:
    """Return the archive in the ConfigMap; None if the ConfigMap is missing, changed, or forbidden to the user."""
    try:
        found = await api.config_map(job.namespace, name)
    except ApiError as error:
        if error.status != HTTPStatus.FORBIDDEN or job.spec.artifacts is None:
            raise
        return None
    text = ((found or {}).get("binaryData") or {}).get(contract.CODE_FILE)
    archive = b64decode(text) if text else b""
    return archive if f"sha256:{sha256(archive).hexdigest()}" == code.digest else None
