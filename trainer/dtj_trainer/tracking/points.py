"""Points and parameters of a run, from the lines of metrics.jsonl and of utilisation. Pure.

Each number of a line is a point of the line's own time and step, so that a line that is sent twice makes no second
point.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from dtj_trainer import contract
from dtj_trainer.clock import seconds_of

LONGEST_NAME, LONGEST_VALUE = 250, 500
"""Characters of a metric's or parameter's name, and of a parameter's value, that each release of MLflow takes."""
_NO_NAME = re.compile(r"[^\w\-. :/]", re.ASCII)
_OF_A_LINE = ("kind", "time", "attempt", "step")
_OF_A_SAMPLE = ("time", "pod", "attempt", "programs", "gpus")
_NOT_GIVEN = (*_OF_A_LINE, "examples")


class Point(NamedTuple):
    """One value of a metric. `time`: milliseconds since 1970."""

    name: str
    value: float
    time: int
    step: int


def points_of(file: str, line: bytes) -> list[Point]:
    """Return the points of a line of that file; none for a line that is no JSON object."""
    values = _parsed(line)
    if values is None:
        return []
    if file.startswith(f"{contract.UTILISATION}/"):
        return list(_sample(values))
    prefix = "evaluator/" if file == contract.EVALUATOR_METRICS_FILE else ""
    return list(_metrics(values, prefix))


def params_of(line: bytes) -> dict[str, str]:
    """Return the parameters in a line of the kind `start`; none for another line."""
    values = _parsed(line)
    if values is None or values.get("kind") != "start":
        return {}
    given = {name: value for name, value in values.items() if name not in _NOT_GIVEN}
    return as_params(given)


def as_params(values: Mapping[str, object]) -> dict[str, str]:
    """Return the texts and numbers among some values as parameters."""
    return {
        _name(name): str(value)[:LONGEST_VALUE]
        for name, value in values.items()
        if isinstance(value, (str, int, float)) and str(value)
    }


def _metrics(values: Mapping[str, Any], prefix: str) -> Iterator[Point]:
    kind = str(values.get("kind", "metrics"))
    if kind == "start":
        return  # `params_of` makes parameters of this line instead.
    step = values.get("step")
    at = int(step) if isinstance(step, (int, float)) and math.isfinite(step) else 0
    rest = {name: value for name, value in values.items() if name not in _OF_A_LINE}
    yield from _numbers(f"{prefix}{kind}", rest, _milliseconds(values), at)


def _sample(values: Mapping[str, Any]) -> Iterator[Point]:
    """Yield the points of a sample of utilisation. Their step is the time in seconds: MLflow shows `system/…` over
    time.
    """
    time, pod = _milliseconds(values), str(values.get("pod", "pod"))
    second = time // 1000
    of_pod = {name: value for name, value in values.items() if name not in _OF_A_SAMPLE}
    for name, figures in _objects(values.get("programs")):
        whose = f"rank-{name}" if name.isdecimal() else name
        yield from _numbers(f"system/{whose}", figures, time, second)
    yield from _numbers(f"system/{pod}/pod", of_pod, time, second)
    for name, figures in _objects(values.get("gpus")):
        yield from _numbers(f"system/{pod}/gpu-{name}", figures, time, second)


def _numbers(prefix: str, values: Mapping[str, Any], time: int, step: int) -> Iterator[Point]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _numbers(f"{prefix}/{name}", value, time, step)
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < math.inf:
            yield Point(_name(f"{prefix}/{name}"), float(value), time, step)


def _objects(value: object) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if isinstance(value, dict):
        yield from ((name, each) for name, each in value.items() if isinstance(each, dict))


def _milliseconds(values: Mapping[str, Any]) -> int:
    return round(seconds_of(str(values.get("time", ""))) * 1000)


def _name(text: str) -> str:
    return _NO_NAME.sub("_", text)[:LONGEST_NAME]


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None
