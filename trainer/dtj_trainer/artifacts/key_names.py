"""Names of files in keys. Keys are UTF-8, and stores list and delete them by XML: some names need another form."""

from __future__ import annotations

import os
from urllib.parse import quote, unquote_to_bytes

MARK = "dtj-name-"
"""Begins each name that has another form in a key: its bytes follow, percent-encoded."""
_NO_XML = frozenset("\x7f\ufffe\uffff")


def key_of(path: str) -> str:
    """Return the key of a path. Most paths are their own keys; `path_of` returns the path of any other key."""
    if path.isprintable() and MARK not in path:  # Each pass asks for each file.
        return path
    return "/".join(map(_encoded, path.split("/")))


def path_of(key: str) -> str:
    """Return the path of a key that `key_of` made. Any other key is its own path."""
    return "/".join(map(_decoded, key.split("/"))) if MARK in key else key


def _encoded(name: str) -> str:
    if name.startswith(MARK) or any(
        character < " " or character in _NO_XML or "\ud800" <= character <= "\udfff" for character in name
    ):
        return MARK + quote(os.fsencode(name), safe="")
    return name


def _decoded(name: str) -> str:
    if not name.startswith(MARK):
        return name
    decoded = os.fsdecode(unquote_to_bytes(name.removeprefix(MARK)))
    # Anybody may write a key such as dtj-name-..%2F.
    return decoded if "/" not in decoded and _encoded(decoded) == name else name
