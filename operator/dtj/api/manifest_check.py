"""Finds all faults of a manifest at once: those of the schema, and those of rules that only code can check.

The rules are also checked on the parts that the schema accepts, while other parts have faults of the schema.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

from dtj.api.job import MOST_FAULTS, Fault, InvalidJob, Job, Manifest, first_faults, read_job
from dtj.api.nesting import MOST_LEVELS, TOO_DEEP
from dtj.api.places import Place
from dtj.api.shown import key_shown
from dtj.api.spec import ROLES
from dtj.api.strategies import RULES
from dtj.api.validation import faults, host_path_faults

# Values for required fields that can't be read. With these values, rules can check the other fields.
_STAND_INS: Manifest = {"strategy": next(iter(RULES)), "image": "unknown", "replicaSpecs": {}}
# The fields that a rule reads besides the field that the rule reports. Where such a field can't be read, the fault of
# the rule may be false, and is not reported.
_READ_BY = {
    "spec.command": ["spec.args", *(f"spec.replicaSpecs.{role}.template" for role in ROLES)],
    "spec.artifacts": ["spec.artifacts"],
    "spec.runPolicy.schedulingPolicy": ["spec.runPolicy", "spec.replicaSpecs"],
    **{f"spec.replicaSpecs.{role}.resources": ["spec.accelerator.resourceName"] for role in ROLES},
}


# The largest number of keys in the path of a fault about nesting, such as spec.replicaSpecs.worker.template.
_MOST_KEYS = 4
MOST_ENTRIES = 20_000
"""The number of fields and list entries that a job may have, at all depths. It bounds the time of a check."""
TOO_MANY_ENTRIES = Fault(
    "spec",
    f"the job has more than {MOST_ENTRIES} fields and list entries; move large data to a ConfigMap or to the bucket",
)
"""The fault of a job with more than MOST_ENTRIES."""


def check(
    manifest: Mapping[str, Any], host_paths: Sequence[str] | None = None
) -> tuple[Job | None, list[Fault]]:
    """Return the job and its first faults. The job is None where the manifest does not have the resource's form.

    host_paths: the folders of nodes that the operator allows, see `host_path_faults`; None: do not check the folder.
    """
    if (excess := beyond_limits(manifest)) is not None:
        return None, [excess]
    try:
        job = read_job(manifest)
    except InvalidJob as error:
        # With more than MOST_FAULTS faults of the schema, the message has no room for faults of other rules.
        rest = [] if len(error.faults) > MOST_FAULTS else _faults_of_the_rest(manifest, error.faults)
        return None, first_faults([*error.faults, *rest])
    refused = [] if host_paths is None else host_path_faults(job, host_paths)
    return job, first_faults([*faults(job), *refused])


def beyond_limits(manifest: Mapping[str, Any]) -> Fault | None:
    """Return the fault of a job with too many or too deeply nested entries; None for any other job."""
    if _has_more_entries(manifest):
        return TOO_MANY_ENTRIES
    if place := _too_deep(manifest):
        steps = (f"[{key}]" if isinstance(key, int) else f".{key_shown(key)}" for key in place)
        return Fault("".join(steps).removeprefix("."), TOO_DEEP, place)
    return None


def _has_more_entries(manifest: Mapping[str, Any]) -> bool:
    """Whether the job has more than MOST_ENTRIES entries outside its status. The count stops at that number."""
    waiting: list[Any] = [value for key, value in manifest.items() if key not in ("status", "metadata")]
    metadata = manifest.get("metadata")
    if isinstance(metadata, dict):
        waiting += [metadata.get("labels"), metadata.get("annotations")]
    seen = len(manifest)
    while waiting and seen <= MOST_ENTRIES:
        data = waiting.pop()
        if isinstance(data, (dict, list)):
            seen += len(data)
            if seen <= MOST_ENTRIES:
                waiting += data.values() if isinstance(data, dict) else data
    return seen > MOST_ENTRIES


def _too_deep(manifest: Mapping[str, Any]) -> Place:
    """Return the path, at most four keys, to data that is nested deeper than MOST_LEVELS; empty if there is none."""
    place: list[str | int] = []
    inner: Any = {key: value for key, value in manifest.items() if key != "status"}
    for levels in range(MOST_LEVELS - 1, MOST_LEVELS - 1 - _MOST_KEYS, -1):
        entries = inner.items() if isinstance(inner, dict) else enumerate(inner)
        deeper = next((entry for entry in entries if _is_deeper(entry[1], levels)), None)
        if deeper is None:
            break
        place.append(deeper[0])
        inner = deeper[1]
    return tuple(place)


def _is_deeper(data: Any, levels: int) -> bool:
    """Whether lists and maps are nested more than `levels` deep. The outermost list or map counts as one level."""
    layer = [data]
    for _ in range(levels):
        layer = [
            child
            for outer in layer
            if isinstance(outer, (dict, list))
            for child in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not layer:
            return False
    return any(isinstance(child, (dict, list)) for child in layer)


def _faults_of_the_rest(manifest: Mapping[str, Any], unreadable: Sequence[Fault]) -> list[Fault]:
    rest: Manifest = dict(manifest)
    unread: set[str] = set()
    while True:
        left_out: _Tree = {}
        stand_ins: Manifest = {}
        for fault in unreadable:
            place = _judged_without(rest, fault.place)
            if place not in ((), ("spec",)):
                _add(left_out, place)
                unread.add(".".join(map(str, place)))
                continue
            name = fault.field.removeprefix("spec.")
            if name not in _STAND_INS or not isinstance(rest.get("spec"), dict):
                return []
            stand_ins[name] = _STAND_INS[name]
        unread |= {fault.field for fault in unreadable}
        rest = _without(rest, left_out)
        if stand_ins:
            rest["spec"] = {**rest["spec"], **stand_ins}
        try:
            job = read_job(rest)
        except InvalidJob as error:
            if len(error.faults) > MOST_FAULTS:
                return []
            unreadable = error.faults  # The parts that were left out contained required fields.
        else:
            rests_on = _RestsOn(unread)
            rest_faults = _whatever_the_strategy(job) if "spec.strategy" in unread else faults(job)
            return [fault for fault in rest_faults if not rests_on(fault.field)]


def _whatever_the_strategy(job: Job) -> list[Fault]:
    """Return the faults that the job would have with every strategy: spec.strategy itself can't be read."""
    jobs = [replace(job, spec=job.spec.model_copy(update={"strategy": strategy})) for strategy in RULES]
    first, *others = (faults(each) for each in jobs)
    by_every_strategy = set(first).intersection(*others)
    return [fault for fault in first if fault in by_every_strategy]


_Tree = dict[str | int, Any]
"""Keys to remove from nested data. A key maps to the keys to remove below it, or to {} to remove the key itself."""


def _judged_without(rest: Manifest, place: Place) -> Place:
    """Return the path of the part to leave out for a fault: the faulty field, or the object that lacks the field.

    A fault in a list leaves out the whole list: without one entry, the later entries would change their indexes.
    """
    data: Any = rest
    length = 0
    for key in takewhile(lambda key: isinstance(key, str), place):
        if not isinstance(data, dict) or key not in data:
            break
        data = data[key]
        length += 1
    return place[:length]


def _add(tree: _Tree, place: Place) -> None:
    for number, key in enumerate(place):
        if key in tree and not tree[key]:
            return  # An object that contains the place is left out already.
        if number == len(place) - 1:
            tree[key] = {}
        tree = tree.setdefault(key, {})


def _without(data: Manifest, tree: _Tree) -> Manifest:
    return {
        key: _without(value, tree[key]) if tree.get(key) else value
        for key, value in data.items()
        if key not in tree or tree[key]
    }


class _RestsOn:
    """Tells whether a fault of a field may be false because fields that its rule reads were left out."""

    def __init__(self, unread: set[str]) -> None:
        self._unread = unread
        self._around = {outer for field in unread for outer in _around(field)}

    def __call__(self, field: str) -> bool:
        outer = set(_around(field))
        read = (part for start in outer & _READ_BY.keys() for part in _READ_BY[start])
        return not self._unread.isdisjoint(outer) or any(
            part in self._around or not self._unread.isdisjoint(_around(part)) for part in read
        )


def _around(field: str) -> Iterator[str]:
    """Yield a field and the fields that contain it: `spec.env[0].name`, `spec.env[0]`, `spec.env`, `spec`."""
    yield field
    yield from (field[:end] for end, sign in enumerate(field) if sign in ".[")
