"""The fields of a stored job that an update may not change.

The CRD has the same rules in CEL. The webhook uses this module, since API servers older than 1.25 do not know CEL.
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
"""The immutable fields of spec, each with the value that a missing field stands for."""
SIZES = {
    role: f"the number of {name} can only be changed while the job is suspended"
    for role, name in (
        ("worker", "workers"),
        ("ps", "parameter servers"),
        ("chief", "chiefs"),
        ("master", "masters"),
    )
}
"""Roles whose number of replicas may change only while the job is suspended, with the message for any other change.
To add or remove a role is a change of its number, unless IMPLIED_SIZES has the role.
"""
IMPLIED_SIZES = {"chief": 1, "master": 0}
"""The number of replicas that a role without an entry has. A user may add or remove an entry with this number."""
PLACES = {
    field: f"{field} can only be changed while the job is suspended"
    for field in ("artifacts.uri", "artifacts.endpoint")
}
"""Fields of spec that may change only while the job is suspended, with the message for any other change. In a running
job, some pods would write to the old bucket and some to the new one. To add or remove `artifacts` is such a change.
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
    """Return the message for a change of an immutable field."""
    return f"{field} is immutable"


def _size(spec: Any, role: str) -> Any:
    """Return the replicas of a role, or IMPLIED_SIZES' number for a role without an entry; None if it has neither."""
    if _at(spec, f"replicaSpecs.{role}") is None:
        return IMPLIED_SIZES.get(role)
    replicas = _at(spec, f"replicaSpecs.{role}.replicas")
    return 1 if replicas is None else replicas


def _at(value: Any, path: str) -> Any:
    """Return the value at a path of nested maps; None if a map lacks the key."""
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value
