"""Kubernetes' own schema of pods, for what users write of a pod: which fields there are, and of which type.

pod_schema.json has every field that the oldest or the newest supported Kubernetes knows. `make pod-schema` writes it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from dtj.api.job import MOST_FAULTS, Fault, unknown_field
from dtj.api.shown import is_text, key_shown, shown

QUANTITY = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?")
"""A quantity as Kubernetes writes it."""
Given = Mapping[str, Any]
"""What is there already where a template is merged in: of an object its fields, of a list its entries by the value of
their merge key.
"""
# The fields of which Kubernetes takes one alone, although its schema does not say so. None: all fields of the object.
_ONE_OF: Mapping[str, tuple[str, ...] | None] = {
    "EnvVar": ("value", "valueFrom"),
    "EnvVarSource": None,
    "LifecycleHandler": None,
    "Probe": ("exec", "grpc", "httpGet", "tcpSocket"),
    "Volume": None,
}
# Objects that need such a field. A volume without a source is an emptyDir, and a variable without a value is empty.
_NEEDS_ONE = ("EnvVarSource", "LifecycleHandler", "Probe")
_BITS = {"int32": 31, "int64": 63}
# As in `dtj.plan.merge`, of the lists in which the operator has entries.
_MERGE_KEYS = {"containers": "name", "volumes": "name", "volumeMounts": "mountPath", "env": "name"}
_CALLED_BY_NAME = ("containers", "initContainers")
_NOTHING: Given = {}


def pod_faults(kind: str, value: Any, path: str, given: Given = _NOTHING) -> Iterator[Fault]:
    """What Kubernetes would refuse in a value, by its schema.

    kind: a name of the schema, such as PodSpec. path: of the value, for messages. given: what the value is merged
    over, where no field is required again.
    """
    yield from _Walk().look(kind, value, path, given)


@cache
def one_of(kind: str) -> tuple[str, ...]:
    """Return the fields of an object of this kind of which Kubernetes takes one alone."""
    if kind not in _ONE_OF:
        return ()
    return _ONE_OF[kind] or tuple(sorted(set(_definition(kind)[0]) - {"name"}))


class _Walk:
    """One look at one value. Fields are compared with known ones only for the first faults: that takes long."""

    def __init__(self) -> None:
        self._unknown = 0

    def look(self, kind: str, value: Any, path: str, given: Given = _NOTHING) -> Iterator[Fault]:
        if kind[0] == "[":
            yield from self._list(kind[1:-1], value, path, given)
        elif kind[0] == "{":
            yield from self._map(kind[1:-1], value, path)
        elif kind[0].isupper() and "|" not in kind:
            yield from self._object(kind, value, path, given)
        elif (wrong := _wrong(kind, value)) is not None:
            yield Fault(path, wrong)

    def _object(self, kind: str, value: Any, path: str, given: Given) -> Iterator[Fault]:
        if not isinstance(value, dict):
            yield Fault(path, f"must be an object, got {shown(value)}")
            return
        fields, required = _definition(kind)
        for key, child in value.items():
            known = fields.get(key)
            if known is None:
                yield Fault(f"{path}.{key_shown(key)}", self._unknown_field(key, fields))
            elif child is not None:
                # null is as if the field were not given: it takes away what the operator has there.
                inner = given.get(key)
                yield from self.look(
                    known, child, f"{path}.{key}", inner if isinstance(inner, dict) else _NOTHING
                )
        for key in required:
            if value.get(key) is None and (key not in given or key in value):
                yield Fault(f"{path}.{key}", "required")
        if kind in _ONE_OF and (wrong := _together(kind, value, given)) is not None:
            yield Fault(path, wrong)

    def _unknown_field(self, key: Any, fields: Iterable[str]) -> str:
        self._unknown += 1
        return unknown_field(str(key), fields if self._unknown <= MOST_FAULTS else ())

    def _map(self, kind: str, value: Any, path: str) -> Iterator[Fault]:
        if not isinstance(value, dict):
            yield Fault(path, f"must be an object, got {shown(value)}")
            return
        for key, child in value.items():
            where = f"{path}[{key_shown(key)}]"
            if not is_text(key):
                yield Fault(where, f"the key must be a string, got {shown(key)}")
            elif child is not None:
                yield from self.look(kind, child, where)

    def _list(self, kind: str, value: Any, path: str, given: Given) -> Iterator[Fault]:
        if not isinstance(value, list):
            yield Fault(path, f"must be a list of {_many(kind)}, got {shown(value)}")
            return
        field = path.rsplit(".", 1)[-1]
        merge_key = _MERGE_KEYS.get(field)
        for index, entry in enumerate(value):
            name = entry.get("name") if field in _CALLED_BY_NAME and isinstance(entry, dict) else None
            where = f"{path}[{key_shown(name) if isinstance(name, str) and name else index}]"
            merge_value = entry.get(merge_key) if given and merge_key and isinstance(entry, dict) else None
            inner = given.get(merge_value) if isinstance(merge_value, str) else None
            yield from self.look(kind, entry, where, inner if isinstance(inner, dict) else _NOTHING)


def _together(kind: str, value: Mapping[str, Any], given: Given) -> str | None:
    """Return which fields Kubernetes does not take together, or which it needs one of; None if nothing is wrong."""
    fields = one_of(kind)
    # An empty value of a variable is as if it were not given.
    chosen = sorted(field for field, child in value.items() if field in fields and child not in (None, ""))
    if len(chosen) > 1:
        return f"give one of {_listed(chosen)}, not {len(chosen)}"
    if chosen or kind not in _NEEDS_ONE or any(field in given and field not in value for field in fields):
        return None
    misspelt = set(value).difference(_definition(kind)[0])
    return None if misspelt else f"needs one of {_listed(fields)}"


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _wrong(kind: str, value: Any) -> str | None:
    """What is wrong with a value that has no fields; None where nothing is."""
    if kind in _BITS:
        if not _is_whole(value):
            return f"must be a whole number, got {shown(value)}"
        return None if -(2 ** _BITS[kind]) <= value < 2 ** _BITS[kind] else f"is out of range: {shown(value)}"
    if kind == "boolean":
        return None if isinstance(value, bool) else f"must be true or false, got {shown(value)}"
    if kind == "quantity":
        is_one = isinstance(value, (int, float, str)) and not isinstance(value, bool)
        return (
            None
            if is_one and QUANTITY.fullmatch(str(value))
            else (f"{shown(value)} is not a quantity such as 2, 500m or 4Gi")
        )
    if kind == "int-or-string":
        return (
            None
            if is_text(value) or _is_whole(value)
            else (f"must be a whole number or a string, got {shown(value)}")
        )
    if kind == "object":
        return None if isinstance(value, dict) else f"must be an object, got {shown(value)}"
    if not is_text(value):
        return f"must be a string, got {shown(value)}"
    values = kind.split("|")
    if len(values) == 1 or value in ("", *values):
        return None
    return f"{shown(value)} is none of {', '.join(values[:-1])} and {values[-1]}"


def _is_whole(value: Any) -> bool:
    """As the API server has it: no truth value, but 2.0 is 2."""
    return not isinstance(value, bool) and (
        isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    )


def _many(kind: str) -> str:
    return {"string": "strings", "int32": "whole numbers", "int64": "whole numbers"}.get(kind, "objects")


@cache
def _definition(name: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """The fields of an object with their types, and those that are required."""
    written = _definitions()[name]
    return (
        {field.removesuffix("!"): kind for field, kind in written.items()},
        tuple(field.removesuffix("!") for field in written if field.endswith("!")),
    )


@cache
def _definitions() -> dict[str, dict[str, str]]:
    definitions: dict[str, dict[str, str]] = json.loads(
        files("dtj.api").joinpath("pod_schema.json").read_text(encoding="utf-8")
    )["definitions"]
    return definitions
