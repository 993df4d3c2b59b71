"""The API server's handling of a CustomResourceDefinition's schema, as far as tests need it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import date
from typing import Any

Schema = dict[str, Any]

# The fields of JSONSchemaProps of apiextensions.k8s.io/v1 that a structural schema may have.
_KEYWORDS = {
    "type", "format", "description", "default", "enum", "nullable", "title",
    "minimum", "maximum", "multipleOf", "minLength", "maxLength", "pattern",
    "minItems", "maxItems", "minProperties", "maxProperties", "items", "properties", "additionalProperties",
    "required", "x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-embedded-resource", "x-kubernetes-list-type", "x-kubernetes-list-map-keys",
    "x-kubernetes-map-type", "x-kubernetes-validations",
}  # fmt: skip
_TYPES = ("object", "array", "string", "integer", "number", "boolean")


def structural_faults(schema: Schema, path: str = "") -> Iterator[str]:
    """Yield the reasons for which an API server would refuse the schema.

    https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/
    """
    for key in schema.keys() - _KEYWORDS:
        yield f"{path}: {key} is not allowed"
    kind = schema.get("type")
    if schema.get("x-kubernetes-int-or-string"):
        if kind is not None:
            yield f"{path}: int-or-string has no type"
    elif kind not in _TYPES and not (kind is None and schema.get("x-kubernetes-preserve-unknown-fields")):
        yield f"{path}: type is {kind!r}"
    if "default" in schema and schema["default"] is None:
        yield f"{path}: default is null"
    if "properties" in schema and "additionalProperties" in schema:
        yield f"{path}: properties and additionalProperties exclude each other"
    if kind == "array" and "items" not in schema:
        yield f"{path}: items are missing"
    for name in schema.get("required", []):
        if name not in schema.get("properties", {}):
            yield f"{path}: required {name} is no property"
    if schema.get("x-kubernetes-list-type") == "map":
        for name in schema.get("x-kubernetes-list-map-keys", [""]):
            item = schema["items"]
            if name not in item.get("required", []) and "default" not in item["properties"].get(name, {}):
                yield f"{path}: list key {name!r} is neither required nor has it a default"
    if "default" in schema:
        for message in schema_faults(schema, schema["default"], path):
            yield f"{path}: default: {message}"
    for name, child in schema.get("properties", {}).items():
        yield from structural_faults(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            if isinstance(schema[key], dict):
                yield from structural_faults(schema[key], f"{path}.{key}")
            else:
                yield f"{path}: {key} is {schema[key]!r}"


def schema_faults(schema: Schema, value: Any, path: str = "") -> Iterator[str]:
    """Yield the API server's messages about an invalid value, with fieldValidation=Strict."""
    name = path or "<nil>"
    if schema.get("x-kubernetes-int-or-string"):
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            said = json.dumps(_type(value))
            yield f"{name}: Invalid value: {said}: {name} in body must be of type integer,string: {said}"
        return
    kind = schema.get("type")
    if kind is not None and not _is(kind, value):
        said = json.dumps(_type(value))
        yield f"{name}: Invalid value: {said}: {name} in body must be of type {kind}: {said}"
        return
    if "enum" in schema and value not in schema["enum"]:
        supported = ", ".join(json.dumps(option) for option in schema["enum"])
        yield f"{name}: Unsupported value: {json.dumps(value)}: supported values: {supported}"
    if isinstance(value, str):
        yield from _string_faults(schema, value, name)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        for key, word, wrong in (("minimum", "greater", -1), ("maximum", "less", 1)):
            if key in schema and (value - schema[key]) * wrong > 0:
                yield (
                    f"{name}: Invalid value: {value}: {name} in body should be {word} than or equal to {schema[key]}"
                )
    elif isinstance(value, list):
        if len(value) > schema.get("maxItems", len(value)):
            yield f"{name}: Too many: {len(value)}: must have at most {schema['maxItems']} items"
        for index, item in enumerate(value):
            yield from schema_faults(schema.get("items", {}), item, f"{path}[{index}]")
        yield from _duplicates(schema, value, name)
    elif isinstance(value, dict):
        yield from _object_faults(schema, value, path)


def _duplicates(schema: Schema, value: list[Any], name: str) -> Iterator[str]:
    """Yield the entries of a list-map that have the keys of an earlier one."""
    seen: list[dict[str, Any]] = []
    if schema.get("x-kubernetes-list-type") == "map":
        for index, item in enumerate(value):
            keys = {
                key: item.get(key) for key in schema["x-kubernetes-list-map-keys"] if isinstance(item, dict)
            }
            if keys in seen:
                yield f"{name}[{index}]: Duplicate value: {json.dumps(keys)}"
            seen.append(keys)


def _string_faults(schema: Schema, value: str, name: str) -> Iterator[str]:
    if len(value) > schema.get("maxLength", len(value)):
        yield f"{name}: Too long: may not be longer than {schema['maxLength']}"
    if len(value) < schema.get("minLength", 0):
        yield (
            f"{name}: Invalid value: {json.dumps(value)}: {name} in body should be at least "
            f"{schema['minLength']} chars long"
        )
    if schema.get("format") == "date-time" and not _is_date_time(value):
        yield (
            f"{name}: Invalid value: {json.dumps(value)}: {name} in body must be of type date-time: "
            f"{json.dumps(value)}"
        )
    if "pattern" in schema and not re.search(schema["pattern"], value):
        yield f"{name}: Invalid value: {json.dumps(value)}: {name} in body should match '{schema['pattern']}'"
    for rule in schema.get("x-kubernetes-validations", ()):
        if (pattern := matched(rule["rule"])) is None:
            raise ValueError(f"{name}: a rule of a string that this double can't judge: {rule['rule']}")
        if not re.search(pattern, value):
            yield f"{name}: Invalid value: {rule['message']}"


def matched(rule: str) -> str | None:
    """The pattern that a rule in CEL asks for, if it asks for nothing else."""
    found = re.fullmatch(r'self\.matches\(r"([^"]*)"\)', rule)
    return found and found[1]


def _is_date_time(value: str) -> bool:
    """As `IsDateTime` of go-openapi/strfmt, by which API servers judge the format."""
    day, _, time = value.lower().partition("t")
    try:
        date.fromisoformat(day)
    except ValueError:
        return False
    found = re.fullmatch(r"([0-9]{2}):([0-9]{2}):([0-9]{2})(.[0-9]+)?(z|[+-][0-9]{2}:[0-9]{2})", time)
    return len(day) == len("2026-01-01") and found is not None and found.group(1, 2, 3) <= ("23", "59", "59")


def _object_faults(schema: Schema, value: dict[str, Any], path: str) -> Iterator[str]:
    properties, dot = schema.get("properties", {}), f"{path}." if path else ""
    for name in schema.get("required", []):
        if value.get(name) is None and "default" not in properties[name]:
            yield f"{dot}{name}: Required value"
    if len(value) > schema.get("maxProperties", len(value)):
        yield f"{path}: Too many: {len(value)}: must have at most {schema['maxProperties']} items"
    for name, child in value.items():
        if name in properties:
            if child is not None:  # The API server prunes null values.
                yield from schema_faults(properties[name], child, f"{dot}{name}")
        elif isinstance(schema.get("additionalProperties"), dict):
            yield from schema_faults(schema["additionalProperties"], child, f"{dot}{name}")
        elif not schema.get("x-kubernetes-preserve-unknown-fields") and (dot or name != "metadata"):
            if path == "metadata":
                continue
            yield f'unknown field "{dot}{name}"'


def with_defaults(schema: Schema, value: Any) -> Any:
    """The value as the API server stores it."""
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        result = {k: with_defaults(properties.get(k, {}), v) for k, v in value.items() if v is not None}
        for name, child in properties.items():
            if name not in result and "default" in child:
                result[name] = with_defaults(child, child["default"])
        return result
    if isinstance(value, list):
        return [with_defaults(schema.get("items", {}), item) for item in value]
    return value


def _is(kind: str, value: Any) -> bool:
    match kind:
        case "object":
            return isinstance(value, dict)
        case "array":
            return isinstance(value, list)
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
        case _:
            return isinstance(value, (int, float)) and not isinstance(value, bool)


def _type(value: Any) -> str:
    names = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}
    return names.get(type(value), "null")
