"""`make crd`: docs/reference.md, with the fields of a DistributedTrainingJob, conditions and reasons."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterator
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from dtj.api.reasons import Reason
from dtj.api.status import ConditionType

ROOT = Path(__file__).parents[1]
CRD = ROOT / "manifests/crd/distributedtrainingjobs.yaml"
PAGE = ROOT / "docs/reference.md"
_HEAD = """\
# Fields of a DistributedTrainingJob

`make crd` writes this page from [the CRD](../manifests/crd/distributedtrainingjobs.yaml). On a cluster,
`kubectl explain dtj.spec.runPolicy` prints the same descriptions.

- [Run a job](using.md) begins with a job file. [run-policy.md](run-policy.md) explains `spec.runPolicy`.
- A field without a default may be left out, unless it is required. Times are RFC 3339 in UTC.
- Write a quantity that is not a whole number as a string: `cpu: "0.5"` or `cpu: 500m`.
"""
_REASONS = """\
Conditions and events have these reasons. `Running` may have another one: a word of the kubelet or of the API
server, or one of the [failure classes](troubleshooting.md#failure-classes).

"""
_TABLE = "| field | type | default | description |\n| --- | --- | --- | --- |"
_UNBOUNDED = 2**31
Schema = dict[str, Any]


def reference() -> str:
    """The page."""
    (version,) = yaml.safe_load(CRD.read_text())["spec"]["versions"]
    parts = version["schema"]["openAPIV3Schema"]["properties"]
    spec, status = parts["spec"], parts["status"]
    words = [*_words("Conditions", "type", ConditionType), *_words("Reasons", "reason", Reason, _REASONS)]
    return "\n".join([_HEAD, *_part("spec", spec), *_rules(spec), *_part("status", status), *words])


def _part(name: str, schema: Schema) -> Iterator[str]:
    """A table of the fields of spec or status, then a section for each field that has fields."""
    yield f"## {name}\n\n{schema['description']}\n\n{_TABLE}"
    for field, inner in schema["properties"].items():
        yield _row(field, inner, field in schema.get("required", ()))
    for field, inner in schema["properties"].items():
        rows = list(_rows("", inner))
        if rows:
            yield f"\n### {name}.{field}\n\n{inner['description']}\n\n{_TABLE}"
            yield from rows
    yield ""


def _rows(path: str, schema: Schema) -> Iterator[str]:
    """The fields below an object, a list of objects or a map of objects."""
    inner = schema.get("items") or schema.get("additionalProperties") or schema
    for field, each in inner.get("properties", {}).items():
        below = f"{path}{field}"
        yield _row(below, each, field in inner.get("required", ()))
        yield from _rows(f"{below}[]." if "items" in each else f"{below}.", each)


def _words(title: str, what: str, words: type[StrEnum], text: str = "") -> Iterator[str]:
    """A table of the members of an enum, each with its docstring."""
    yield f"## {title}\n\n{text}| {what} | meaning |\n| --- | --- |"
    meanings = member_docstrings(words)
    yield from (f"| `{word}` | {meanings[word.name]} |" for word in words)
    yield ""


def member_docstrings(words: type[StrEnum]) -> dict[str, str]:
    """The docstring below each member of an enum, by the member's name."""
    (body,) = ast.parse(inspect.getsource(words)).body
    assert isinstance(body, ast.ClassDef)
    return {
        member.targets[0].id: " ".join(text.value.value.split())
        for member, text in pairwise(body.body)
        if isinstance(member, ast.Assign)
        and isinstance(member.targets[0], ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def _rules(spec: Schema) -> Iterator[str]:
    yield "## Changes that the API server refuses\n"
    for rule in spec["x-kubernetes-validations"]:
        yield f"- {rule['message']}"
    yield "\nKubernetes 1.25 and newer check these rules.\n"


def _row(path: str, schema: Schema, required: bool) -> str:
    default = f"`{json.dumps(schema['default'])}`" if "default" in schema else ""
    cells = [f"`{path}`", _type(schema), "required" if required else default, schema.get("description", "")]
    return "| " + " | ".join(cell.replace("|", "\\|").replace("<", "\\<") for cell in cells) + " |"


def _type(schema: Schema) -> str:
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("x-kubernetes-int-or-string"):
        return "quantity"
    if schema["type"] == "array":
        return f"list of {_type(schema['items'])}"
    values = schema.get("additionalProperties")
    if isinstance(values, dict):
        return f"map of {_type(values)}"
    kind: str = "time" if schema.get("format") == "date-time" else schema["type"]
    return kind + _range(schema)


def _range(schema: Schema) -> str:
    low, high = schema.get("minimum"), schema.get("maximum", _UNBOUNDED)
    if low is None:
        return ""
    return f", {low} or more" if high >= _UNBOUNDED else f", {low} to {high}"


if __name__ == "__main__":
    PAGE.write_text(reference())
