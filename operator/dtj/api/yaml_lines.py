"""YAML documents that know on which line each of their fields is.

They are read as sigs.k8s.io/yaml reads them for Kubernetes: `y` is true, `1:30` and a date are text. What Kubernetes
refuses is refused. The size of a file is limited with its aliases written out: a few aliases of aliases can stand for
more than the memory of a machine.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from dtj.api.errors import Unusable
from dtj.api.job import Fault
from dtj.api.nesting import MOST_LEVELS, TOO_DEEP
from dtj.api.places import Place, place_of
from dtj.api.shown import key_shown, shown
from dtj.api.yaml_types import BOOL, FLOAT, IMPLICIT, INT, NULL, STR, TAG, TRUE

try:
    from yaml import CSafeLoader as _SafeLoader
except ImportError:  # PyYAML without libyaml
    from yaml import SafeLoader as _SafeLoader  # type: ignore[assignment]

MOST_BYTES = 4 << 20
"""Of a file. The API server takes no object of more than 1.5 MiB."""
_MOST_WRITTEN_OUT = 16 << 20
_OF_A_VALUE = 20
"""So many bytes each value counts besides its text."""
_SURROGATES = re.compile(r"((?<!\\)(?:\\\\)*)(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})")


class _Unfit(yaml.constructor.ConstructorError):
    """What is YAML, and nothing that Kubernetes reads."""


class _Loader(_SafeLoader):
    """Makes of each value what sigs.k8s.io/yaml makes of it."""

    yaml_implicit_resolvers: dict[str, Any] = {}
    yaml_constructors = {
        tag: constructor
        for tag, constructor in _SafeLoader.yaml_constructors.items()
        if tag in (STR, TAG + "seq", TAG + "map")
    }


def _value(word: str, read: Callable[[str], Any]) -> Callable[[_Loader, yaml.Node], Any]:
    """What makes a value of a node with a tag of its own, or of one that looks like it. word: what it has to be."""

    def construct(loader: _Loader, node: yaml.Node) -> Any:
        text = loader.construct_scalar(node)  # type: ignore[arg-type]
        resolved = loader.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
        try:
            if resolved == node.tag or (resolved, node.tag) == (INT, FLOAT):
                return read(text)
        except (ValueError, OverflowError):
            pass  # _unfit below reports it
        raise _unfit(node, f"{shown(text)} is no {word}")

    return construct


def _whole_number(text: str) -> int:
    number = int(re.sub("^([-+]?)0(?=[0-7])", r"\g<1>0o", text.replace("_", "")), 0)
    if not -(1 << 63) <= number < 1 << 64:
        raise ValueError
    return number


def _fraction(text: str) -> float:
    number = float(text.replace("_", ""))
    if not math.isfinite(number):
        raise ValueError
    return number


def _unknown(_: _Loader, node: yaml.Node) -> None:
    tag = node.tag.replace(TAG, "!!", 1)
    raise _unfit(
        node, f"{tag:.200}: Kubernetes takes no tag but !!str, !!int, !!float, !!bool, !!null, !!seq, !!map"
    )


def _unfit(place: yaml.Node | yaml.Event, problem: str) -> _Unfit:
    return _Unfit(None, None, problem, place.start_mark)  # type: ignore[arg-type]


for _tag, _pattern, _first in IMPLICIT:
    _Loader.add_implicit_resolver(_tag, _pattern, _first)
_Loader.add_constructor(
    BOOL, _value("truth value: true or false", lambda text: re.fullmatch(TRUE, text) is not None)
)
_Loader.add_constructor(NULL, _value("null", lambda _: None))
_Loader.add_constructor(INT, _value("whole number of 64 bits", _whole_number))
_Loader.add_constructor(FLOAT, _value("number that JSON has", _fraction))
_Loader.add_constructor(None, _unknown)


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
                # Keys that `<<` merges in come first, and the last pair of a key wins.
                pairs = [pair for pair in node.value if pair[0].value == str(key)]
                if not pairs:
                    break
                key_node, node = pairs[-1]
                line = _line(key_node)
        return line


def first_object(text: str, name: str) -> dict[str, Any] | None:
    """Return the first object of a file; None without one. Raises Unusable, as `read_documents`."""
    return next(
        (document.data for document in read_documents(text, name) if isinstance(document.data, dict)), None
    )


def read_documents(text: str, name: str) -> list[Document]:
    """The documents of a file, of a List its objects; raises Unusable, with the line, where it can't be read."""
    documents: list[Document] = []
    try:
        if len(text) > MOST_BYTES:
            raise too_large(name)
        text = _yaml_of(text)
        _limit(text)
        loader = _Loader(text)
        while loader.check_node():
            node = loader.get_node()
            if node is None:
                continue
            _write_keys_as_text(loader, node)
            items = _items_of_a_list(node)
            nodes = [node] if items is None else items
            # Before it is constructed: that folds `<<` into the nodes.
            repeated = [tuple(_repeated(part, "", set())) for part in nodes]
            data = loader.construct_document(node)
            parts = [data] if items is None else data["items"]
            documents += map(Document, parts, repeated, nodes)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        # The end is on the line after the last one.
        line = f":{min(mark.line, text.rstrip().count(chr(10))) + 1}" if mark else ""
        said = ", ".join(part for part in (error.context, error.problem) if part)
        raise Unusable(f"{name}{line}: {'' if isinstance(error, _Unfit) else 'no YAML: '}{said}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise Unusable(f"{name}: no YAML: {' '.join(str(error).split())}") from None
    return documents


def too_large(name: str) -> Unusable:
    """The fault of a file with more than MOST_BYTES."""
    return Unusable(
        f"{name}: larger than {MOST_BYTES >> 20} MiB", "a job is smaller; give a file with it and little else"
    )


def _limit(text: str) -> None:
    """Raise _Unfit for what is too deep, or too large with its aliases written out; before anything is made of it."""
    anchors: dict[str, int | None] = {}
    """The size of each; None while it is open."""
    around: list[tuple[str | None, int]] = []
    """The anchor of each list and map around, and the size before it."""
    size = 0
    for event in yaml.parse(text, _Loader):
        anchor = getattr(event, "anchor", None)
        match event:
            case yaml.DocumentStartEvent():
                anchors = {}
            case yaml.AliasEvent():
                size += _aliased(event, anchors.get(str(anchor), 0))
            case yaml.ScalarEvent():
                of_value = _OF_A_VALUE + len(event.value)
                size += of_value
                if anchor:
                    anchors[anchor] = of_value
            case yaml.CollectionStartEvent():
                around.append((anchor, size))
                if anchor:
                    anchors[anchor] = None
                size += _OF_A_VALUE
            case yaml.CollectionEndEvent():
                anchor, before = around.pop()
                if anchor:
                    anchors[anchor] = size - before
        if len(around) > MOST_LEVELS:
            raise _unfit(event, TOO_DEEP)
        if size > _MOST_WRITTEN_OUT:
            raise _unfit(
                event, "too large: the file up to here is too much for a job, its aliases written out"
            )


def _aliased(alias: yaml.AliasEvent, size: int | None) -> int:
    """Return the size of the value for which an alias stands. size: None while the value is not complete."""
    if size is None:
        raise _unfit(alias, f"*{alias.anchor} is a part of itself")
    return size


def _write_keys_as_text(loader: _Loader, root: yaml.Node) -> None:
    """As Kubernetes does with the keys `1` and `y`; null is no key."""
    seen, left = set(), [root]
    while left:
        node = left.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            left += node.value
        elif isinstance(node, yaml.MappingNode):
            node.value = [(_text_key(loader, key), value) for key, value in node.value]
            left += (value for _, value in node.value)


def _text_key(loader: _Loader, key: yaml.Node) -> yaml.Node:
    if key.tag == NULL:
        raise _unfit(key, "a key is missing here")
    if key.tag not in (INT, FLOAT, BOOL):
        return key
    value = loader.construct_object(key)
    text = json.dumps(value) if not isinstance(value, float) else f"{value:.8g}"
    # Another node: an alias of this one is still a number.
    return yaml.ScalarNode(STR, text, key.start_mark, key.end_mark)


def _items_of_a_list(node: yaml.Node) -> list[yaml.Node] | None:
    """The objects of a List, as `kubectl get -o yaml` prints several; None where it is none."""
    if not isinstance(node, yaml.MappingNode):
        return None
    fields = {str(key.value): value for key, value in node.value}
    kind, items = fields.get("kind"), fields.get("items")
    if isinstance(items, yaml.SequenceNode) and kind is not None and str(kind.value).endswith("List"):
        return list(items.value)
    return None


def _yaml_of(text: str) -> str:
    """JSON as YAML has it: no tabs between values, and no pairs of surrogates for a character."""
    if not text.lstrip().startswith("{"):
        return text
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return text
    return _SURROGATES.sub(lambda match: match[1] + json.loads(f'"{match[2]}"'), text.replace("\t", " "))


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
            field = f"{path}.{key_shown(name)}" if path else key_shown(name)
            if name in lines and isinstance(key, yaml.ScalarNode):
                yield _line(key), Fault(field, f"given twice, on line {lines[name]} already")
            lines.setdefault(name, _line(key))
            yield from _repeated(value, field, seen)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
