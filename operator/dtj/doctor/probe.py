"""The test pods and their results: DNS and S3 from the image of a job, and the image of record pods. Pure.

`examine` runs the pods. `in_pod` is their program. Also checks the Secret with the credentials for the bucket.
"""

from __future__ import annotations

import argparse
import json
import secrets
from pathlib import Path
from typing import Any

from dtj.api.identity import LABEL_MANAGED_BY
from dtj.api.job import Job, Manifest
from dtj.doctor.findings import Check, ClusterFindings, JobFindings, Unread, Verdict, failed, ok, warning
from dtj.doctor.installation import operator_words, operators_of
from dtj.plan.model import Plan
from dtj.plan.pods import trainer_container
from dtj.plan.record import record_template
from dtj.plan.template_fields import metadata_of_templates
from dtj.plan.tensorboard import DEFAULT_IMAGE

SECONDS = 120
"""The time limit of a test pod in seconds, with the pull of the image."""
STUCK_SECONDS = 30
"""Seconds after which the doctor reports a start error. The kubelet retries a start every 10 to 20 s."""
_PROGRAM = Path(__file__).with_name("in_pod.py")
_COPIED = (
    "serviceAccountName",
    "imagePullSecrets",
    "securityContext",
    "dnsPolicy",
    "dnsConfig",
    "hostAliases",
)
"""Fields that the probe copies from the spec of the job's first pod."""
PULL_REASONS = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")
_REMEDIES = {
    ("DNS", Verdict.FAILED): "check that the DNS of the cluster runs: `kubectl -n kube-system get pods`",
    ("S3 artifacts", Verdict.FAILED): (
        "set spec.artifacts.uri, endpoint and the Secret so that pods may write and delete there"
    ),
    ("S3 conditions", Verdict.WARNING): (
        "use a store with conditional writes, or accept this: docs/stores.md#without-conditional-writes"
    ),
    ("S3 data", Verdict.FAILED): (
        "set spec.data.uri to the place of the data set, or upload the data set to this place"
    ),
}


def probe_pod(job: Job, plan: Plan) -> Manifest:
    """Return a small, short-lived pod with the image, user, service account and Secret of the job's first pod."""
    first_pod = plan.pod(plan.shape.replicas[0])
    trainer = trainer_container(first_pod)
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
            **{key: first_pod["spec"][key] for key in _COPIED if key in first_pod["spec"]},
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "restartPolicy": "Never",
            "activeDeadlineSeconds": SECONDS,
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
        },
    }


def ended(pod: Manifest) -> bool:
    """Return whether the pod has ended."""
    return _phase(pod) in ("Succeeded", "Failed")


def stuck(pod: Manifest) -> bool:
    """Return whether the kubelet could not start the container, and waits before it tries again."""
    return waiting(pod)[0] in (
        *PULL_REASONS, "CreateContainerConfigError", "CreateContainerError", "RunContainerError",
    )  # fmt: skip


def pod_checks(pod: Manifest) -> list[Check]:
    """Return the checks from the last state of the pod. The pod may not have ended."""
    image = pod["spec"]["containers"][0]["image"]
    reason, message = waiting(pod)
    if reason in PULL_REASONS:
        return [
            failed(
                "image",
                f"{image} can't be pulled: {message or reason}",
                "push the image to a registry that the nodes reach, or name an imagePullSecret in the template",
            )
        ]
    state = state_of(pod)
    end = state.get("terminated") or {}
    if reason or end.get("reason") in ("ContainerCannotRun", "StartError"):
        why = message or end.get("message") or reason
        if "executable file not found" in why:
            return [warning("image", f"{image} has no `python`, so DNS and S3 can't be tested in a pod")]
        return [failed("pod", f"a pod like the job's pods does not start: {why}")]
    if "exitCode" not in end:
        return [_not_run(pod, state)]
    try:
        results = json.loads(end.get("message") or "")
    except ValueError:
        return [warning("pod", f"the test pod ended with exit code {end['exitCode']} and without a result")]
    return [ok("image", f"{image} runs"), *map(_check, results)]


def _check(result: dict[str, str]) -> Check:
    verdict = Verdict(result["verdict"])
    return Check(result["name"], verdict, result["message"], _REMEDIES.get((result["name"], verdict)))


def _not_run(pod: Manifest, state: Manifest) -> Check:
    conditions = {c["type"]: c for c in (pod.get("status") or {}).get("conditions") or []}
    scheduled = conditions.get("PodScheduled") or {}
    if scheduled.get("status") == "False":
        why = scheduled.get("message") or scheduled.get("reason")
        return failed("pod", f"no node took a small test pod within {SECONDS} s: {why}")
    doing = (
        "still ran"
        if "running" in state
        else "had not started, most likely because the image was being pulled"
    )
    return warning("pod", f"after {SECONDS} s the test pod {doing}: DNS and S3 are not tested", "try again")


def _phase(pod: Manifest) -> str:
    return str((pod.get("status") or {}).get("phase", "Pending"))


def state_of(pod: Manifest) -> dict[str, Any]:
    """Return the state of the container; empty if the kubelet has not reported one."""
    (status, *_) = (pod.get("status") or {}).get("containerStatuses") or [{}]
    return status.get("state") or {}


def waiting(pod: Manifest) -> tuple[str, str]:
    """Return why the container can't start: a reason and a message. Both are empty while the start continues."""
    waiting = state_of(pod).get("waiting") or {}
    reason = waiting.get("reason") or ""
    return (
        ("", "")
        if reason in ("ContainerCreating", "PodInitializing")
        else (reason, waiting.get("message") or "")
    )


_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
_REGION = "AWS_REGION"


def secret_checks(job: Job, findings: JobFindings) -> list[Check]:
    """Check that the Secret exists and has the keys that pods need. A job without artifacts needs no check."""
    artifacts = job.spec.artifacts
    if artifacts is None:
        return []
    name = artifacts.secret_name
    if name is None:
        return [ok("Secret", "the job names no Secret: its pods use their service account for S3")]
    if isinstance(findings.secret, Unread):
        return [warning("Secret", f"{name} can't be read: {findings.secret.reason}")]
    create = f"kubectl -n {job.namespace} create secret generic {name}" + "".join(
        f" --from-literal={key}=…" for key in _KEYS
    )
    if findings.secret is None:
        return [failed("Secret", f"there is no Secret {name} in namespace {job.namespace}", create)]
    missing = [key for key in _KEYS if key not in findings.secret.keys]
    if missing:
        return [failed("Secret", f"{name} lacks {' and '.join(missing)}", f"delete {name} and `{create}`")]
    padded = [key for key in _KEYS if key in findings.secret.padded]
    if padded:
        return [
            failed(
                "Secret",
                f"{name}: {' and '.join(padded)} begins or ends with white space, which `echo` may have added",
                f"delete {name} and `{create}`",
            )
        ]
    set_elsewhere = {variable.name for variable in job.spec.env}
    if not artifacts.endpoint and _REGION not in findings.secret.keys | set_elsewhere:
        return [
            warning("Secret", f"{name} has no {_REGION}", f"add {_REGION}, unless the bucket is in us-east-1")
        ]
    return [ok("Secret", f"{name} has {' and '.join(_KEYS)}")]


RECORD_CHECK = "record image"
_NO_RECORDS = "none"
_UNRECORDED = "so the ends of jobs are not recorded in the bucket"
_RECORD_PROGRAM = "import boto3, dtj_trainer.record_pod"
_RECORD_REMEDY = (
    "push the image to a registry that the nodes reach, and set `tensorboard.image` of the operator's chart, or "
    "`--record-image` in extraArgs, to it; a private registry needs imagePullSecrets in the template of a role"
)


def record_image(findings: ClusterFindings) -> str | None:
    """Return the image of the record pods of the namespace.

    Returns None if the operator makes no record pods, or if its Deployment can't be read or is not the only one.
    """
    operators = operators_of(findings)
    if len(operators) != 1:
        return None
    flags = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    flags.add_argument("--tensorboard-image", default=DEFAULT_IMAGE)
    flags.add_argument("--record-image")
    try:
        known, _ = flags.parse_known_args(operator_words(operators[0]))
    except argparse.ArgumentError:
        return None
    image: str = known.record_image or known.tensorboard_image
    return None if image == _NO_RECORDS else image


def record_probe(job: Job, image: str) -> Manifest:
    """Return a pod like the record pod of a job that keeps artifacts. The pod only imports the program."""
    pod = record_template(job, image, {})
    (container,) = pod["spec"]["containers"]
    probe = {**container, "command": ["python", "-c", _RECORD_PROGRAM]}
    taken = metadata_of_templates(job)
    return {
        **pod,
        "metadata": {
            **taken,
            "name": f"dtj-doctor-record-{secrets.token_hex(3)}",
            "namespace": job.namespace,
            "labels": {**taken.get("labels", {}), LABEL_MANAGED_BY: "dtj-doctor"},
        },
        "spec": {
            **pod["spec"],
            "activeDeadlineSeconds": SECONDS,
            "terminationGracePeriodSeconds": 0,
            "containers": [probe],
        },
    }


def record_check(pod: Manifest) -> Check:
    """Return the check from the last state of the pod, which may still run.

    A fault is a warning: a job trains without a record, too.
    """
    image = pod["spec"]["containers"][0]["image"]
    reason, message = waiting(pod)
    if reason in PULL_REASONS:
        return warning(
            RECORD_CHECK, f"{image} can't be pulled, {_UNRECORDED}: {message or reason}", _RECORD_REMEDY
        )
    end = state_of(pod).get("terminated") or {}
    if end.get("exitCode") == 0:
        return ok(RECORD_CHECK, f"{image} runs in record pods")
    if why := message or reason or end.get("message") or end.get("reason"):
        last = " ".join(str(why).strip().splitlines()[-1:])
        return warning(RECORD_CHECK, f"{image} can't record, {_UNRECORDED}: {last}", _RECORD_REMEDY)
    return warning(RECORD_CHECK, f"{image} has not run within {SECONDS} s, and is not checked", "try again")
