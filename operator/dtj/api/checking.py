"""Every fault of a manifest at once: those of its form, and those only code can say of what can still be read."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from itertools import takewhile
from typing import Any

from dtj.api.job import Fault, InvalidJob, Job, Manifest, read_job
from dtj.api.places import place_of
from dtj.api.spec import ROLES
from dtj.api.validation import faults

# What stands in for a required field that can't be read, so that the others can be judged.
_STAND_INS: Manifest = {"image": "unknown", "replicaSpecs": {}}
# What rules read besides the field that they complain of: nothing is said on the ground of a part that is left out.
_READ_BY = {
    "spec.command": ["spec.args", *(f"spec.replicaSpecs.{role}.template" for role in ROLES)],
    "spec.artifacts": ["spec.artifacts"],
    "spec.runPolicy.schedulingPolicy": ["spec.runPolicy", "spec.replicaSpecs"],
    **{f"spec.replicaSpecs.{role}.resources": ["spec.accelerator.resourceName"] for role in ROLES},
}


def check(manifest: Mapping[str, Any]) -> tuple[Job | None, list[Fault]]:
    """The job, None where it has not the resource's form, and every fault of it."""
    try:
        job = read_job(manifest)
    except InvalidJob as error:
        return None, error.faults + _faults_of_the_rest(manifest, error.faults)
    return job, faults(job)


def _faults_of_the_rest(manifest: Mapping[str, Any], found: list[Fault]) -> list[Fault]:
    rest: Manifest = copy.deepcopy(dict(manifest))
    unread: set[str] = set()
    while True:
        left_out: set[str] = set()
        for fault in found:
            if not any(_within(fault.field, gone) for gone in left_out):
                gone = _leave_out(rest, fault.field)
                if gone is None:
                    return []
                left_out.add(gone)
        unread |= left_out.union(fault.field for fault in found)
        try:
            job = read_job(rest)
        except InvalidJob as error:
            found = error.faults  # what was left out is missing now
        else:
            return [fault for fault in faults(job) if not _rests_on(fault.field, unread)]


def _leave_out(rest: Manifest, field: str) -> str | None:
    """Take a field away, or that in which it is missing, and say which; None where nothing could be judged then."""
    place = place_of(rest, field)
    # Of a list all is taken: a shorter one would count its entries otherwise.
    place = tuple(takewhile(lambda key: isinstance(key, str), place))
    if place in ((), ("spec",)):
        name = field.removeprefix("spec.")
        if name not in _STAND_INS or not isinstance(rest.get("spec"), dict):
            return None
        rest["spec"][name] = copy.deepcopy(_STAND_INS[name])
        return field
    parent: Any = rest
    for key in place[:-1]:
        parent = parent[key]
    del parent[place[-1]]
    return ".".join(map(str, place))


def _rests_on(field: str, unread: set[str]) -> bool:
    """Whether a fault of a field may only be there because others were left out."""
    read = [part for start, parts in _READ_BY.items() if _within(field, start) for part in parts]
    return any(
        _within(field, gone) or any(_within(part, gone) or _within(gone, part) for part in read)
        for gone in unread
    )


def _within(field: str, outer: str) -> bool:
    return field == outer or field.startswith((f"{outer}.", f"{outer}["))
