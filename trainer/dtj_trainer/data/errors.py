"""Errors of the data, printed so that the job's failure shows them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from dtj_trainer import contract
from dtj_trainer.contract import program_error

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
def about(uri: str) -> Iterator[None]:
    """Put the URI of a set before the message of a DataError in this block that does not name the URI."""
    try:
        yield
    except DataUnavailable:
        raise
    except DataError as error:
        if uri in str(error):
            raise
        separator = " " if isinstance(error, DataNotFound) else ": "
        raise type(error)(f"{uri}{separator}{error}") from error


@contextmanager
def exit_on_data_error() -> Iterator[None]:
    """End the process on a DataError in this block; see `program_error`."""
    try:
        yield
    except DataError as error:
        program_error.end(error, error.exit_code)
