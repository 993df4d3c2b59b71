"""Placement of a job's pods by affinity and spread, and short tolerations for lost nodes."""

from __future__ import annotations

from tests.cluster.jobs import Job, Manifest


def leaving_quickly() -> Manifest:
    lost = ("not-ready", "unreachable")
    return {
        "terminationGracePeriodSeconds": 15,
        "tolerations": [
            {
                "key": f"node.kubernetes.io/{taint}",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": 2,
            }
            for taint in lost
        ],
    }


def spread(job: str) -> Manifest:
    """The workers on as many nodes as there are."""
    labels = {"dtj.dev/job": job, "dtj.dev/role": "worker"}
    return {
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": labels},
            }
        ]
    }


def away_from(node: str) -> Manifest:
    terms = {"nodeSelectorTerms": [{"matchFields": [node_name("NotIn", node)]}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


def if_possible_on(node: str) -> Manifest:
    terms = [{"weight": 100, "preference": {"matchFields": [node_name("In", node)]}}]
    return {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}}


def node_name(operator: str, name: str) -> Manifest:
    return {"key": "metadata.name", "operator": operator, "values": [name]}


def pods_on(job: Job, node: str) -> dict[str, str]:
    """Name and uid of its pods there."""
    return {
        pod["metadata"]["name"]: pod["metadata"]["uid"]
        for pod in job.pods()
        if pod["spec"].get("nodeName") == node
    }
