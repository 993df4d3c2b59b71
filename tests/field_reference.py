"""`make crd`: docs/reference.md, every field of a DistributedTrainingJob, from the CRD."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

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
_TABLE = "| field | type | default | description |\n| --- | --- | --- | --- |"
_UNBOUNDED = 2**31
Schema = dict[str, Any]


def reference() -> str:
    """The page."""
    (version,) = yaml.safe_load(CRD.read_text())["spec"]["versions"]
    parts = version["schema"]["openAPIV3Schema"]["properties"]
    spec, status = parts["spec"], parts["status"]
    return "\n".join([_HEAD, *_part("spec", spec), *_rules(spec), *_part("status", status)])


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
