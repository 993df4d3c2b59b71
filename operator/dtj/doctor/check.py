"""The result of a check."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """The verdict of a check."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True)
class Check:
    """The result of one check: a message, and a remedy if there is one."""

    name: str
    verdict: Verdict
    message: str
    remedy: str | None = None


def ok(name: str, message: str) -> Check:
    """Return the result of a check that found no fault."""
    return Check(name, Verdict.OK, message)


def warning(name: str, message: str, remedy: str | None = None) -> Check:
    """Return the result of a check that found a risk, or that was not possible."""
    return Check(name, Verdict.WARNING, message, remedy)


def failed(name: str, message: str, remedy: str | None = None) -> Check:
    """Return the result of a check that found why a job cannot run."""
    return Check(name, Verdict.FAILED, message, remedy)
