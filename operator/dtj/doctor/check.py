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
    """One check: the result in a sentence, and the remedy."""

    name: str
    verdict: Verdict
    message: str
    remedy: str | None = None


def ok(name: str, message: str) -> Check:
    """A check without a fault."""
    return Check(name, Verdict.OK, message)


def warning(name: str, message: str, remedy: str | None = None) -> Check:
    """A check that found a risk, or that could not be made."""
    return Check(name, Verdict.WARNING, message, remedy)


def failed(name: str, message: str, remedy: str | None = None) -> Check:
    """A check that found why a job cannot run."""
    return Check(name, Verdict.FAILED, message, remedy)
