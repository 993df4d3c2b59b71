"""Read the data for the checks from the cluster, and run the test pod."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from datetime import UTC, datetime
from typing import TypeVar

from dtj.api.identity import API_VERSION
from dtj.api.job import Job, Manifest
from dtj.cluster.inspect import Inspector
from dtj.cluster.port import ApiError
from dtj.doctor import probe
from dtj.doctor.findings import (
    CREATE_JOBS,
    PERMISSIONS,
    ClusterFindings,
    JobFindings,
    SecretKeys,
    Taken,
    Unread,
)
from dtj.doctor.left_code import left_over
from dtj.doctor.webhook import faulty_job

_POLL_SECONDS = 0.5
Value = TypeVar("Value")


async def look_at_cluster(api: Inspector, namespace: str) -> ClusterFindings:
    """Read the installation of dtj. Raises ApiError when the API server does not answer."""
    version = await api.version()
    served, crd, operators = await asyncio.gather(
        api.serves(API_VERSION), _read(api.crd()), _read(api.operators())
    )
    allowed = await asyncio.gather(*(api.allows(namespace, p.verb, p.resource, p.group) for p in PERMISSIONS))
    may_create = dict(zip(PERMISSIONS, allowed, strict=True))[CREATE_JOBS]
    return ClusterFindings(
        server=api.host,
        version=version,
        namespace=namespace,
        served=served,
        crd=crd,
        operators=operators,
        allowed=dict(zip(PERMISSIONS, allowed, strict=True)),
        faulty_job=await _judged(api, faulty_job(namespace)) if served and may_create else None,
        left_code=await _read(_left_code(api, namespace)) if served else (),
    )


async def look_for_job(api: Inspector, job: Job) -> JobFindings:
    """Read the data on which the job depends: nodes, pods, quotas and the Secret."""
    nodes, pods, quotas, secret = await asyncio.gather(
        _read(api.nodes()),
        _read(api.scheduled_pods()),
        _read(api.quotas(job.namespace)),
        _read(_secret(api, job)),
    )
    return JobFindings(nodes=nodes, pods=pods, quotas=quotas, secret=secret)


async def run_pod(api: Inspector, pod: Manifest) -> Manifest:
    """Run a pod until it ends or until it is stuck for STUCK_SECONDS, but no longer than SECONDS.

    Return the last state of the pod. The pod is always deleted. Raises ApiError.
    """
    now = asyncio.get_running_loop().time
    try:
        current = await api.create(pod)
        created = not_stuck = now()
        while not (
            probe.ended(current)
            or now() - created >= probe.SECONDS
            or now() - not_stuck >= probe.STUCK_SECONDS
        ):
            await asyncio.sleep(_POLL_SECONDS)
            current = await api.get(pod) or current
            if not probe.stuck(current):
                not_stuck = now()
        return current
    finally:
        await api.remove_pod(pod)


async def _judged(api: Inspector, manifest: Manifest) -> Taken | str:
    try:
        await api.would_create(manifest)
    except ApiError as error:
        if error.status == 0:
            raise
        return error.message or error.reason
    return Taken()


async def _left_code(api: Inspector, namespace: str) -> list[str]:
    config_maps = await api.config_maps_with_code(namespace)
    if all(each["metadata"].get("ownerReferences") for each in config_maps):
        return []
    jobs, _ = await api.list_jobs(namespace)
    return left_over(config_maps, jobs, datetime.now(UTC))


async def _secret(api: Inspector, job: Job) -> SecretKeys | None:
    artifacts = job.spec.artifacts
    if artifacts is None or artifacts.secret_name is None:
        return None
    try:
        data = await api.secret(job.namespace, artifacts.secret_name)
    except ApiError as error:
        if error.status == 404:
            return None
        raise
    padded = frozenset(key for key, value in data.items() if value != value.strip())
    return SecretKeys(frozenset(data), padded)


async def _read(request: Awaitable[Value]) -> Value | Unread:
    """Return the answer, or the reason why the API server refuses the user. Raises ApiError without an answer."""
    try:
        return await request
    except ApiError as error:
        if error.status == 0:
            raise
        return Unread(error.message or error.reason)
