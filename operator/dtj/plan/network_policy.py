"""A NetworkPolicy for a job's pods: only these pods reach each other, and the operator reads their progress.

Egress stays open, because DNS, S3, data and package indexes may be anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dtj.api.identity import LABEL_JOB, LABEL_MANAGED_BY, MANAGER
from dtj.api.job import Job, Manifest
from dtj.api.names import network_policy_name
from dtj.plan.model import Plan
from dtj.plan.pods import metadata
from dtj_trainer import contract

OPERATOR_LABELS = {"app.kubernetes.io/name": "dtj-operator"}
"""The labels of the operator's pods, as the chart sets them."""


def fenced(plan: Callable[[Job], Plan], operator_namespace: str) -> Callable[[Job], Plan]:
    """Return a function that adds a NetworkPolicy to each plan."""

    def with_policy(job: Job) -> Plan:
        return replace(plan(job), network_policy=network_policy(job, operator_namespace))

    return with_policy


def network_policy(job: Job, operator_namespace: str) -> Manifest:
    """Return the job's NetworkPolicy: sshd, ps, rendezvous and MPI's random ports accept the job's pods only."""
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
