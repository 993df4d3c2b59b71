"""Hides what must not stand on a screen that others see."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MASK = "(hidden)"
_SECRET = re.compile(
    r"(?i)(pass(word|wd|phrase)?|secret|token|(api|access|private)[-_]?key|[-_]key$|credential)"
)


def masked(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the manifest of a job without the values of variables whose names look secret.

    The env of the job and of every pod template in it is masked. Values from Secrets are references, and stay.
    """
    result = _masked(manifest)
    assert isinstance(result, dict)
    return result


def _masked(value: Any) -> Any:
    if isinstance(value, Mapping):
        hidden = isinstance(value.get("value"), str) and _looks_secret(value.get("name"))
        return {
            key: MASK if hidden and key == "value" else _without_applied(key, _masked(inner))
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [_masked(inner) for inner in value]
    return value


def _looks_secret(name: Any) -> bool:
    return isinstance(name, str) and _SECRET.search(name) is not None


def _without_applied(key: str, value: Any) -> Any:
    """Leave out kubectl's copy of the manifest, in which the values are not masked."""
    if key == "annotations" and isinstance(value, dict):
        return {k: v for k, v in value.items() if k != "kubectl.kubernetes.io/last-applied-configuration"}
    return value
