"""What a check says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """How a check went."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at: what is so, in a sentence, and what to do about it."""

    name: str
    verdict: Verdict
    message: str
    remedy: str | None = None


def ok(name: str, message: str) -> Check:
    """All is well."""
    return Check(name, Verdict.OK, message)


def warning(name: str, message: str, remedy: str | None = None) -> Check:
    """It may go wrong, or could not be looked at."""
    return Check(name, Verdict.WARNING, message, remedy)


def failed(name: str, message: str, remedy: str | None = None) -> Check:
    """A job can't run like this."""
    return Check(name, Verdict.FAILED, message, remedy)
