"""The pod that tries DNS and S3 inside the cluster, and its result. Pure: `gather` creates the pod."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

from dtj.api.identity import LABEL_MANAGED_BY
from dtj.api.job import Job, Manifest
from dtj.doctor.check import Check, Verdict, failed, ok, warning
from dtj.plan.model import Plan
from dtj.plan.pods import trainer_container

SECONDS = 120
"""Limit for the pod in seconds. The pull of the image counts."""
STUCK_SECONDS = 30
"""Seconds after which the doctor reports a start error. The kubelet retries a start every 10 to 20 s."""
_PROGRAM = Path(__file__).with_name("in_pod.py")
_KEPT = ("serviceAccountName", "imagePullSecrets", "securityContext", "dnsPolicy", "dnsConfig", "hostAliases")
"""Fields that the probe copies from a worker's pod."""
_PULL_REASONS = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")
_REMEDIES = {
    "DNS": "see that the cluster's DNS runs: `kubectl -n kube-system get pods`",
    "S3 artifacts": "set spec.artifacts.uri, endpoint and the Secret so that pods may write and delete there",
    "S3 data": "set spec.data.uri to where the data set is, or upload it there",
}


def probe_pod(job: Job, plan: Plan) -> Manifest:
    """A small, short-lived pod with the image, user, service account and Secret of a worker."""
    like = plan.pod(plan.replicas[0])
    trainer = trainer_container(like)
    name = f"dtj-doctor-{secrets.token_hex(3)}"
    data = job.spec.data.uri if job.spec.data else ""
    env = {
        "DTJ_DOCTOR_ARTIFACTS_URI": job.spec.artifacts.uri if job.spec.artifacts else "",
        "DTJ_DOCTOR_DATA_URI": data if data.startswith("s3://") else "",
        "DTJ_DOCTOR_KEY": name,
    }
    small = {"cpu": "50m", "memory": "256Mi"}
    container: Manifest = {
        **{k: trainer[k] for k in ("envFrom", "securityContext", "imagePullPolicy") if k in trainer},
        "name": "doctor",
        "image": trainer["image"],
        "command": ["python", "-c", _PROGRAM.read_text()],
        "env": [*trainer["env"], *({"name": key, "value": value} for key, value in env.items())],
        "resources": {"requests": small, "limits": small | {"cpu": "1"}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": job.namespace,
            "labels": {LABEL_MANAGED_BY: "dtj-doctor"},
        },
        "spec": {
            **{key: like["spec"][key] for key in _KEPT if key in like["spec"]},
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "restartPolicy": "Never",
            "activeDeadlineSeconds": SECONDS,
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
        },
    }


def ended(pod: Manifest) -> bool:
    """Whether the pod has run."""
    return _phase(pod) in ("Succeeded", "Failed")


def stuck(pod: Manifest) -> bool:
    """Whether the kubelet failed to start the container and waits before it tries again."""
    return _waiting(pod)[0] in (
        *_PULL_REASONS, "CreateContainerConfigError", "CreateContainerError", "RunContainerError",
    )  # fmt: skip


def pod_checks(pod: Manifest) -> list[Check]:
    """The checks from the pod's last state, which may be unfinished."""
    image = pod["spec"]["containers"][0]["image"]
    reason, message = _waiting(pod)
    if reason in _PULL_REASONS:
        return [
            failed(
                "image",
                f"{image} can't be pulled: {message or reason}",
                "push it where the nodes pull from, or name an imagePullSecret in the template",
            )
        ]
    state = _state(pod)
    done = state.get("terminated") or {}
    if reason or done.get("reason") in ("ContainerCannotRun", "StartError"):
        said = message or done.get("message") or reason
        if "executable file not found" in said:
            return [warning("image", f"{image} has no `python`, so DNS and S3 can't be tried in it")]
        return [failed("pod", f"a pod like the job's does not start: {said}")]
    if "exitCode" not in done:
        return [_not_run(pod, state)]
    try:
        told = json.loads(done.get("message") or "")
    except ValueError:
        return [warning("pod", f"its check ended with {done['exitCode']} and said nothing")]
    return [ok("image", f"{image} runs"), *map(_check, told)]


def _check(told: dict[str, str]) -> Check:
    verdict = Verdict(told["verdict"])
    remedy = _REMEDIES.get(told["name"]) if verdict is Verdict.FAILED else None
    return Check(told["name"], verdict, told["message"], remedy)


def _not_run(pod: Manifest, state: Manifest) -> Check:
    conditions = {c["type"]: c for c in (pod.get("status") or {}).get("conditions") or []}
    scheduled = conditions.get("PodScheduled") or {}
    if scheduled.get("status") == "False":
        why = scheduled.get("message") or scheduled.get("reason")
        return failed("pod", f"a small pod found no node within {SECONDS} s: {why}")
    doing = "ran" if "running" in state else "was being started, most likely its image was being pulled,"
    return warning(
        "pod", f"after {SECONDS} s it still {doing} so nothing is known of DNS and S3", "try again"
    )


def _phase(pod: Manifest) -> str:
    return str((pod.get("status") or {}).get("phase", "Pending"))


def _state(pod: Manifest) -> dict[str, Any]:
    (status, *_) = (pod.get("status") or {}).get("containerStatuses") or [{}]
    return status.get("state") or {}


def _waiting(pod: Manifest) -> tuple[str, str]:
    """Why the container does not start: a reason and a sentence. Both are empty while the start goes on."""
    waiting = _state(pod).get("waiting") or {}
    reason = waiting.get("reason") or ""
    return (
        ("", "")
        if reason in ("ContainerCreating", "PodInitializing")
        else (reason, waiting.get("message") or "")
    )
