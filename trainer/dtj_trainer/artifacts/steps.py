"""Reads the step from a checkpoint's file name."""

from __future__ import annotations

import re

_SHARD = re.compile(r"\.data-\d+-of-\d+$")
_EXTENSION = re.compile(r"\.[A-Za-z][A-Za-z0-9]*$")
_NAMED = re.compile(
    r"(?:global[-_]?step|step|checkpoint|ckpt|chkpt|iteration|iter|epoch|ep)[-_=.]?(\d+)", re.IGNORECASE
)
_SET_APART = re.compile(r"(?<![A-Za-z0-9])(\d+)(?![A-Za-z0-9])")
_ANY = re.compile(r"\d+")
_MOST_DIGITS = 18


def step_of(name: str) -> int | None:
    """Return the step in a name like `100`, `checkpoint-100`, `ckpt-100.pt`, `ckpt-100.data-00000-of-00001`.

    A number after a word like `step` takes precedence, `step` over `epoch`; next the last number between separators
    (`resnet18-100.pt` is 100), then the last number of any kind. None when the name contains no number.
    """
    stem = _SHARD.sub("", name)
    while stem != (shorter := _EXTENSION.sub("", stem)) and shorter:
        stem = shorter
    named = _NAMED.findall(stem)
    by_step = re.findall(r"step[-_=.]?(\d+)", stem, re.IGNORECASE)
    digits = by_step[-1:] or named[-1:] or _SET_APART.findall(stem)[-1:] or _ANY.findall(stem)[-1:]
    return int(digits[0]) if digits and len(digits[0]) <= _MOST_DIGITS else None
