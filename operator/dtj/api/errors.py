"""The errors that dtj shows to its user as one line, without a traceback."""

from __future__ import annotations

from typing import ClassVar


class DtjError(Exception):
    """A failure that its reader can do something about.

    message: one line that says what is wrong. remedy: one that says what to do, where that is known.
    exit_code: of the `dtj` command, as docs/cli.md lists them.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, remedy: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy


class Unusable(DtjError):
    """What was given on the command line, or in a file, can't be used."""

    exit_code = 2


class NotFound(DtjError):
    """What was asked for is not there."""

    exit_code = 3


class Unreachable(DtjError):
    """The cluster or the bucket does not answer, or does not let this user in."""

    exit_code = 4


class TimedOut(DtjError):
    """What was waited for did not come about in time."""

    exit_code = 5
