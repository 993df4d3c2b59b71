"""The job files of tests/bad_jobs, with the expected messages."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from dtj.api.job import Manifest

DIRECTORY = Path(__file__).parents[2] / "bad_jobs"
KINDS = ("kubectl", "status", "server", "pending", "run")


@dataclass(frozen=True)
class BadJob:
    """An invalid job and the expected messages."""

    file: Path
    by: str
    messages: tuple[tuple[str, ...], ...]
    """Each message as a tuple of alternatives."""
    manifest: Manifest

    def unsaid(self, text: str) -> list[str]:
        """Return the messages without an alternative in the text."""
        return [
            " || ".join(options) for options in self.messages if not any(option in text for option in options)
        ]


@cache
def read_bad_job(file: Path) -> BadJob:
    """Read a file with its header."""
    text = file.read_text()
    headers = [line[2:].split(": ", 1) for line in text.splitlines() if line.startswith("# ")]
    (by,) = (value for key, value in headers if key == "by")
    messages = tuple(tuple(value.split(" || ")) for key, value in headers if key == "message")
    return BadJob(file, by, messages, yaml.safe_load(text))


def bad_jobs(*kinds: str) -> list[BadJob]:
    """Return all bad jobs, or those of some kinds."""
    found = [read_bad_job(file) for file in sorted(DIRECTORY.glob("*.yaml"))]
    return [bad for bad in found if not kinds or bad.by in kinds]
