"""A job's PodGroup, which is not watched: most clusters do not know the kind."""

from __future__ import annotations

from dtj.api.identity import LABEL_ATTEMPT
from dtj.api.job import Manifest
from dtj.api.reasons import Reason
from dtj.api.scheduling_rules import KUEUE_QUEUE
from dtj.api.unreadable import AnyJob
from dtj.cluster.port import ApiError, Cluster
from dtj.reconcile.refusal import Refused, holder, refuse
from dtj.reconcile.view import controller_uid
from dtj.status.events import Happening

_MANAGED = "kueue.x-k8s.io/managed"


async def ensure_pod_group(cluster: Cluster, job: AnyJob, manifest: Manifest) -> None:
    """Make the PodGroup, in place of one of the job that says something else. Raises Refused and ApiError."""
    try:
        await cluster.create(manifest)
    except ApiError as error:
        if _is_not_served(error):
            gang, served = job.run_policy.scheduling_policy.gang, manifest["apiVersion"]
            missing = (
                f"the cluster does not serve {served}, and runPolicy.schedulingPolicy.gang is {gang}; "
                "the job goes on once its scheduler is installed"
            )
            raise Refused(ApiError(404, Reason.SCHEDULER_MISSING, missing), manifest) from None
        if error.status != 409 or error.reason != "AlreadyExists":
            refuse(error, manifest)
            return
        there = await cluster.get(manifest)
        if there is None:
            return  # gone in between: the next pass makes it
        if controller_uid(there) != job.uid:
            raise Refused(ApiError(409, Reason.NAME_TAKEN, holder(there, job)), manifest) from None
        spec = there.get("spec") or {}
        if any(spec.get(key) != value for key, value in manifest["spec"].items()):
            await cluster.delete(manifest, there["metadata"]["uid"])
            await cluster.create(manifest)


async def delete_pod_group(cluster: Cluster, job: AnyJob, manifest: Manifest) -> None:
    """Take the job's PodGroup away, if there is one. Raises ApiError."""
    there = await cluster.get(manifest)
    if there is not None and controller_uid(there) == job.uid:
        await cluster.delete(manifest, there["metadata"]["uid"])


def not_queued(job: AnyJob, made: Manifest) -> Happening | None:
    """What is to be told of a pod that was to be queued by Kueue, and that Kueue has not taken."""
    labels = made["metadata"].get("labels") or {}
    if KUEUE_QUEUE not in labels or labels.get(_MANAGED) == "true":
        return None
    return Happening(
        "Warning",
        Reason.NOT_QUEUED,
        f"Kueue has not taken the pods of attempt {labels[LABEL_ATTEMPT]}, they run without its quota: is it "
        f"installed, with its pod integration on for namespace {job.namespace}?",
    )


def _is_not_served(error: ApiError) -> bool:
    """The server's answer for a kind that it does not know is no Status; for a missing namespace it is one."""
    return error.status == 404 and error.reason != "NotFound"
