"""Puts an object over what this process knows to be there, and over anything else only as the claim's holder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dtj_trainer.artifacts.s3 import Changed, NoSuchKey, NotSupported, S3Error
from dtj_trainer.artifacts.store import ABSENT

if TYPE_CHECKING:
    from collections.abc import Callable

    from dtj_trainer.artifacts.fence import Fence
    from dtj_trainer.artifacts.store import Store

CONDITIONAL_TRIES = 3
"""Of a put over what others put there: none of them may write any more, so that the second one succeeds."""


def put_fenced(
    store: Store, fence: Fence, key: str, etag: str, put: Callable[[str | None], str | None]
) -> str:
    """Call `put` with the condition for replacing the object of that ETag (or ABSENT); the ETag of the new one.

    What is in the way may be an earlier attempt's, or this put itself, its answer lost: with the claim in
    hand both may be replaced, and who has lost the claim learns it before any put. Raises Superseded, S3Error.
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
