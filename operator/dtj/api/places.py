"""Finds the value in a manifest that the field of a fault names, such as `spec.env[DEBUG].value`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Place = tuple[str | int, ...]
"""The keys of maps and indexes of lists that lead to a value, the outermost first."""


def place_of(data: Any, field: str) -> Place:
    """The place of a field such as `spec.env[0].name`, as far as the data has it.

    A key in it may contain dots (`limits.nvidia.com/gpu`), and an entry of a list may be called by its `name`
    (`containers[trainer]`).
    """
    place: list[str | int] = []
    rest = f".{field}"
    while rest:
        step = next(_steps(data, rest), None)
        if step is None:
            break
        key, said = step
        place.append(key)
        data = data[key]
        rest = rest[said:]
    return tuple(place)


def _steps(data: Any, rest: str) -> Iterator[tuple[Any, int]]:
    """Yield the children of data that the beginning of `rest` can name, each with the length of that beginning.

    `rest` is the unread rest of a field's path. The longest beginning comes first, since a key may contain dots.
    """
    if isinstance(data, dict):
        beginnings = {name: said for said, name in _beginnings(rest)}
        yield from ((name, said) for name, said in beginnings.items() if name in data)
        # A key in YAML may be a number or a boolean: compare its text with the path.
        others = ((key, str(key)) for key in data if not isinstance(key, str))
        yield from ((key, beginnings[name]) for key, name in others if name in beginnings)
    elif isinstance(data, list) and rest[0] == "[":
        for said, name in _beginnings(rest):
            if name.isdecimal() and int(name) < len(data):
                yield int(name), said
            for index, child in enumerate(data):
                if isinstance(child, dict) and "name" in child and str(child["name"]) == name:
                    yield index, said


def _beginnings(rest: str) -> Iterator[tuple[int, str]]:
    """Yield the possible first keys or indexes of a path, the longest first, each with its number of characters."""
    for end in range(len(rest), 1, -1):
        if rest[end : end + 1] not in ("", ".", "["):
            continue
        if rest[0] == ".":
            yield end, rest[1:end]
        elif rest[end - 1] == "]":
            yield end, rest[1 : end - 1]
