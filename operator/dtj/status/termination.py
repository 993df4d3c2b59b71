"""What a container says at its end: the termination message that dtj-launch writes, as any program may write one."""

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
}


def read_termination(end: Exit) -> Termination | None:
    """What dtj-launch left in the termination message, or None where another program wrote it.

    Any program may write there: a value that is none of the contract's is left out.
    """
    try:
        message = json.loads(end.message)
    except (ValueError, RecursionError):
        return None
    if not isinstance(message, dict):
        return None
    said: dict[str, Any] = {}
    for name, gate in _GATES.items():
        value = message.get(name)
        taken = None if value is None else gate(value)
        if taken is not None:
            said[name] = taken
    return cast(Termination, said)


def last_lines(said: object) -> list[str] | None:
    """The last lines that say something. Kubernetes 1.20 takes an empty text in a patch for null, and refuses it."""
    return lines(said, LOG_LINES, _LINE_LENGTH)


def reported(said: Termination | None) -> tuple[ProgressStatus | None, ArtifactsStatus | None]:
    """Progress and artifacts in a termination message."""
    if said is None:
        return None, None
    return take(ProgressStatus, said.get("progress"))[0], take(ArtifactsStatus, said.get("artifacts"))[0]
