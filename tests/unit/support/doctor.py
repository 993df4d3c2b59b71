"""The cluster data that `dtj doctor` reads, and the verdicts of its checks."""

from __future__ import annotations

from typing import Any

from dtj.api.job import Manifest
from dtj.doctor.findings import Check
from dtj_trainer.contract.distribution import version

KEYS = frozenset({"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"})
GPU = "nvidia.com/gpu"


def told(checks: list[Check]) -> list[tuple[str, str]]:
    return [(check.name, check.verdict.value) for check in checks]


def deployment(
    image: str = "", ready: int = 1, namespace: str = "dtj-system", args: list[str] | None = None
) -> Manifest:
    container = {"name": "operator", "image": image or f"dtj-operator:{version()}", "args": args}
    return {
        "metadata": {"name": "dtj-operator", "namespace": namespace},
        "spec": {"template": {"spec": {"containers": [container]}}},
        "status": {"readyReplicas": ready},
    }


def node(name: str, gpus: int = 0, cpu: int = 8, labels: Manifest | None = None, **spec: Any) -> Manifest:
    allocatable = {"cpu": str(cpu), "memory": "32Gi", "pods": "110", **({GPU: str(gpus)} if gpus else {})}
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/os": "linux"} | (labels or {})},
        "spec": spec,
        "status": {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]},
    }
