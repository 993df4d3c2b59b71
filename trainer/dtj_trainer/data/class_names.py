"""Names of classes, as files beside a set have them. Standard library only."""

from __future__ import annotations

import re
from collections import Counter
from string import ascii_lowercase, ascii_uppercase, digits
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_MERGED = "cijklmopsuvwxyz"
"""The letters whose lower-case and upper-case forms are one class in EMNIST's merged sets, named in upper case."""
_MERGED_CLASSES = digits + ascii_uppercase + "".join(x for x in ascii_lowercase if x not in _MERGED)
EMNIST = {
    "balanced": _MERGED_CLASSES,
    "byclass": digits + ascii_uppercase + ascii_lowercase,
    "bymerge": _MERGED_CLASSES,
    "digits": digits,
    "letters": ascii_uppercase,
    "mnist": digits,
}
"""The classes of EMNIST's sets, by the word in the names of their files. The labels of `letters` begin with 1."""


def of_lines(content: bytes) -> tuple[str, ...]:
    """Return the names in TensorFlow's labels.txt, `0:airplane`, or in a file with one name a line."""
    lines = content.decode("utf-8", "replace").split("\n")
    return distinct(re.sub(r"^\d+:", "", line.strip()) for line in lines if line.strip())


def distinct(names: Iterable[str]) -> tuple[str, ...]:
    """Number names that come again: `crane`, `crane (2)`. A model whose labels share a name can't be served."""
    listed = tuple(names)
    taken, seen, made = set(listed), Counter[str](), list[str]()
    for name in listed:
        seen[name] += 1
        found = name
        while seen[name] > 1 and (found := f"{name} ({seen[name]})") in taken:
            seen[name] += 1
        taken.add(found)
        made.append(found)
    return tuple(made)
