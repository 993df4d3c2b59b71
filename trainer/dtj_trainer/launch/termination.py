"""How a process's end is told: a rank's line to the launcher, and the container's termination message."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import cast

from dtj_trainer import contract

log = logging.getLogger(__name__)

LAST_LOG_LINES = 20
LONGEST_LOG_LINE = 400
"""Characters kept of one of the last log lines; fewer when the whole would grow too long."""
SHORTEST_LOG_LINE = 60
LONGEST_MARKER_BYTES = 3500
"""A marker goes through pipes as one piece, which holds up to 4096 bytes."""


class RankExit(contract.Termination, total=False):
    """What a rank tells its launcher."""

    stopped: bool
    """The rank was told to stop (by mpirun, or because its pod ends): it is no cause of anything."""


def marker_line(rank_exit: RankExit) -> str:
    """The line by which a rank's wrapper tells its end, with the newline."""
    fitted = cast(RankExit, fitted_to(rank_exit, LONGEST_MARKER_BYTES))
    return f"{contract.RANK_EXIT_MARKER}{encode(fitted).decode()}\n"


def split_marker(line: str) -> tuple[str, RankExit | None]:
    """Take a marker out of a line of mpirun's output: the text around it, and what it says.

    Other ranks' output may stand before and behind it on the same line.
    """
    before, marker, after = line.partition(contract.RANK_EXIT_MARKER)
    if not marker:
        return line, None
    try:
        content, end = json.JSONDecoder().raw_decode(after)
    except ValueError:
        return line, None
    if not isinstance(content, dict):
        return line, None
    return before + after[end:], cast(RankExit, content)


def fitted_to(message: contract.Termination, limit: int) -> contract.Termination:
    """The message so that its JSON has at most `limit` bytes.

    First the oldest log lines go, with long lines cut; then the text is cut; then the reports go.
    """
    fitted = cast(contract.Termination, dict(message))
    lines = [line[:LONGEST_LOG_LINE] for line in message.get("lastLogLines", [])][-LAST_LOG_LINES:]
    if "lastLogLines" in message:
        fitted["lastLogLines"] = lines
    width = LONGEST_LOG_LINE
    while lines and _size(fitted) > limit and width > SHORTEST_LOG_LINE:
        # Rather many lines cut short than few long ones.
        width = max(width * 3 // 4, SHORTEST_LOG_LINE)
        fitted["lastLogLines"] = lines = [line[:width] for line in lines]
    while lines and _size(fitted) > limit:
        del lines[0]
    for part in ("lastLogLines", "phases", "progress", "artifacts"):
        if _size(fitted) > limit:
            fitted.pop(part, None)  # type: ignore[misc]
    text = fitted.get("message", "")
    while text and _size(fitted) > limit:
        text = text[: len(text) * 3 // 4]
        fitted["message"] = text + "…"
    return fitted


def _size(message: contract.Termination) -> int:
    return len(encode(message))


def encode(message: contract.Termination) -> bytes:
    """The message as the kubelet reads it."""
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def write_termination(path: Path, message: contract.Termination) -> None:
    """Write the container's termination message; a path that can't be written is only warned of."""
    content = encode(fitted_to(message, contract.TERMINATION_MESSAGE_BYTES))
    try:
        path.write_bytes(content)
    except OSError as error:
        log.warning("the termination message could not be written: %s", error)
