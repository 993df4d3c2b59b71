"""Errors of the export and of the server, as sentences for users."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from dtj_trainer import contract
from dtj_trainer.contract import program_error

if TYPE_CHECKING:
    from collections.abc import Iterator


class ServingError(Exception):
    """A model can't be exported or served. The message is for the user."""

    exit_code = contract.EXIT_DATA


class ModelMissing(ServingError):
    """No model is at the place that was named."""


class ModelDamaged(ServingError):
    """A file of a model differs from its manifest or is not in its format."""


class NotExportable(ServingError):
    """A model has no form that can be converted to ONNX."""


class StoreUnavailable(ServingError):
    """The store of a model does not answer, or refuses. A later try may succeed."""

    exit_code = contract.EXIT_UNAVAILABLE


def first_line(error: Exception) -> str:
    """Return class and first line of an error of another library."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0][:300]}" if text else type(error).__name__


@contextmanager
def exit_on_error() -> Iterator[None]:
    """End the process on a ServingError in this block; see `program_error`."""
    try:
        yield
    except ServingError as error:
        program_error.end(error, error.exit_code)
