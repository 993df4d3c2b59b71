"""Every fault of a manifest at once: those of its form, and those only code can say of what can still be read."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

from dtj.api.data_rules import host_path_faults
from dtj.api.job import MOST_FAULTS, Fault, InvalidJob, Job, Manifest, first_faults, read_job
from dtj.api.nesting import MOST_LEVELS, TOO_DEEP
from dtj.api.places import Place
from dtj.api.shown import key_shown
from dtj.api.spec import ROLES
from dtj.api.strategies import RULES
from dtj.api.validation import faults

# What stands in for a required field that can't be read, so that the others can be judged.
_STAND_INS: Manifest = {"strategy": next(iter(RULES)), "image": "unknown", "replicaSpecs": {}}
# What rules read besides the field that they complain of: nothing is said on the ground of a part that is left out.
_READ_BY = {
    "spec.command": ["spec.args", *(f"spec.replicaSpecs.{role}.template" for role in ROLES)],
    "spec.artifacts": ["spec.artifacts"],
    "spec.runPolicy.schedulingPolicy": ["spec.runPolicy", "spec.replicaSpecs"],
    **{f"spec.replicaSpecs.{role}.resources": ["spec.accelerator.resourceName"] for role in ROLES},
}


# In the path of a fault of nesting: spec, replicaSpecs, worker, template.
_MOST_KEYS = 4
MOST_ENTRIES = 20_000
"""The number of fields and list entries that a job may have, at all depths. It bounds the time of a check."""


def check(
    manifest: Mapping[str, Any], host_paths: Sequence[str] | None = None
) -> tuple[Job | None, list[Fault]]:
    """Return the job and its first faults. The job is None where the manifest does not have the resource's form.

    host_paths: see `host_path_faults`; None: any, where nobody knows what the operator allows.
    """
    if (excess := beyond_limits(manifest)) is not None:
        return None, [excess]
    try:
        job = read_job(manifest)
    except InvalidJob as error:
        # Report the faults of the rest later: so many faults need mending first.
        rest = [] if len(error.faults) > MOST_FAULTS else _faults_of_the_rest(manifest, error.faults)
        return None, first_faults([*error.faults, *rest])
    refused = [] if host_paths is None else host_path_faults(job, host_paths)
    return job, first_faults([*faults(job), *refused])


def beyond_limits(manifest: Mapping[str, Any]) -> Fault | None:
    """Return the fault of a job with too many or too deeply nested entries; None for any other job."""
    if _has_more_entries(manifest):
        message = f"the job has more than {MOST_ENTRIES} fields and entries of lists"
        return Fault("spec", f"{message}; keep what is so large in a ConfigMap or in the bucket")
    if place := _too_deep(manifest):
        steps = (f"[{key}]" if isinstance(key, int) else f".{key_shown(key)}" for key in place)
        return Fault("".join(steps).removeprefix("."), TOO_DEEP, place)
    return None


def _has_more_entries(manifest: Mapping[str, Any]) -> bool:
    """Whether the job has more than MOST_ENTRIES, its status not counted. Counting stops at that number."""
    waiting: list[Any] = [value for key, value in manifest.items() if key not in ("status", "metadata")]
    metadata = manifest.get("metadata")
    if isinstance(metadata, dict):
        waiting += [metadata.get("labels"), metadata.get("annotations")]
    seen = len(manifest)
    while waiting and seen <= MOST_ENTRIES:
        children = _children(waiting.pop())
        seen += len(children)
        if seen <= MOST_ENTRIES:
            waiting += children
    return seen > MOST_ENTRIES


def _too_deep(manifest: Mapping[str, Any]) -> Place:
    """Where in a job its author wrote more than MOST_LEVELS, in four keys at most; empty where nowhere."""
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
    """Whether more lists and maps than so many are in one another; data itself counts as one."""
    layer = [data]
    for _ in range(levels):
        layer = [child for outer in layer for child in _children(outer)]
        if not layer:
            return False
    return any(isinstance(child, (dict, list)) for child in layer)


def _children(data: Any) -> Collection[Any]:
    return data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()


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
            unreadable = error.faults  # required fields among those that were left out
        else:
            rests_on = _RestsOn(unread)
            rest_faults = _whatever_the_strategy(job) if "spec.strategy" in unread else faults(job)
            return [fault for fault in rest_faults if not rests_on(fault.field)]


def _whatever_the_strategy(job: Job) -> list[Fault]:
    """The faults that a job has by each strategy."""
    jobs = [replace(job, spec=job.spec.model_copy(update={"strategy": strategy})) for strategy in RULES]
    first, *others = (faults(each) for each in jobs)
    return [fault for fault in first if all(fault in other for other in others)]


_Tree = dict[str | int, Any]
"""What is left out of data: for each key, what is left out below it. Below a key that is left out itself: nothing."""


def _judged_without(rest: Manifest, place: Place) -> Place:
    """What to leave out for a fault at a place: what is there, or that in which it is missing.

    Of a list all is left out: a shorter one would count its entries otherwise.
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
            return  # it is left out with that around it
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
    """Whether a fault of a field may only be there because others were left out."""

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
    """A field and all those around it: `spec.env[0].name`, `spec.env[0]`, `spec.env`, `spec`."""
    yield field
    yield from (field[:end] for end, sign in enumerate(field) if sign in ".[")
