"""YAML documents, with the line of each field.

Values are read as sigs.k8s.io/yaml reads them for Kubernetes: `y` is true, `1:30` and a date are text. YAML that
Kubernetes refuses is refused. The limit of a file's size counts its aliases written out: a few aliases of aliases can
stand for more than the memory of a machine.
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
except ImportError:  # This PyYAML is built without libyaml: take the slower loader.
    from yaml import SafeLoader as _SafeLoader  # type: ignore[assignment]

MOST_BYTES = 4 << 20
"""The largest size of a job file. The API server takes no object of more than 1.5 MiB."""
_MOST_WRITTEN_OUT = 16 << 20
_OF_A_VALUE = 20
"""The bytes that each value adds to the size of a document, besides its text."""
_SURROGATES = re.compile(r"((?<!\\)(?:\\\\)*)(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})")


class _Unfit(yaml.constructor.ConstructorError):
    """The error for valid YAML that Kubernetes does not accept."""


class _Loader(_SafeLoader):
    """Gives each YAML value the same type and value as sigs.k8s.io/yaml, the reader of Kubernetes."""

    yaml_implicit_resolvers: dict[str, Any] = {}
    yaml_constructors = {
        tag: constructor
        for tag, constructor in _SafeLoader.yaml_constructors.items()
        if tag in (STR, TAG + "seq", TAG + "map")
    }


def _value(word: str, read: Callable[[str], Any]) -> Callable[[_Loader, yaml.Node], Any]:
    """Return a constructor of nodes of one type, with an explicit tag or without. word: the type's name in errors."""

    def construct(loader: _Loader, node: yaml.Node) -> Any:
        text = loader.construct_scalar(node)  # type: ignore[arg-type]
        resolved = loader.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
        try:
            if resolved == node.tag or (resolved, node.tag) == (INT, FLOAT):
                return read(text)
        except (ValueError, OverflowError):
            pass  # The statement below raises the error for this text, too.
        raise _unfit(node, f"{shown(text)} is not a {word}")

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
        node,
        f"{tag:.200}: Kubernetes takes only the tags !!str, !!int, !!float, !!bool, !!null, !!seq, !!map",
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
_Loader.add_constructor(FLOAT, _value("number that JSON can express", _fraction))
_Loader.add_constructor(None, _unknown)


@dataclass(frozen=True)
class Document:
    """One document of a file."""

    data: Any
    repeated: tuple[tuple[int, Fault], ...]
    """A fault for each key that a map has twice, with the line of the second key."""
    node: yaml.Node

    @property
    def line(self) -> int:
        """The line on which the document begins, from 1."""
        return _line(self.node)

    def line_of(self, field: str, place: Place = ()) -> int:
        """Return the line of a field, from 1. If the field is missing, return the line of the innermost field around.

        place: the keys and indexes that lead to the field, if they are known.
        """
        node, line = self.node, self.line
        for key in place or place_of(self.data, field):
            if isinstance(node, yaml.SequenceNode) and isinstance(key, int):
                if key >= len(node.value):
                    break
                node = node.value[key]
                line = _line(node)
            elif isinstance(node, yaml.MappingNode):
                # PyYAML puts the pairs from a merge key (`<<`) before all other pairs. The last pair of a key wins.
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
    """Return the documents of a file, and the objects of each List. Raises Unusable, with the line, for bad YAML."""
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
            # Find repeated keys before the construction, which adds the pairs of merge keys (`<<`) to the nodes.
            repeated = [tuple(_repeated(part, (), set())) for part in nodes]
            data = loader.construct_document(node)
            parts = [data] if items is None else data["items"]
            documents += map(Document, parts, repeated, nodes)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        # For an error at the end of the file, PyYAML names the line after the last line. Name the last line.
        line = f":{min(mark.line, text.rstrip().count(chr(10))) + 1}" if mark else ""
        said = ", ".join(part for part in (error.context, error.problem) if part)
        raise Unusable(
            f"{name}{line}: {'' if isinstance(error, _Unfit) else 'invalid YAML: '}{said}"
        ) from None
    except (yaml.YAMLError, ValueError) as error:
        raise Unusable(f"{name}: invalid YAML: {' '.join(str(error).split())}") from None
    return documents


def too_large(name: str) -> Unusable:
    """The fault of a file with more than MOST_BYTES."""
    return Unusable(
        f"{name}: larger than {MOST_BYTES >> 20} MiB",
        "split the file, or move large data out of the job: the API server takes objects of at most 1.5 MiB",
    )


def _limit(text: str) -> None:
    """Raise _Unfit for a text that is nested too deeply, or too large with its aliases expanded. Loads nothing."""
    anchors: dict[str, int | None] = {}
    """The size of the value of each anchor; None while the value is not complete."""
    around: list[tuple[str | None, int]] = []
    """For each list and map that is open: its anchor, and the size of the document before it."""
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
                event,
                f"too large: with its aliases expanded, the file up to this line has more than "
                f"{_MOST_WRITTEN_OUT >> 20} MiB",
            )


def _aliased(alias: yaml.AliasEvent, size: int | None) -> int:
    """Return the size of the value for which an alias stands. size: None while the value is not complete."""
    if size is None:
        raise _unfit(alias, f"the alias *{alias.anchor} is inside the value that it stands for")
    return size


def _write_keys_as_text(loader: _Loader, root: yaml.Node) -> None:
    """Make each key a string, as Kubernetes does with the keys `1` and `y`. Raises _Unfit for a null as a key."""
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
        raise _unfit(key, "a key is empty or null; write a key before the colon")
    if key.tag not in (INT, FLOAT, BOOL):
        return key
    value = loader.construct_object(key)
    text = json.dumps(value) if not isinstance(value, float) else f"{value:.8g}"
    # Return a new node: an alias may use the same node as a value, and the value must stay a number.
    return yaml.ScalarNode(STR, text, key.start_mark, key.end_mark)


def _items_of_a_list(node: yaml.Node) -> list[yaml.Node] | None:
    """Return the objects of a `kind: List`, which `kubectl get -o yaml` prints; None for another object."""
    if not isinstance(node, yaml.MappingNode):
        return None
    fields = {str(key.value): value for key, value in node.value}
    kind, items = fields.get("kind"), fields.get("items")
    if isinstance(items, yaml.SequenceNode) and kind is not None and str(kind.value).endswith("List"):
        return list(items.value)
    return None


def _yaml_of(text: str) -> str:
    """Return JSON in a form that is valid YAML: without tabs between values, and without surrogate pairs."""
    if not text.lstrip().startswith("{"):
        return text
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return text
    return _SURROGATES.sub(lambda match: match[1] + json.loads(f'"{match[2]}"'), text.replace("\t", " "))


def _repeated(node: yaml.Node, place: Place, seen: set[int]) -> Iterator[tuple[int, Fault]]:
    if id(node) in seen:
        return  # An alias leads to this node again.
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _repeated(item, (*place, index), seen)
    elif isinstance(node, yaml.MappingNode):
        lines: dict[str, int] = {}
        for key, value in node.value:
            name = str(key.value)
            inner = (*place, name)
            if name in lines and isinstance(key, yaml.ScalarNode):
                yield _line(key), Fault(_field(inner), f"given twice, on line {lines[name]} already")
            lines.setdefault(name, _line(key))
            yield from _repeated(value, inner, seen)


def _field(place: Place) -> str:
    parts = (f"[{part}]" if isinstance(part, int) else f".{key_shown(part)}" for part in place)
    return "".join(parts).removeprefix(".")


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
