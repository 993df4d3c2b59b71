"""Builders of jobs for tests."""

from __future__ import annotations

import copy
from typing import Any

from dtj.api.job import Job, Manifest, read_job

UID = "5b6a1f0e-8f6d-4c53-9d0f-2a1b3c4d5e6f"


def manifest(name: str = "mnist", **spec: Any) -> Manifest:
    """A small valid job with two workers, as the API server stores it; keywords replace fields of its spec."""
    return {
        "apiVersion": "dtj.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": {"name": name, "namespace": "ml", "uid": UID, "generation": 1, "resourceVersion": "1"},
        "spec": {
            "strategy": "Horovod",
            "image": "trainer:1",
            "command": ["python", "train.py"],
            "replicaSpecs": {"worker": {"replicas": 2}},
            **copy.deepcopy(spec),
        },
    }


def job(name: str = "mnist", *, status: Manifest | None = None, **spec: Any) -> Job:
    """The same job, parsed."""
    return read_job(manifest(name, **spec) | ({"status": status} if status else {}))


def stored(name: str = "mnist", **spec: Any) -> Manifest:
    """A job as the API server returns it, with what it adds to metadata; each name has its own uid."""
    made = manifest(name, **spec)
    made["metadata"] |= {
        "uid": f"uid-of-{name}",
        "creationTimestamp": "2026-11-21T12:00:00Z",
        "managedFields": [{"manager": "kubectl"}],
    }
    return made


def with_template(template: Manifest, role: str = "worker") -> Manifest:
    """A job whose role has this template."""
    roles: dict[str, Manifest] = {"worker": {"replicas": 2}}
    roles.setdefault(role, {})["template"] = template
    return manifest(replicaSpecs=roles)
