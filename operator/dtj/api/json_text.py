"""Find values in a JSON text without decoding them: decoded data takes ten to thirty times the memory of the text.

To find the end of a value, the functions look at brackets and at the quotes of strings only. They raise ValueError
if they find no value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

from dtj.api.nesting import read_json

_WINDOW = 16 * 1024
"""The number of bytes that one step scans. Such a step holds the GIL for less than a millisecond."""
_DENSE = 65_536
"""An object with more fields and list entries than this stays JSON text: decoded, it would take tens of megabytes."""
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_TOKENS = re.compile(_STRING + rb"|[][{}]", re.DOTALL)
_REST_OF_STRING = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_KEY = re.compile(rb"[\s,]*(" + _STRING + rb")\s*:\s*", re.DOTALL)
_PLAIN = re.compile(_STRING + rb'|[^][{}\s,"]++', re.DOTALL)
_SPACE = b" \t\r\n"
_STEPS = {ord("{"): 1, ord("["): 1, ord("}"): -1, ord("]"): -1}
_NO_BRACKETS = bytes(set(range(256)) - _STEPS.keys())
# The number of passes that remove innermost pairs of brackets. A pass is faster than a count of each bracket.
_FLAT_LEVELS = 4


class _Outside:
    """Removes the strings from a JSON text, so that brackets inside strings don't count. The text comes in pieces."""

    def __init__(self) -> None:
        self.in_string = False
        """Whether the last piece ended inside a string."""
        self.escaped = False
        """Whether the last piece ended with a backslash that escapes the first byte of the next piece."""

    def of(self, text: bytes) -> bytes:
        """Return the next piece with one quote in place of each string."""
        text = text[int(self.escaped) :]
        if b"\\" in text:
            text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
        self.escaped = text.endswith(b"\\")
        parts = text.split(b'"')
        outside = b'"'.join(parts[int(self.in_string) :: 2])
        self.in_string ^= len(parts) % 2 == 0
        return outside + b'"' if self.in_string else outside


class ValueEnd:
    """Finds the end of a list or map whose text comes piece by piece, after its first bracket."""

    def __init__(self) -> None:
        self._level = 1
        self._outside = _Outside()

    def find(self, text: bytes, begin: int = 0) -> int | None:
        """Take the next piece, from `begin` on. Return the place after the value; None where the value goes on."""
        for at in range(begin, len(text), _WINDOW):
            end = self._look(text[at : at + _WINDOW])
            if end is not None:
                return at + end
        return None

    def _look(self, text: bytes) -> int | None:
        in_string, escaped = self._outside.in_string, self._outside.escaped
        brackets = self._outside.of(text).translate(None, _NO_BRACKETS)
        for _ in range(_FLAT_LEVELS):
            brackets = brackets.replace(b"{}", b"").replace(b"[]", b"")
        levels = [*accumulate(map(_STEPS.__getitem__, brackets), initial=self._level)]
        if min(levels) > 0:
            self._level = levels[-1]
            return None
        rest = _REST_OF_STRING.match(text, int(escaped)) if in_string else None
        for token in _TOKENS.finditer(text, rest.end() if rest else 0):
            self._level += _STEPS.get(token[0][0], 0)
            if self._level == 0:
                return token.end()
        return None


def members(text: bytes) -> dict[str, bytes]:
    """Return the texts of the values of a JSON object, by key. Raises ValueError."""
    at, found = len(text) - len(text.lstrip(_SPACE)), {}
    if text[at : at + 1] != b"{":
        raise ValueError("the JSON text does not begin with {, as an object does")
    at += 1
    while key := _KEY.match(text, at):
        begin = key.end()
        end = _end_of_value(text, begin)
        found[json.loads(key[1])] = text[begin:end]
        at = end
    rest = text[at : at + _WINDOW].strip(_SPACE)
    if rest != b"}":
        wrong = "goes on after the end of its object" if rest[:1] == b"}" else "has no } or key"
        raise ValueError(f"the JSON text {wrong} at byte {at}")
    return found


def _end_of_value(text: bytes, begin: int) -> int:
    if text[begin : begin + 1] in (b"{", b"["):
        end = ValueEnd().find(text, begin + 1)
    else:
        plain = _PLAIN.match(text, begin)
        end = plain.end() if plain else None
    if end is None:
        raise ValueError(f"the JSON text has no complete value at byte {begin}")
    return end


def has_more_entries(text: bytes, most: int) -> bool:
    """Return whether a text has more fields and list entries than `most`, at all depths."""
    if _signs(text) <= most:
        return False
    outside = _Outside()
    windows = (text[at : at + _WINDOW] for at in range(0, len(text), _WINDOW))
    bare = b"".join(map(outside.of, windows)).translate(None, _SPACE)
    return _signs(bare) - bare.count(b"{}") - bare.count(b"[]") > most


def _signs(text: bytes) -> int:
    """Return a fast upper bound of the number of fields and list entries: the commas and opening brackets."""
    return sum(map(text.count, (b",", b"{", b"[")))


def object_in(text: bytes) -> Any:
    """Return the object of a text: as data, or as `ObjectText` where the data would be large."""
    return ObjectText(text) if _signs(text) > _DENSE else read_json(text)


class ObjectText(Mapping[str, Any]):
    """An object of the API server as JSON text. An access to a field decodes only this field. `managedFields` of the
    metadata is never decoded.
    """

    def __init__(self, text: bytes) -> None:
        """text: the JSON of the object. Raises ValueError."""
        self._parts = members(text)

    def text(self, part: str) -> bytes:
        """Return the text of a part; null where the object does not have it."""
        return self._parts.get(part, b"null")

    def __getitem__(self, part: str) -> Any:
        text = self._parts[part]
        if part != "metadata":
            return read_json(text)
        return {name: read_json(value) for name, value in members(text).items() if name != "managedFields"}

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)
