"""The values of the chart: the comments in values.yaml as a table and as a schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from tests.chart.helm import CHART

VALUES = CHART / "values.yaml"


@dataclass(frozen=True)
class Value:
    """One value that a user may set."""

    path: tuple[str, ...]
    default: Any
    text: str
    """What its comment says."""

    @property
    def name(self) -> str:
        return ".".join(self.path)


def values() -> list[Value]:
    """Every value that has a comment, in the file's order; AssertionError for one without."""
    text = VALUES.read_text()
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    return list(_values(root, (), text.splitlines()))


def _values(mapping: yaml.MappingNode, above: tuple[str, ...], lines: list[str]) -> Iterator[Value]:
    for key, node in mapping.value:
        path = (*above, key.value)
        said = _comment(lines, key.start_mark.line)
        if said:
            default = yaml.safe_load(yaml.serialize(node))
            yield Value(path, default, said)
        else:
            assert isinstance(node, yaml.MappingNode), f"{'.'.join(path)} has no comment"
            assert node.value, f"{'.'.join(path)} has no comment"
            yield from _values(node, path, lines)


def _comment(lines: list[str], line: int) -> str:
    """The comment that ends in the line above."""
    first = line
    while first and lines[first - 1].lstrip().startswith("#"):
        first -= 1
    return " ".join(text.strip().removeprefix("#").strip() for text in lines[first:line])


def table() -> str:
    """The table of the README."""
    rows = ["| value | default | what it is |", "| --- | --- | --- |"]
    for value in values():
        default = json.dumps(value.default).replace("|", "\\|")
        rows.append(f"| `{value.name}` | `{default}` | {value.text.replace('|', chr(92) + '|')} |")
    return "\n".join(rows) + "\n"


def described(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with each value's text as its description, for editors."""
    for value in values():
        node = schema
        for name in value.path:
            node = node["properties"][name]
        if "$ref" in node and "allOf" not in node:
            # Beside a $ref, draft 7 reads nothing.
            node["allOf"] = [{"$ref": node.pop("$ref")}]
        node["description"] = value.text
    return schema
