"""Errors of the data, printed so that the job's failure shows them."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dtj_trainer import contract

if TYPE_CHECKING:
    from collections.abc import Iterator


class DataError(Exception):
    """The data can't be used. The message is for the user."""

    exit_code = contract.EXIT_DATA


class DataNotFound(DataError):
    """A file does not exist at the data's URI, or access is denied."""


class DataCorrupt(DataError):
    """A file exists but does not conform to its format."""


class DataTooLarge(DataError):
    """The data exceed a limit of what is read whole into memory."""


class DataUnavailable(DataError):
    """The data's store did not answer for a long time. A later try may succeed."""

    exit_code = contract.EXIT_UNAVAILABLE


@contextmanager
def exit_on_data_error() -> Iterator[None]:
    """End the process on a DataError in this block, with its class and message as stderr's last line."""
    try:
        yield
    except DataError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        raise SystemExit(error.exit_code) from None
