"""The errors that dtj shows to its user as one line, without a traceback."""

from __future__ import annotations

from typing import ClassVar


class DtjError(Exception):
    """A failure that the user can act on.

    message: the fault, in one line. remedy: what to do, in one line, if a remedy is known. exit_code: the exit code
    of the `dtj` command; docs/cli.md lists the exit codes.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, remedy: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy


class Unusable(DtjError):
    """An argument of the command line, or a file of the user, is invalid."""

    exit_code = 2


class NotFound(DtjError):
    """The requested object or file does not exist."""

    exit_code = 3


class Unreachable(DtjError):
    """The cluster or the bucket does not answer, or denies the user access."""

    exit_code = 4


class TimedOut(DtjError):
    """The awaited state of a job was not reached before the timeout."""

    exit_code = 5
