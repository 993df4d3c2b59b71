"""Formats of a process's end: a rank's line for the launcher, and the container's termination message."""

from __future__ import annotations

import json
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import cast

from dtj_trainer import contract

log = logging.getLogger(__name__)

LAST_LOG_LINES = 20
LONGEST_LOG_LINE = 400
"""The longest log line in a termination message, in characters. A message that is too long gets shorter lines."""
SHORTEST_LOG_LINE = 60
LONGEST_MARKER_BYTES = 3500
"""The most bytes of a marker line. A write of up to 4096 bytes to a pipe stays in one piece."""


class RankExit(contract.Termination, total=False):
    """A rank's report to its launcher."""

    stopped: bool
    """The rank was asked to stop (by mpirun, or because its pod ends), so that it is not the cause of a failure."""


def marker_line(rank_exit: RankExit) -> str:
    """Return the line by which a rank's wrapper reports its end, with the line feed."""
    fitted = cast(RankExit, fitted_to(rank_exit, LONGEST_MARKER_BYTES))
    return f"{contract.RANK_EXIT_MARKER}{encode(fitted).decode()}\n"


def split_marker(line: str) -> tuple[str, RankExit | None]:
    """Extract a marker from a line of mpirun's output; return the rest of the line, and the marker's content.

    Output of other ranks may precede and follow the marker on the same line.
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
    """Shorten the message until its JSON has at most `limit` bytes.

    Long log lines are cut first, then the oldest log lines and the reports are dropped, then the message is cut.
    """
    fitted = cast(contract.Termination, dict(message))
    lines = [line[:LONGEST_LOG_LINE] for line in message.get("lastLogLines", [])][-LAST_LOG_LINES:]
    if "lastLogLines" in message:
        fitted["lastLogLines"] = lines
    width = LONGEST_LOG_LINE
    while lines and _size(fitted) > limit and width > SHORTEST_LOG_LINE:
        # Prefer many shortened lines to a few long ones.
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
    """Encode the message as the kubelet reads it."""
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def forget_termination(path: Path) -> None:
    """Empty the message of an earlier start: it must not count as this start's message if this process is killed."""
    with suppress(OSError):
        # `dtj run` fills the file with spaces in advance, so that a message fits even on a full disk.
        if path.read_bytes().strip():
            path.write_bytes(b"")


def write_termination(path: Path, message: contract.Termination) -> None:
    """Write the container's termination message. An unwritable path causes only a warning."""
    content = encode(fitted_to(message, contract.TERMINATION_MESSAGE_BYTES))
    try:
        # Truncate the file only after the write: `dtj run` made it as large as a message, and its disk may be full.
        with open(path, "wb", opener=lambda name, flags: os.open(name, flags & ~os.O_TRUNC, 0o666)) as file:
            file.write(content)
            if file.seekable():
                file.truncate()
    except OSError as error:
        log.warning("the termination message could not be written: %s", error)
