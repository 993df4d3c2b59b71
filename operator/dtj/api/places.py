"""Where in plain data the field of a fault is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Place = tuple[str | int, ...]
"""Keys of maps and indexes of lists, from the outside in."""


def place_of(data: Any, field: str) -> Place:
    """The place of a field such as `spec.env[0].name`, as far as the data has it.

    A key in it may contain dots (`limits.nvidia.com/gpu`), and an entry of a list may be called by its `name`
    (`containers[trainer]`).
    """
    place: list[str | int] = []
    rest = f".{field}"
    while rest:
        steps = [
            step for step in _steps(data) if rest.startswith(step[0]) and rest[len(step[0]) :][:1] in "[."
        ]
        if not steps:
            break
        said, key, data = max(steps, key=lambda step: len(step[0]))
        place.append(key)
        rest = rest[len(said) :]
    return tuple(place)


def _steps(data: Any) -> Iterator[tuple[str, Any, Any]]:
    """How each child may be called, its key, and itself."""
    if isinstance(data, dict):
        for key, child in data.items():
            yield f".{key}", key, child
            yield f"[{key}]", key, child
    elif isinstance(data, list):
        for index, child in enumerate(data):
            yield f"[{index}]", index, child
            if isinstance(child, dict) and "name" in child:
                yield f"[{child['name']}]", index, child
