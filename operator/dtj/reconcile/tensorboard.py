"""The TensorBoard of a job: the operator keeps its Service and its Deployment as the job's spec wants them.

The status field `status.tensorboard` shows errors of the TensorBoard, and the operator tries again. Such errors do
not affect the training.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from dtj.api.job import Job, Manifest
from dtj.api.scheduling_rules import KUEUE_QUEUE
from dtj.api.status import TensorBoardStatus
from dtj.cluster.interface import ApiError, Cluster
from dtj.plan.model import Plan, TensorBoard
from dtj.plan.tensorboard import ANNOTATION_DIGEST, OFF, tensorboard_url, turned_off
from dtj.reconcile.refusal import CreationRefused, make, refuse
from dtj.reconcile.view import Owned, OwnedDeployment, controller_uid
from dtj.status.draft import LONGEST_CONDITION

_log = logging.getLogger(__name__)
_LONGEST_DIGEST = 64


def view_deployment(manifest: Mapping[str, Any]) -> OwnedDeployment:
    """Return the fields of a Deployment that the operator reads."""
    metadata, status = manifest["metadata"], manifest.get("status") or {}
    failing = (
        condition.get("message")
        for condition in status.get("conditions") or []
        if (condition["type"], condition["status"]) == ("ReplicaFailure", "True")
    )
    ready = bool(status.get("availableReplicas"))
    return OwnedDeployment(
        name=metadata["name"],
        owner=controller_uid(manifest),
        uid=metadata["uid"],
        # Cut the digest: a user who may create Deployments can write any text into the annotation.
        digest=(metadata.get("annotations") or {}).get(ANNOTATION_DIGEST, "")[:_LONGEST_DIGEST],
        ready=ready,
        trouble=(next(failing, None) or "")[:LONGEST_CONDITION] or _queued(metadata, ready=ready),
    )


def _queued(metadata: Mapping[str, Any], *, ready: bool) -> str | None:
    """Return a message if Kueue queues the pod. In a namespace with a LocalQueue `default`, Kueue queues all pods."""
    queue = (metadata.get("labels") or {}).get(KUEUE_QUEUE)
    return None if queue is None or ready else f"its pod waits until Kueue admits it from LocalQueue {queue}"


def tensorboard_status(
    job: Job, plan: Plan, deployments: Sequence[OwnedDeployment], refusal: str | None
) -> TensorBoardStatus | None:
    """Return the status of the TensorBoard, or None when the job wants no TensorBoard.

    deployments: the Deployments of the job.
    refusal: why the API server refused the TensorBoard, or None.
    """
    board = wanted(job, plan)
    if board is None:
        return None
    now = next((deployment for deployment in deployments if deployment.digest == _digest(board)), None)
    return TensorBoardStatus(
        url=tensorboard_url(job),
        ready=now is not None and now.ready,
        message=refusal or (now.trouble if now else None),
    )


async def keep(
    cluster: Cluster, job: Job, plan: Plan, services: Sequence[Owned], deployments: Sequence[OwnedDeployment]
) -> str | None:
    """Create, update, or turn off the TensorBoard. Returns why the API server refused a request, or None.

    services, deployments: the Services and Deployments of the job.

    Raises ApiError when the same request may succeed later.
    """
    try:
        await _keep(cluster, job, wanted(job, plan), services, deployments)
    except CreationRefused as refused:
        _log.info("%s/%s: %s", job.namespace, job.name, refused)
        return refused.obstacle[1]
    return None


def wanted(job: Job, plan: Plan) -> TensorBoard | None:
    """Return the wanted TensorBoard. A suspended job has none; a finished job keeps it until deletion."""
    suspended = job.run_policy.suspend and not job.finished
    return None if suspended else plan.tensorboard


async def _keep(
    cluster: Cluster,
    job: Job,
    board: TensorBoard | None,
    services: Sequence[Owned],
    deployments: Sequence[OwnedDeployment],
) -> None:
    if board is None:
        for deployment in deployments:
            if deployment.digest != OFF:
                await _update(cluster, turned_off(job))
        return
    if not any(service.name == board.service["metadata"]["name"] for service in services):
        await make(cluster, job, board.service)
    if not deployments:
        await make(cluster, job, board.deployment)
    elif deployments[0].digest != _digest(board):
        await _update(cluster, board.deployment)


async def _update(cluster: Cluster, manifest: Manifest) -> None:
    try:
        await cluster.update_deployment(manifest)
    except ApiError as error:
        if error.status != 404:  # 404: the Deployment was deleted. The cache will show the deletion.
            refuse(error, manifest)


def _digest(board: TensorBoard) -> str:
    return str(board.deployment["metadata"]["annotations"][ANNOTATION_DIGEST])
