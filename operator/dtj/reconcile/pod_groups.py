"""The PodGroup of a job. The operator does not watch PodGroups: most clusters do not serve the kind."""

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
    """Create the PodGroup. Replace a PodGroup of the job that has another spec. Raises Refused and ApiError."""
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
        existing = await cluster.get(manifest)
        if existing is None:
            return  # The PodGroup was deleted after the creation failed. The next pass creates the PodGroup.
        if controller_uid(existing) != job.uid:
            raise Refused(ApiError(409, Reason.NAME_TAKEN, holder(existing, job)), manifest) from None
        spec = existing.get("spec") or {}
        if any(spec.get(key) != value for key, value in manifest["spec"].items()):
            await cluster.delete(manifest, existing["metadata"]["uid"])
            await cluster.create(manifest)


async def delete_pod_group(cluster: Cluster, job: AnyJob, manifest: Manifest) -> None:
    """Delete the job's PodGroup, if the PodGroup exists. Raises ApiError."""
    existing = await cluster.get(manifest)
    if existing is not None and controller_uid(existing) == job.uid:
        await cluster.delete(manifest, existing["metadata"]["uid"])


def not_queued(job: AnyJob, pod: Manifest) -> Happening | None:
    """Return a warning for a pod that names a queue of Kueue and that Kueue does not manage."""
    labels = pod["metadata"].get("labels") or {}
    if KUEUE_QUEUE not in labels or labels.get(_MANAGED) == "true":
        return None
    return Happening(
        "Warning",
        Reason.NOT_QUEUED,
        f"Kueue has not taken the pods of attempt {labels[LABEL_ATTEMPT]}, they run without its quota: is it "
        f"installed, with its pod integration on for namespace {job.namespace}?",
    )


def _is_not_served(error: ApiError) -> bool:
    """Return whether the API server does not serve the kind. For a missing namespace, the reason is NotFound."""
    return error.status == 404 and error.reason != "NotFound"
