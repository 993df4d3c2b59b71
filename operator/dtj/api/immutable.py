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
    for role, name in (("worker", "workers"), ("ps", "parameter servers"))
}


def forbidden_changes(old: Any, new: Any) -> Iterator[Fault]:
    """The faults of an update, given both specs as the API server has them: any JSON, defaults filled in."""
    for field, default in FIXED.items():
        if (_at(old, field) or default) != (_at(new, field) or default):
            yield Fault(f"spec.{field}", fixed(field))
    for role, message in SIZES.items():
        there, wanted = _at(old, f"replicaSpecs.{role}"), _at(new, f"replicaSpecs.{role}")
        if there is None or wanted is None or _at(old, "runPolicy.suspend") is True:
            continue
        if _at(there, "replicas") != _at(wanted, "replicas"):
            yield Fault(f"spec.replicaSpecs.{role}.replicas", message)


def fixed(field: str) -> str:
    """What is said of a change of such a field."""
    return f"{field} is immutable"


def _at(value: Any, path: str) -> Any:
    """What is at a path; None where there is nothing."""
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value
