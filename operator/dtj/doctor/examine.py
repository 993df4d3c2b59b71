"""Checks a cluster: reads the data for the checks, runs the test pods, and returns the results of all checks.

`dtj doctor` calls `examine`. Only this module of the package sends requests; the other modules evaluate the answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from datetime import UTC, datetime
from typing import TypeVar

from dtj.api.errors import DtjError
from dtj.api.identity import API_VERSION
from dtj.api.job import Job, Manifest
from dtj.api.mpijob import MPIJOB_API_VERSION, MPIJOB_PLURAL
from dtj.client.failures import explanation
from dtj.cluster.inspect import Inspector
from dtj.cluster.interface import ApiError
from dtj.cluster.user_api import connect
from dtj.doctor import probe
from dtj.doctor.capacity import node_checks, quota_checks
from dtj.doctor.findings import (
    CREATE_JOBS,
    PERMISSIONS,
    Check,
    ClusterFindings,
    JobFindings,
    SecretKeys,
    Taken,
    Unread,
    Verdict,
    failed,
    ok,
    warning,
)
from dtj.doctor.installation import (
    faulty_job,
    installation_checks,
    left_code_checks,
    left_over,
    python_checks,
    webhook_checks,
)
from dtj.doctor.probe import (
    RECORD_CHECK,
    pod_checks,
    probe_pod,
    record_check,
    record_image,
    record_probe,
    secret_checks,
)
from dtj.plan.job import plan_job
from dtj_trainer.contract.distribution import former

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
    """Return the answer, or Unread with the reason if the user has no permission. Raises ApiError otherwise."""
    try:
        return await request
    except ApiError as error:
        if error.status == 0:
            raise
        return Unread(error.message or error.reason)


async def examine(
    job: Job | None, *, namespace: str | None = None, context: str | None = None, with_pod: bool = True
) -> list[Check]:
    """Check this Python and the cluster, and whether the job could run, if a job is given.

    A cluster that does not answer is a failed check.

    namespace: by default the namespace of the context. context: a context of the kubeconfig, by default the current
    context. with_pod: test DNS and S3 in a pod with the job's image, which is deleted afterwards.
    """
    here = python_checks(former())
    try:
        user = await connect(context)
    except DtjError as error:
        return [*here, failed("kubeconfig", error.message, error.remedy)]
    api = Inspector.of(user)
    where = namespace or api.namespace or "default"
    try:
        findings = await look_at_cluster(api, where)
        checks = [
            *here,
            *installation_checks(findings),
            *webhook_checks(findings),
            *left_code_checks(findings),
        ]
        if job is not None:
            image = record_image(findings) if job.spec.artifacts else None
            checks += await _job_checks(api, replace(job, namespace=where), image, with_pod=with_pod)
        return checks
    except ApiError as error:
        explained = explanation(error, api.host)
        return [*here, failed("API server", explained.message, explained.remedy)]
    finally:
        await api.close()


async def _job_checks(
    api: Inspector, job: Job, image_of_records: str | None, *, with_pod: bool
) -> list[Check]:
    plan, findings = plan_job(job), await look_for_job(api, job)
    secret = secret_checks(job, findings)
    checks = [*node_checks(job, plan, findings), *quota_checks(plan, findings), *secret]
    if plan.mpijob:
        checks.insert(0, await _mpi_operator(api))
    if not with_pod:
        return checks
    if any(check.verdict is Verdict.FAILED for check in secret):
        return [*checks, warning("pod", "DNS and S3 are not tested: the test pod would need the Secret")]
    async with asyncio.TaskGroup() as both:
        of_job = both.create_task(_probe(api, probe_pod(job, plan)))
        of_record = both.create_task(_record(api, job, image_of_records))
    return [*checks, *of_job.result(), *of_record.result()]


async def _mpi_operator(api: Inspector) -> Check:
    what = f"{MPIJOB_PLURAL} of {MPIJOB_API_VERSION}"
    if await api.serves_kind(MPIJOB_API_VERSION, MPIJOB_PLURAL):
        return ok("mpi-operator", f"the cluster serves {what}")
    remedy = "install Kubeflow's mpi-operator, 0.5 or newer, or use horovod.launcher: Native"
    return failed("mpi-operator", f"the cluster does not serve {what}: the job would wait", remedy)


async def _probe(api: Inspector, pod: Manifest) -> list[Check]:
    try:
        return pod_checks(await run_pod(api, pod))
    except ApiError as error:
        if error.status == 403:
            return [warning("pod", f"DNS and S3 are not tested: the test pod is refused: {error.message}")]
        return [failed("pod", f"the pod that tests DNS and S3 can't run: {error.message}")]


async def _record(api: Inspector, job: Job, image: str | None) -> list[Check]:
    if image is None:
        return []
    try:
        return [record_check(await run_pod(api, record_probe(job, image)))]
    except ApiError as error:
        return [warning(RECORD_CHECK, f"{image} is not checked: the test pod is refused: {error.message}")]
