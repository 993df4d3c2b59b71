"""All pods of an attempt restore the same snapshot: the one that the pod of rank 0 chose and told in its claim.

Each pod alone would choose the newest snapshot that it finds, and a snapshot can be damaged, or appear, between the
looks of two pods.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from dtj_trainer import contract
from dtj_trainer.artifacts.backoff import Backoff
from dtj_trainer.artifacts.fence import claim_of_attempt
from dtj_trainer.artifacts.restore import RESUME_NEVER, restore, restore_exactly
from dtj_trainer.artifacts.s3 import S3Error

if TYPE_CHECKING:
    from collections.abc import Callable

    from dtj_trainer.artifacts.fence import Fence
    from dtj_trainer.artifacts.file_fetch import Near
    from dtj_trainer.artifacts.restore import Restored
    from dtj_trainer.artifacts.store import Store
    from dtj_trainer.artifacts.sync_settings import SyncSettings

log = logging.getLogger(__name__)

_LONGEST_POLL_SECONDS = 5.0


def restore_checkpoint(
    job: Store, settings: SyncSettings, near: Near, fence: Fence | None, timeout: float
) -> Restored | None:
    """Restore the snapshot of this attempt into the checkpoints folder; see `restore`. Raises S3Error and ValueError.

    job: the job's prefix. fence: of the pod with the claim.
    """
    snapshots, folder = job.below(contract.CHECKPOINTS), settings.checkpoints
    together = settings.shards and settings.resume != RESUME_NEVER
    if together and fence is None:
        known, restored = restore_as_rank_0(
            job,
            settings.attempt,
            lambda uri: restore_exactly(snapshots, folder, uri, near),
            timeout=timeout,
        )
        if known:
            return restored

    chosen_by_order = not (settings.resume_since or settings.resume_skip)

    def tell(uri: str, *, restored: bool = False) -> None:
        # Readers of the bucket take the newest snapshot for the one that counts, unless the claim names another one.
        if fence and (together or (restored and not chosen_by_order)):
            fence.announce_restore(uri, restored=restored)

    found = restore(
        snapshots,
        folder,
        settings.resume,
        near,
        kept=lambda index: index.kept(settings.keep, settings.keep_every),
        skip=settings.resume_skip,
        lineage=settings.lineage,
        on_choice=tell,
    )
    tell(found.uri if found else "", restored=True)
    return found


def restore_as_rank_0(
    job: Store,
    attempt: int,
    restore: Callable[[str], Restored],
    *,
    timeout: float,
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> tuple[bool, Restored | None]:
    """Restore the snapshot that the pod of rank 0 restores; return whether it has chosen, and what was restored.

    job: the job's prefix. restore: restores the snapshot with a URI. Waits until the pod of rank 0 has its snapshot,
    because that pod chooses another one if the first is damaged; for `timeout` seconds at most. Raises S3Error,
    Superseded among them.
    """
    deadline = now() + timeout
    restored: Restored | None = None
    fault: S3Error | None = None
    done = ""
    backoff = Backoff(_LONGEST_POLL_SECONDS)
    while True:
        claim = claim_of_attempt(job, contract.CLAIM_FILE, attempt)
        chosen = claim.restores if claim else None
        if chosen and chosen != done:
            done, restored, fault = chosen, None, None
            try:
                restored = restore(chosen)
            except S3Error as error:
                if error.transient:
                    raise
                fault = error  # If the snapshot is damaged, the pod of rank 0 chooses another one.
            continue
        is_over = claim is not None and (claim.restored or chosen == "")
        if is_over or now() >= deadline:
            if fault:
                raise fault
            if not is_over:
                log.warning("the pod of rank 0 has not restored in %.0f s: this pod goes on", timeout)
            return chosen is not None, restored
        sleep(backoff.next_delay())
