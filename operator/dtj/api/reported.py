"""Types for values that a pod reports: a bounded number, a bounded line of text, a time. Other values become None.

A program can write anything into its progress, its termination message and its log. The API server refuses a whole
status if one value does not fit the schema. Therefore each field of the status with a reported value has such a type.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, WithJsonSchema

from dtj_trainer import contract

MOST_COUNTED = 10**15
"""The largest count. No program takes more steps, and a float represents each smaller whole number exactly."""
MOST_MEASURED = 3.4e38
"""The largest measured value: that of a float32, the type in which programs compute."""
URI_LENGTH = 1024
SENTENCE_LENGTH = 300
MOST_NAMES = 3
_TIME_LENGTH = 64
# Control characters (C0, DEL, C1), line and paragraph separators, and surrogates, which UTF-8 can't express.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_SPACES = "\t\n\r\x0b\x0c\x85\u2028\u2029"
Model = TypeVar("Model", bound=BaseModel)


def number(value: object, least: int, most: int) -> int | None:
    """Return a whole number from `least` to `most`; None for any other value."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if least <= value <= most else None


def text(value: object, most: int) -> str | None:
    """Return the first `most` characters of a string as one line, without control characters; else None."""
    if not isinstance(value, str):
        return None
    return _UNPRINTABLE.sub(lambda match: " " if match[0] in _SPACES else "\ufffd", value[:most])


def lines(value: object, count: int, most: int) -> list[str] | None:
    """Return the last `count` non-empty strings of a list, each as `text` returns it; None if there is none."""
    if not isinstance(value, list):
        return None
    said = [line for line in value if isinstance(line, str) and line][-count:]
    return [text(line, most) or "" for line in said] or None


def _count(value: object) -> int | None:
    return number(value, 0, MOST_COUNTED)


def _measured(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    # Compare first: math.isfinite raises OverflowError for an int that is too large for a float.
    if not -MOST_MEASURED <= value <= MOST_MEASURED or not math.isfinite(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.4g}")


def _percent(value: object) -> float | None:
    measured = _measured(value)
    return None if measured is None else min(max(measured, 0.0), 100.0)


def _time(value: object) -> str | None:
    """Return a reported time as RFC 3339 in UTC; None for a value that is not a time.

    Python also reads forms that the API server refuses, such as 2026-01-01 00:00:00+00:00: the result has one form.
    """
    if not isinstance(value, str) or len(value) > _TIME_LENGTH:
        return None
    try:
        time = datetime.fromisoformat(value)
        if time.tzinfo is None or time.year < 1970:
            return None
        return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError):
        return None


def _uri(value: object) -> str | None:
    return text(value, URI_LENGTH)


def _sentence(value: object) -> str | None:
    return text(value, SENTENCE_LENGTH) or None


def _source(value: object) -> str | None:
    return value if isinstance(value, str) and value in get_args(contract.Source) else None


def _names(value: object) -> list[str] | None:
    return lines(value, MOST_NAMES, SENTENCE_LENGTH)


Count = Annotated[int | None, BeforeValidator(_count)]
"""A whole number that a program counted, such as steps; None if it is out of range."""
Measured = Annotated[float | None, BeforeValidator(_measured)]
"""A number that a program measured, to four digits. NaN and infinity become None, since JSON can't express them."""
Percent = Annotated[float | None, BeforeValidator(_percent)]
"""A percentage. A value below 0 becomes 0, and a value above 100 becomes 100."""
ReportedTime = Annotated[
    str | None, BeforeValidator(_time), WithJsonSchema({"type": "string", "format": "date-time"})
]
"""A time in UTC, to the second, as RFC 3339."""
ReportedUri = Annotated[str | None, BeforeValidator(_uri)]
"""A URI without control characters."""
ReportedSentence = Annotated[str | None, BeforeValidator(_sentence)]
"""A sentence for people in one line, without control characters."""
ReportedNames = Annotated[list[str] | None, BeforeValidator(_names)]
"""A few names of files, without control characters."""

ReportedSource = Annotated[str | None, BeforeValidator(_source)]
"""The source of the figures: one of the words that `dtj_trainer.contract` defines."""


def take(model: type[Model], said: object) -> tuple[Model | None, int]:
    """Return the report of a pod as a model, None for an empty report; and the number of values that were dropped."""
    if said is None:
        return None, 0
    if not isinstance(said, Mapping):
        return None, 1
    known: dict[str, Any] = {}
    dropped = 0
    for name, field in model.model_fields.items():
        value = said.get(field.alias or name)
        if value is None:
            continue
        nested = _model(field.annotation)
        if nested is not None:
            taken, more = take(nested, value)
            dropped += more
        else:
            (gate,) = (each for each in field.metadata if isinstance(each, BeforeValidator))
            taken = gate.func(value)  # type: ignore[call-arg]
            dropped += taken is None
        known[name] = taken
    return (model.model_validate(known) if known else None), dropped


def _model(annotation: Any) -> type[BaseModel] | None:
    candidates = (annotation, *get_args(annotation))
    return next((each for each in candidates if isinstance(each, type) and issubclass(each, BaseModel)), None)
