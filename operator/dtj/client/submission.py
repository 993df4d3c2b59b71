"""Brings the archive of `spec.code` to the cluster, before the job that runs it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from dtj.api.errors import DtjError, Unreachable, Unusable
from dtj.api.identity import API_VERSION, KIND, LABEL_CODE
from dtj.api.job import Manifest
from dtj.api.spec import config_maps_of_code
from dtj.client.artifacts import explained
from dtj.client.changing import uninterrupted
from dtj.client.credentials import environment_of
from dtj.client.resource import DistributedTrainingJob
from dtj.cluster.interface import ApiError
from dtj.cluster.user_api import UserApi
from dtj_trainer import contract

log = logging.getLogger(__name__)

RULE = 'apiGroups: [""], resources: [configmaps], verbs: [get, create, patch, delete]'
"""The RBAC rule that a user needs to submit code in a ConfigMap."""


async def create(
    api: UserApi,
    job: DistributedTrainingJob,
    manifest: Manifest,
    archive: Path | None,
    packages: Path | None = None,
    endpoint: str | None = None,
) -> Manifest:
    """Send the archives that a job names, then create the job. Returns the job as the API server stores it.

    A ConfigMap is made before the job, which becomes its owner. If the job is refused, the ConfigMap is deleted.
    archive, packages: the archives of `spec.code` and of its packages; None: there is nothing to send.
    endpoint: URL of the store for this machine; see `dtj.client.credentials.environment_of`.
    Raises ApiError for the job, and DtjError for its archive.
    """
    code = job.spec.code
    if archive is None or code is None:
        created = await api.create(manifest)
        for name in config_maps_of_code(manifest):
            await uninterrupted(_share(api, job.namespace, name, created))
        return created
    names, files = set(), {}
    for path, of, file in (
        (archive, code, contract.CODE_FILE),
        (packages, code.packages, contract.PACKAGES_FILE),
    ):
        if path is None or of is None:
            continue
        if of.config_map is not None:
            names.add(of.config_map)
            files[file] = path
        elif of.uri is not None:
            await _upload(api, job, of.uri, path, endpoint)
    if not files:
        return await api.create(manifest)
    if len(names) > 1:
        raise Unusable("spec.code and its packages name two ConfigMaps", "give both the same ConfigMap")
    (name,) = names
    # Check for a job of this name first: the user would otherwise get an error about the ConfigMap.
    if await api.get(manifest) is not None:
        raise ApiError(409, "AlreadyExists", f"{job.name} exists")
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "namespace": job.namespace,
            # Do not set the label of the operator's objects: the operator would cache the archive.
            "labels": {LABEL_CODE: job.name},
        },
        "immutable": True,
        "binaryData": {
            file: b64encode(await asyncio.to_thread(path.read_bytes)).decode() for file, path in files.items()
        },
    }
    async with _taken_back(api, config, manifest):
        with _told(config):
            await api.create(config)
        created = await api.create(manifest)
    await uninterrupted(_own(api, config, created))
    return created


@contextlib.asynccontextmanager
async def _taken_back(api: UserApi, config: Manifest, job: Manifest) -> AsyncIterator[None]:
    """Delete the ConfigMap if the block is interrupted or fails before the job exists."""
    try:
        yield
    except BaseException as error:
        refused = isinstance(error, ApiError) and 400 <= error.status < 500
        unmade = isinstance(error, DtjError)
        if not unmade:
            await uninterrupted(_settle(api, config, job, refused=refused))
        raise


async def _settle(api: UserApi, config: Manifest, job: Manifest, *, refused: bool) -> None:
    """Delete the ConfigMap, unless the job exists: the API server may have created the job without an answer."""
    metadata = config["metadata"]
    try:
        there = None if refused else await api.get(job)
        if there is not None and metadata["name"] in config_maps_of_code(there):
            await _own(api, config, there)
            return
        if (made := await api.get(config)) is not None:
            await api.delete(config, made["metadata"]["uid"])
    except ApiError as error:
        log.warning(
            "the ConfigMap %s may remain without a job: %s; `kubectl -n %s delete configmap %s` deletes it",
            metadata["name"], error.message, metadata["namespace"], metadata["name"],
        )  # fmt: skip


async def _share(api: UserApi, namespace: str, name: str, job: Manifest) -> None:
    """Make the job another owner of an earlier job's ConfigMap. The code would otherwise be deleted with that job.

    A ConfigMap that dtj did not make is not changed.
    """
    try:
        config = await api.config_map(namespace, name)
    except ApiError as error:
        log.debug("the ConfigMap %s is not read: %s", name, error)
        return
    if config is None or LABEL_CODE not in (config["metadata"].get("labels") or {}):
        return
    try:
        await api.add_owner(config, _owner(job))
    except ApiError as error:
        log.warning(
            "the ConfigMap %s, which has the code of %s, is deleted together with an earlier job: "
            "%s could not be made another owner of the ConfigMap: %s",
            name, job["metadata"]["name"], job["metadata"]["name"], error.message,
        )  # fmt: skip


def _owner(job: Manifest) -> Manifest:
    metadata = job["metadata"]
    return {"apiVersion": API_VERSION, "kind": KIND, "name": metadata["name"], "uid": metadata["uid"]}


async def _own(api: UserApi, config: Manifest, job: Manifest) -> None:
    """Make the job the owner of the ConfigMap: Kubernetes then deletes the ConfigMap with the job."""
    try:
        await api.add_owner(config, _owner(job))
    except ApiError as error:
        log.warning(
            "the ConfigMap %s stays when the job is deleted: its owner could not be set: %s",
            config["metadata"]["name"], error.message,
        )  # fmt: skip


@contextlib.contextmanager
def _told(config: Manifest) -> Iterator[None]:
    """Convert an ApiError about the ConfigMap into a DtjError with a remedy, such as the missing permission."""
    name, namespace = config["metadata"]["name"], config["metadata"]["namespace"]
    try:
        yield
    except ApiError as error:
        message = " ".join(error.message.split())
        if error.status == 403:
            raise Unreachable(
                f"the code goes into a ConfigMap, and the cluster does not allow it: {message}",
                f"ask for a Role in namespace {namespace} with the rule {{{RULE}}}",
            ) from error
        if error.status == 409:
            raise DtjError(
                f"there is a ConfigMap {name} in namespace {namespace} already",
                "try again: dtj then chooses another random name",
            ) from error
        raise


async def _upload(
    api: UserApi, job: DistributedTrainingJob, uri: str, archive: Path, endpoint: str | None
) -> None:
    """Put the archive into the bucket, unless the bucket already has the archive. Raises DtjError."""
    from dtj_trainer.artifacts.store import open_store

    if (store := job.spec.artifacts) is None:
        raise Unusable(
            f"the archive has to be uploaded to {uri}, but the job has no spec.artifacts with the store",
            "set spec.artifacts",
        )
    try:
        environment = await environment_of(api, job, store, endpoint)
    except Unreachable as error:
        raise Unreachable(
            f"the archive is too large for a ConfigMap and goes to {uri}: {error.message}",
            error.remedy,
        ) from None
    folder, _, key = uri.rpartition("/")

    def put_archive() -> None:
        with explained():
            bucket = open_store(folder, environment)
            size = archive.stat().st_size
            if not any(there.key == key and there.size == size for there in bucket.named(key)):
                bucket.put_file(key, archive)

    await asyncio.to_thread(put_archive)
