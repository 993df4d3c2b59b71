"""Values and keys in messages."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from typing import Any

_LONGEST, _LONGEST_KEY = 200, 100
_brief = reprlib.Repr()
_brief.maxstring = _brief.maxother = _brief.maxlong = _LONGEST
_brief.maxdict = _brief.maxlist = 20
_brief.maxlevel = 4


def shown(value: Any) -> str:
    """Return a value as Python writes it, cut to some 200 characters, in a time that does not grow with its size."""
    try:
        # Cut a long string at its end. reprlib would cut the string in its middle.
        text = repr(value[: _LONGEST + 1]) if isinstance(value, str) else _brief.repr(value)
    except ValueError:
        return "a number of too many digits"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def key_shown(key: Any) -> str:
    """Return a key as shown in the path of a field, cut to some 100 characters."""
    text = key if isinstance(key, str) else shown(key)
    text = text if len(text) <= _LONGEST_KEY else f"{text[:_LONGEST_KEY]}…"
    if not text:
        return '""'
    return text if text.isprintable() else repr(text)[1:-1]


def is_text(value: Any) -> bool:
    """Whether a value is a string that UTF-8 can encode. A string with a lone surrogate is not."""
    if not isinstance(value, str):
        return False
    try:
        return value.isascii() or bool(value.encode())
    except UnicodeEncodeError:
        return False


def enumerated(words: Iterable[str], conjunction: str) -> str:
    """Words as a person lists them: `a, b and c`."""
    *first, last = words
    return f"{', '.join(first)} {conjunction} {last}" if first else last
