"""The checkpoint uploader of rank 0, for benchmarks that call the uploader directly."""

from __future__ import annotations

from pathlib import Path

from dtj_trainer import contract
from dtj_trainer.artifacts.checkpoint_upload import CheckpointUploader
from dtj_trainer.artifacts.fence import Fence
from dtj_trainer.artifacts.store import Store


def checkpoint_uploader(folder: Path, store: Store, *, attempt: int = 1, keep: int = 3) -> CheckpointUploader:
    """store: the job's prefix. attempt, keep: as in a pod's environment. Files count at once, without settling."""
    return CheckpointUploader(
        folder,
        store.below(contract.CHECKPOINTS),
        fence=Fence(store, contract.CLAIM_FILE, attempt),
        keep=keep,
        settle_seconds=0,
        step_at=lambda _: None,
    )
