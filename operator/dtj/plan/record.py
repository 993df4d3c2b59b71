"""The record pod: it writes `end.json` of a job whose own pods did not record the end. It is no replica.

The pod has the job's own credentials, as the job's TensorBoard has. The operator never has a key of a bucket.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dtj.api.identity import LABEL_MANAGED_BY, LABEL_RECORD, MANAGER
from dtj.api.job import Job, Manifest
from dtj.api.names import record_name
from dtj.api.status import JobStatus
from dtj.plan.code import code_pod_spec
from dtj.plan.history import history_environment, history_of
from dtj.plan.pods import credentials, metadata, pod_security, with_node_tolerations, with_restricted_security
from dtj.plan.template_fields import metadata_of_templates, resources_like_replicas, spec_of_templates
from dtj.plan.tensorboard import bucket_variables, service_account
from dtj_trainer import contract
from dtj_trainer.contract.history import RECORD_POD, EndRecord, RecordedPod, end_record

DEADLINE_SECONDS = 180
"""Seconds from the start of a record pod on a node to its end, with the pull of its image."""
END_BYTES = 64_000
"""The largest size of `end.json`. The record pod gets the file in one variable, of which Linux allows 128 KiB."""
_RESOURCES = {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}}
_OTHERWISE = {
    "requests": {"ephemeral-storage": "50Mi"},
    "limits": {"cpu": "500m", "ephemeral-storage": "100Mi"},
}
_SHORT_LINE, _SHORT_MESSAGE = 200, 1000


def record_pod(job: Job, status: JobStatus, pods: Sequence[RecordedPod], time: str, image: str) -> Manifest:
    """Return the pod that records this status of a job that keeps artifacts.

    pods: the job's pods. time: RFC 3339. image: an image with Python, boto3 and `dtj_trainer`.
    """
    end = json.dumps(fitted(end_record_of(job, status, pods, time)), ensure_ascii=False)
    env = {
        contract.ENV_JOB: job.name,
        contract.ENV_ARTIFACTS_URI: job.artifacts_uri or "",
        # Double each `$`: the kubelet expands `$(NAME)` in values and replaces `$$` by `$`.
        contract.ENV_END: end.replace("$", "$$"),
        **history_environment(job),
    }
    if job.spec.artifacts and job.spec.artifacts.endpoint:
        env["AWS_ENDPOINT_URL_S3"] = job.spec.artifacts.endpoint
    name = record_name(job.name, job.short_uid, max(status.attempt, 1), ended=status.finished)
    # Leave out LABEL_JOB: the record pod is no replica of the job, and the job's Service must not select it.
    labels = {"app.kubernetes.io/name": "dtj-record", LABEL_MANAGED_BY: MANAGER, LABEL_RECORD: job.name}
    pod = record_template(job, image, env)
    taken = metadata_of_templates(job)
    return {
        **pod,
        "metadata": {**taken, **metadata(job, name), "labels": {**taken.get("labels", {}), **labels}},
    }


def record_template(job: Job, image: str, env: Mapping[str, str]) -> Manifest:
    """Return the record pod of a job without its metadata. env: variables besides those of the job's bucket."""
    pod: Manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": DEADLINE_SECONDS,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 10,
            "securityContext": pod_security(job.pod_user),
            "containers": [
                {
                    "name": RECORD_POD,
                    "image": image,
                    "command": ["python", "-m", "dtj_trainer.record_pod"],
                    "env": [
                        *({"name": name, "value": value} for name, value in env.items()),
                        *bucket_variables(job),
                    ],
                    "resources": resources_like_replicas(job, _RESOURCES, _OTHERWISE),
                    "securityContext": {"readOnlyRootFilesystem": True},
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                    "volumeMounts": [
                        {"name": "config", "mountPath": str(contract.CONFIG_DIR), "readOnly": True},
                        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - a mount point, not a file of ours
                        *_code_mounts(job),
                    ],
                    **credentials(job),
                }
            ],
            "volumes": [
                # A job that failed because its spec is invalid has no ConfigMap.
                {"name": "config", "configMap": {"name": job.config_map, "optional": True}},
                {"name": "tmp", "emptyDir": {"sizeLimit": "10Mi"}},
                *_code_volumes(job),
            ],
            **spec_of_templates(job, beside_gpus=True),
            **service_account(job),
        },
    }
    return with_node_tolerations(with_restricted_security(pod))


def _code_mounts(job: Job) -> Iterator[Manifest]:
    """Yield the mounts of archives from ConfigMaps. The record pod copies the archives to the bucket."""
    for container in code_pod_spec(job).get("containers", ()):
        yield from container["volumeMounts"]


def _code_volumes(job: Job) -> Iterator[Manifest]:
    for volume in code_pod_spec(job).get("volumes", ()):
        # The record pod must start even if the user has deleted the ConfigMap of a failed job.
        yield {**volume, "configMap": {**volume["configMap"], "optional": True}}


def end_record_of(job: Job, status: JobStatus, pods: Sequence[RecordedPod], time: str) -> EndRecord:
    """Return the record of a status of a job that has a history.

    The pod that failed comes first. The name of the ssh Secret is left out.
    """
    content = status.model_dump(by_alias=True, mode="json", exclude_none=True, exclude={"ssh_secret"})
    failed = status.failure.pod if status.failure is not None else None
    ordered = sorted(pods, key=lambda pod: pod["name"] != failed)
    history = history_of(job)
    assert history is not None
    return end_record(history, RECORD_POD, time, ordered, content)


def fitted(record: EndRecord, limit: int = END_BYTES) -> EndRecord:
    """Leave out what makes the record longer than `limit` bytes as JSON.

    First go the attempts of replicas and the losses of nodes, then pods, then log lines, and then long messages.
    """
    status: dict[str, Any] = dict(record["status"])
    fit: EndRecord = {**record, "status": status}
    for name in ("replicaAttempts", "nodeFailures"):
        if _size(fit) > limit:
            status.pop(name, None)
    every = record["pods"]
    while _size(fit) > limit and len(fit["pods"]) > 1:
        fit["pods"] = fit["pods"][: len(fit["pods"]) // 2]
        fit["podsLeftOut"] = len(every) - len(fit["pods"])
    if _size(fit) > limit and isinstance(failure := status.get("failure"), dict):
        lines = [line[:_SHORT_LINE] for line in failure.get("lastLogLines", [])]
        status["failure"] = {
            **failure,
            "lastLogLines": lines,
            "message": failure.get("message", "")[:_SHORT_MESSAGE],
        }
    if _size(fit) > limit:
        status["conditions"] = [
            {**condition, "message": condition.get("message", "")[:_SHORT_MESSAGE]}
            for condition in status.get("conditions", [])
        ]
    return fit


def _size(record: EndRecord) -> int:
    return len(json.dumps(record, ensure_ascii=False).encode(errors="replace"))
