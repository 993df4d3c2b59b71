"""A wall around a job's pods: only they reach each other, and the operator asks for their progress.

What goes out stays open: DNS, S3, data and the package index are wherever a cluster has them.
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
"""Of the operator's pods, as the chart makes them."""


def fenced(plan: Callable[[Job], Plan], operator_namespace: str) -> Callable[[Job], Plan]:
    """The same plans with a NetworkPolicy each."""

    def with_policy(job: Job) -> Plan:
        return replace(plan(job), network_policy=network_policy(job, operator_namespace))

    return with_policy


def network_policy(job: Job, operator_namespace: str) -> Manifest:
    """The NetworkPolicy of a job: sshd, ps, rendezvous and the ports that MPI takes at random are for its pods."""
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
