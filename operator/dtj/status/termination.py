"""Read the termination message of a container. dtj-launch writes it, and any other program may write it too."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, cast

from dtj.api.reported import lines, number, take, text
from dtj.api.status import ArtifactsStatus, ProgressStatus
from dtj.status.pods import Exit
from dtj_trainer.contract import Termination

LOG_LINES = 20
MESSAGE_LENGTH = 4096
_LINE_LENGTH = 1024
_NAME_LENGTH = 253
_MOST = 2**31 - 1
_GATES: Mapping[str, Callable[[object], object]] = {
    "class": lambda value: text(value, 63) or None,
    "message": lambda value: text(value, MESSAGE_LENGTH),
    "role": lambda value: text(value, _NAME_LENGTH),
    "index": lambda value: number(value, 0, _MOST),
    "rank": lambda value: number(value, 0, _MOST),
    "host": lambda value: text(value, _NAME_LENGTH),
    "exitCode": lambda value: number(value, -_MOST, _MOST),
    "signal": lambda value: number(value, 0, _MOST),
    "lastLogLines": lambda value: last_lines(value),
    "progress": lambda value: value if isinstance(value, dict) else None,
    "artifacts": lambda value: value if isinstance(value, dict) else None,
    "recorded": lambda value: value is True or None,
}


def read_termination(end: Exit) -> Termination | None:
    """Return the termination message of dtj-launch; None if the message is no JSON object.

    Invalid values are left out, because any program of the container may write the message.
    """
    try:
        message = json.loads(end.message)
    except (ValueError, RecursionError):
        return None
    if not isinstance(message, dict):
        return None
    values: dict[str, Any] = {}
    for name, gate in _GATES.items():
        value = message.get(name)
        taken = None if value is None else gate(value)
        if taken is not None:
            values[name] = taken
    return cast(Termination, values)


def last_lines(value: object) -> list[str] | None:
    """Return the last lines that are not empty. Kubernetes 1.20 rejects an empty text in a patch as null."""
    return lines(value, LOG_LINES, _LINE_LENGTH)


def reported(message: Termination | None) -> tuple[ProgressStatus | None, ArtifactsStatus | None]:
    """Return the progress and the artifacts in a termination message."""
    if message is None:
        return None, None
    progress, _ = take(ProgressStatus, message.get("progress"))
    artifacts, _ = take(ArtifactsStatus, message.get("artifacts"))
    return progress, artifacts
