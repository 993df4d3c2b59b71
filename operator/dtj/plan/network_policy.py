"""The NetworkPolicy of a job: only the job's own pods and the operator reach its pods.

Egress stays open: the policy cannot know where DNS, S3, the data and the package index of a cluster are.
"""

from __future__ import annotations

from dtj.api.identity import LABEL_JOB, LABEL_MANAGED_BY, MANAGER
from dtj.api.job import Job, Manifest
from dtj.api.names import network_policy_name
from dtj.plan.pods import metadata
from dtj_trainer import contract

OPERATOR_LABELS = {"app.kubernetes.io/name": "dtj-operator"}
"""Labels of the operator's pods, as the chart sets them."""


def network_policy(job: Job, operator_namespace: str) -> Manifest:
    """Return the NetworkPolicy. Only pods of the job reach its sshd, its ps and the random ports of MPI."""
    own = {"matchLabels": {LABEL_MANAGED_BY: MANAGER, LABEL_JOB: job.name}}
    operator = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": operator_namespace}},
        "podSelector": {"matchLabels": dict(OPERATOR_LABELS)},
    }
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(job, network_policy_name(job.name, job.short_uid)),
        "spec": {
            "podSelector": own,
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [{"podSelector": own}]},
                {"from": [operator], "ports": [{"port": contract.PROGRESS_PORT, "protocol": "TCP"}]},
            ],
        },
    }
