"""What is wrong with the data, told so that the job's failure shows it."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dtj_trainer import contract

if TYPE_CHECKING:
    from collections.abc import Iterator


class DataError(Exception):
    """The data can't be used; the message is for the user."""

    exit_code = contract.EXIT_DATA


class DataNotFound(DataError):
    """Something that should be at the data's URI is not there, or may not be read."""


class DataCorrupt(DataError):
    """A file is there but is not what its format says."""


class DataUnavailable(DataError):
    """The place where the data lies did not answer for a long time; trying again later may help."""

    exit_code = contract.EXIT_UNAVAILABLE


@contextmanager
def exit_on_data_error() -> Iterator[None]:
    """End the process on a DataError in this block: its class and message are stderr's last line."""
    try:
        yield
    except DataError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        raise SystemExit(error.exit_code) from None
