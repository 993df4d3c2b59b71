"""What may not change in a job that is there.

The CRD says the same in CEL, which API servers older than 1.25 do not know.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dtj.api.job import Fault

FIXED = {
    "strategy": "",
    "horovod.launcher": "Native",
    "runPolicy.managedBy": "",
    "runPolicy.schedulingPolicy.gang": "None",
    "runPolicy.schedulingPolicy.queue": "",
}
"""Fields of spec that never change, and what they are when they are not given."""
SIZES = {
    role: f"the number of {name} can only be changed while the job is suspended"
    for role, name in (
        ("worker", "workers"),
        ("ps", "parameter servers"),
        ("chief", "chiefs"),
        ("master", "masters"),
    )
}
"""Roles whose number of replicas only changes while the job is suspended, and what is said of another change. A role
that comes or goes is such a change, unless IMPLIED_SIZES has the role.
"""
IMPLIED_SIZES = {"chief": 1, "master": 0}
"""The number of replicas of a role without an entry, where the entry may come and go."""
PLACES = {
    field: f"{field} can only be changed while the job is suspended"
    for field in ("artifacts.uri", "artifacts.endpoint")
}
"""Fields of spec that only change while the job is suspended, and what is said of another change: a part of the pods
would write to another bucket than the rest. A block `artifacts` that comes or goes is such a change.
"""


def forbidden_changes(old: Any, new: Any) -> Iterator[Fault]:
    """The faults of an update, given both specs as the API server has them: any JSON, defaults filled in."""
    for field, default in FIXED.items():
        if (_at(old, field) or default) != (_at(new, field) or default):
            yield Fault(f"spec.{field}", fixed(field))
    if _at(old, "runPolicy.suspend") is True:
        return
    for role, message in SIZES.items():
        if _size(old, role) != _size(new, role):
            yield Fault(f"spec.replicaSpecs.{role}.replicas", message)
    for field, message in PLACES.items():
        if _at(old, field) != _at(new, field):
            yield Fault(f"spec.{field}", message)


def fixed(field: str) -> str:
    """What is said of a change of such a field."""
    return f"{field} is immutable"


def _size(spec: Any, role: str) -> Any:
    """The replicas of a role; None where the spec has no entry, and the entry may not come or go."""
    if _at(spec, f"replicaSpecs.{role}") is None:
        return IMPLIED_SIZES.get(role)
    replicas = _at(spec, f"replicaSpecs.{role}.replicas")
    return 1 if replicas is None else replicas


def _at(value: Any, path: str) -> Any:
    """What is at a path; None where there is nothing."""
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value
