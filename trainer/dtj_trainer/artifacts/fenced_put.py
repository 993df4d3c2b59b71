"""Replaces an object only while it has the expected ETag, or while this process holds the claim of its attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dtj_trainer.artifacts.s3 import Changed, NoSuchKey, NotSupported, S3Error
from dtj_trainer.artifacts.store import ABSENT

if TYPE_CHECKING:
    from collections.abc import Callable

    from dtj_trainer.artifacts.fence import Fence
    from dtj_trainer.artifacts.store import Store

CONDITIONAL_TRIES = 3
"""Writers of earlier attempts may not write any more, so that the second of these puts usually succeeds."""


def put_fenced(
    store: Store, fence: Fence, key: str, etag: str, put: Callable[[str | None], str | None]
) -> str:
    """Call `put` with the condition for replacing the object of that ETag (or ABSENT); return the ETag of the new
    object.

    When the condition fails, the object may stem from an earlier attempt, or from this very put if its response was
    lost. The holder of the claim may replace either object. A process that lost the claim gets Superseded before the
    put. Raises Superseded, S3Error.
    """
    for _ in range(CONDITIONAL_TRIES):
        fence.hold()
        try:
            return put(fence.expecting(etag)) or etag
        except Changed:
            try:
                etag = store.etag(key)
            except NoSuchKey:
                etag = ABSENT
        except NotSupported:
            if fence.expecting(etag) is None:
                raise
            fence.without_conditions()
    store.abort_uploads(key)
    raise S3Error(f"{store.uri(key)} is being changed all the time", transient=True)
