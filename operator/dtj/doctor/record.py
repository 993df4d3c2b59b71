"""Check the image of the record pods, which write into the bucket how jobs ended. Pure: `gather` runs the pod."""

from __future__ import annotations

import argparse
import secrets

from dtj.api.identity import LABEL_MANAGED_BY
from dtj.api.job import Job, Manifest
from dtj.doctor.check import Check, ok, warning
from dtj.doctor.findings import ClusterFindings
from dtj.doctor.installation import operator_words, operators_of
from dtj.doctor.probe import PULL_REASONS, SECONDS, state_of, waiting
from dtj.plan.record import record_template
from dtj.plan.template_fields import metadata_of_templates
from dtj.plan.tensorboard import DEFAULT_IMAGE

NAME = "record image"
_NO_RECORDS = "none"
_UNRECORDED = "so that the ends of jobs are not recorded in the bucket"
_PROGRAM = "import boto3, dtj_trainer.record_pod"
_REMEDY = (
    "push it to a registry of the nodes, and name it in `tensorboard.image` of the operator's chart, or by "
    "`--record-image` in extraArgs; a private registry needs imagePullSecrets in the template of a role"
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
    """Return a pod like the record pod of a job that keeps artifacts. It loads the program, and writes nothing."""
    pod = record_template(job, image, {})
    (container,) = pod["spec"]["containers"]
    probe = {**container, "command": ["python", "-c", _PROGRAM]}
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
        return warning(NAME, f"{image} can't be pulled, {_UNRECORDED}: {message or reason}", _REMEDY)
    end = state_of(pod).get("terminated") or {}
    if end.get("exitCode") == 0:
        return ok(NAME, f"{image} runs in record pods")
    if why := message or reason or end.get("message") or end.get("reason"):
        last = " ".join(str(why).strip().splitlines()[-1:])
        return warning(NAME, f"{image} can't record, {_UNRECORDED}: {last}", _REMEDY)
    return warning(NAME, f"{image} has not run within {SECONDS} s, and is not checked", "try again")
