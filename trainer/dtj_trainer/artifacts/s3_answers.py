"""What the answer of a store says that an exception of boto3 carries."""

from __future__ import annotations

from http import HTTPStatus

_CONDITION_REFUSED = {"InvalidArgument", "InvalidRequest", "NotImplemented"}
"""Answers with status 400 of stores that do not know the condition of a put. AWS answers with status 501."""


def status_of(error: Exception) -> int | None:
    """Return the status of the HTTP answer that is the cause of an error; None without an answer."""
    answer = getattr(error, "response", {}).get("ResponseMetadata", {})
    status: int | None = answer.get("HTTPStatusCode")
    return status


def is_out_of_range(error: Exception) -> bool:
    """Return whether the store has no bytes in the range of the request."""
    return status_of(error) == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE


def is_condition_refused(error: Exception) -> bool:
    """Return whether the store does not know the condition of the put."""
    code = getattr(error, "response", {}).get("Error", {}).get("Code")
    return status_of(error) == HTTPStatus.BAD_REQUEST and code in _CONDITION_REFUSED
