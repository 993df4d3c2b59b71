"""YAML documents that know on which line each of their fields is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from dtj.api.errors import Unusable
from dtj.api.job import Fault
from dtj.api.places import Place, place_of


class _Loader(yaml.SafeLoader):
    """YAML as Kubernetes reads it: what looks like a date is text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


@dataclass(frozen=True)
class Document:
    """One document of a file."""

    data: Any
    repeated: tuple[tuple[int, Fault], ...]
    """Keys that are given twice, with the line of the second."""
    node: yaml.Node

    @property
    def line(self) -> int:
        """Where it begins, from 1."""
        return _line(self.node)

    def line_of(self, field: str, place: Place = ()) -> int:
        """The line of a field, from 1; of the nearest one around it where the field is missing.

        place: of the field, where it is known.
        """
        node, line = self.node, self.line
        for key in place or place_of(self.data, field):
            if isinstance(node, yaml.SequenceNode) and isinstance(key, int):
                if key >= len(node.value):
                    break
                node = node.value[key]
                line = _line(node)
            elif isinstance(node, yaml.MappingNode):
                # Keys that `<<` brings come first: the last one is the one that counts.
                found = [pair for pair in node.value if pair[0].value == str(key)]
                if not found:
                    break
                key_node, node = found[-1]
                line = _line(key_node)
        return line


def read_documents(text: str, name: str) -> list[Document]:
    """The documents of a file, of a List its objects; raises Unusable, with the line, where it is no YAML or JSON."""
    documents: list[Document] = []
    try:
        loader = _Loader(_without_tabs(text))
        while loader.check_node():
            node = loader.get_node()
            if node is None:
                continue
            items = _items_of_a_list(node)
            nodes = [node] if items is None else items
            # Before it is constructed: that folds `<<` into the nodes.
            repeated = [tuple(_repeated(part, "", set())) for part in nodes]
            data = loader.construct_document(node)
            parts = [data] if items is None else data["items"]
            documents += map(Document, parts, repeated, nodes)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        said = ", ".join(part for part in (error.context, error.problem) if part)
        raise Unusable(f"{name}{line}: no YAML: {said}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise Unusable(f"{name}: no YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise Unusable(f"{name}: nested too deeply, or a part of it contains itself") from None
    return documents


def _items_of_a_list(node: yaml.Node) -> list[yaml.Node] | None:
    """The objects of a List, as `kubectl get -o yaml` prints several; None where it is none."""
    if not isinstance(node, yaml.MappingNode):
        return None
    fields = {str(key.value): value for key, value in node.value}
    kind, items = fields.get("kind"), fields.get("items")
    if isinstance(items, yaml.SequenceNode) and kind is not None and str(kind.value).endswith("List"):
        return list(items.value)
    return None


def _without_tabs(text: str) -> str:
    """JSON may be indented by tabs, YAML not; a string of JSON has none."""
    if "\t" in text and text.lstrip().startswith("{"):
        try:
            json.loads(text)
        except ValueError:
            return text
        return text.replace("\t", " ")
    return text


def _repeated(node: yaml.Node, path: str, seen: set[int]) -> Iterator[tuple[int, Fault]]:
    if id(node) in seen:
        return  # an alias of what was looked at already
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _repeated(item, f"{path}[{index}]", seen)
    elif isinstance(node, yaml.MappingNode):
        lines: dict[str, int] = {}
        for key, value in node.value:
            name = str(key.value)
            field = f"{path}.{name}" if path else name
            if name in lines and isinstance(key, yaml.ScalarNode):
                yield _line(key), Fault(field, f"given twice, on line {lines[name]} already")
            lines.setdefault(name, _line(key))
            yield from _repeated(value, field, seen)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
