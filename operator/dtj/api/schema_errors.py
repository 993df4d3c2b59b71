"""Sentences for the errors that pydantic finds, in words for the author of a job file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dtj.api.shown import shown

MEANINGS: dict[str, str] = {}
"""A description of each regular expression in the schema. It completes the sentence "must be …"."""
_KINDS = {
    "model_type": "an object",
    "dict_type": "an object",
    "list_type": "a list",
    "string_type": "a string",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a whole number of 64 bits",
    "bool_type": "true or false",
}


def pattern(expression: str, meaning: str) -> str:
    """Return the expression of a field's pattern, and keep its meaning for messages, in which a regular expression
    would help few users.

    meaning: the form of a valid value, to be read after "must be".
    """
    MEANINGS[expression] = meaning
    return expression


def sentence(error: Mapping[str, Any]) -> str:
    """Return the message for an entry of `ValidationError.errors()`: what the value must be, and the given value."""
    limits = error.get("ctx") or {}
    match error["type"]:
        case "missing":
            return "required"
        case "too_long":
            return f"must have at most {limits['max_length']} entries, has {len(error['input'])}"
        case "string_too_short":
            return "must not be empty"
        case "string_too_long":
            wanted = f"must have at most {limits['max_length']} characters"
        case "greater_than_equal":
            wanted = f"must be at least {limits['ge']}"
        case "less_than_equal":
            wanted = f"must be at most {limits['le']}"
        case "enum":
            wanted = f"must be {limits['expected'].replace(chr(39), '')}"
        case "string_pattern_mismatch":
            wanted = f"must be {MEANINGS[limits['pattern']]}"
        case kind if kind in _KINDS:
            wanted = f"must be {_KINDS[kind]}"
        case _:
            wanted = error["msg"][0].lower() + error["msg"][1:]
    return f"{wanted}, got {shown(error['input'])}"
