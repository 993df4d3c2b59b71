"""The options in the words of a program's command line. All functions are pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dtj.api.masking import masked_words


def options_of(words: Sequence[str]) -> dict[str, str]:
    """Return the options `--name value`, `--name=value` and `--flag` of a command line, by name.

    Values of options whose names look secret are hidden.
    """
    found: dict[str, str] = {}
    shown = masked_words(words)
    for place, word in enumerate(shown):
        if not word.startswith("--") or word == "--":
            continue
        name, equals, value = word[2:].partition("=")
        following = shown[place + 1] if place + 1 < len(shown) else "--"
        found[name] = value if equals else "" if following.startswith("--") else following
    return found


def options_of_manifest(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return the options of the program of a job. A part of the manifest that is not as it should be has none."""
    spec = manifest.get("spec")
    parts = [spec.get(name) for name in ("command", "args")] if isinstance(spec, Mapping) else []
    return options_of([str(word) for part in parts if isinstance(part, list) for word in part])
