"""Check whether the API server reaches the operator's webhook: it must refuse a faulty job, which is never stored."""

from __future__ import annotations

import re

from dtj.api.identity import API_VERSION, KIND
from dtj.api.job import Manifest
from dtj.doctor.check import Check, failed, ok, warning
from dtj.doctor.findings import ClusterFindings, Taken
from dtj.doctor.installation import operator_words, operators_of
from dtj_trainer.contract import ENV_JOB

_NAME = "webhook"
_REFUSED = f"spec.env[0].name: {ENV_JOB}"


def faulty_job(namespace: str) -> Manifest:
    """Return a job with a fault that the CRD does not refuse, and the webhook does."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"generateName": "dtj-doctor-", "namespace": namespace},
        "spec": {
            "strategy": "Horovod",
            "image": "none",
            "command": ["none"],
            "env": [{"name": ENV_JOB, "value": "none"}],
            "replicaSpecs": {"worker": {"replicas": 1}},
        },
    }


def webhook_checks(findings: ClusterFindings) -> list[Check]:
    """Judge the answer to the faulty job. There is no check without a webhook, or if the user may create no jobs."""
    said = findings.faulty_job
    if said is None:
        return []
    if not isinstance(said, Taken) and _REFUSED in said:
        return [ok(_NAME, "the API server asks it: a faulty job is refused")]
    port = _port(findings)
    if port is None:
        return []
    remedy = f"let the API server reach port {port} of the operator's pods: docs/webhook.md says what is in the way"
    if isinstance(said, Taken):
        return [failed(_NAME, "the API server does not reach it, and takes faulty jobs unchecked", remedy)]
    if "failed calling webhook" in said:
        return [failed(_NAME, f"the API server does not reach it, and refuses all jobs: {said}", remedy)]
    return [warning(_NAME, f"it is not checked: the faulty job is refused with other words: {said}")]


def _port(findings: ClusterFindings) -> str | None:
    """Return the port of the operator's webhook; None if it has none, or if its Deployment can't be read."""
    for deployment in operators_of(findings):
        if found := re.search(r"--webhook-port[= ](\d+)", " ".join(operator_words(deployment))):
            return found[1]
    return None
