"""JSON merge patches (RFC 7386): the difference of two objects, and its application."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def merge_patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the patch that turns `old` into `new`; an empty patch when both are equal."""
    patch: dict[str, Any] = dict.fromkeys(old.keys() - new.keys())
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            if nested := merge_patch(before, value):
                patch[key] = nested
        elif key not in old or before != value:
            patch[key] = value
    return patch


def patched(old: Any, patch: Any) -> Any:
    """Return `old` with the patch applied, without a change of `old` or of the patch."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(old) if isinstance(old, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = patched(result.get(key), value)
    return result
