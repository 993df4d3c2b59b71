"""Check a cluster: the installation of dtj, and whether a given job could run."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from dtj.api.errors import DtjError
from dtj.api.job import Job, Manifest
from dtj.api.mpijob import MPIJOB_API_VERSION, MPIJOB_PLURAL
from dtj.client.failures import explanation
from dtj.cluster.inspect import Inspector
from dtj.cluster.port import ApiError
from dtj.cluster.user_api import connect
from dtj.doctor.capacity import node_checks, quota_checks
from dtj.doctor.check import Check, Verdict, failed, ok, warning
from dtj.doctor.credentials import secret_checks
from dtj.doctor.gather import look_at_cluster, look_for_job, run_pod
from dtj.doctor.installation import installation_checks, python_checks
from dtj.doctor.left_code import left_code_checks
from dtj.doctor.probe import pod_checks, probe_pod
from dtj.doctor.record import NAME, record_check, record_image, record_probe
from dtj.doctor.webhook import webhook_checks
from dtj.plan.job import plan_job
from dtj_trainer.contract.distribution import former


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
        return [warning(NAME, f"{image} is not checked: the test pod is refused: {error.message}")]
