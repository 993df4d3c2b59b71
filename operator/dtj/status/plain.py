"""A status without values from pods, for an API server that rejects the whole status because of such a value."""

from __future__ import annotations

from dtj.api.status import JobStatus

_MESSAGE_LENGTH = 256


def plain(status: JobStatus, stored: JobStatus) -> JobStatus:
    """Return `status` with the reports of pods as `stored` has them.

    Messages are shortened to 256 characters. A question mark replaces each character that is not ASCII.
    """
    failure = status.failure
    if failure is not None and failure != stored.failure:
        failure = failure.model_copy(
            update={
                "failure_class": _ascii(failure.failure_class),
                "message": _ascii(failure.message),
                "rank": None,
                "exit_code": None,
                "signal": None,
                "last_log_lines": None,
            }
        )
    conditions = [
        condition.model_copy(update={"message": _ascii(condition.message)}) for condition in status.conditions
    ]
    update = {
        "progress": stored.progress,
        "artifacts": stored.artifacts,
        "failure": failure,
        "conditions": conditions,
    }
    return status.model_copy(update=update)


def _ascii(text: str | None) -> str | None:
    return None if text is None else text[:_MESSAGE_LENGTH].encode("ascii", "replace").decode()
