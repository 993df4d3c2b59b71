"""What the programs here have in common: their folder, their epochs, and the death of the first attempt."""

from __future__ import annotations

import os
import signal
import time

RANK = int(os.environ.get("RANK", "0"))
FOLDER = os.environ.get("LAYOUT_FOLDER") or os.environ.get("DTJ_CHECKPOINTS_DIR") or "/dtj/checkpoints"
FOLDER = FOLDER.replace("RANK", str(RANK))
EPOCHS, PAUSE = int(os.environ.get("LAYOUT_EPOCHS", "6")), float(os.environ.get("LAYOUT_PAUSE", "4"))
KILLED_AFTER = 4


def begins(epoch: int) -> None:
    """Say which epoch comes first; 1: nothing was restored."""
    print(f"rank {RANK} begins with epoch {epoch}", flush=True)


def saved(epoch: int) -> None:
    """Mark, for whoever traces system calls, that the save of an epoch is complete; then train, or die."""
    # No such path exists. The call alone is what counts.
    try:
        os.unlink(f"{FOLDER}.saved.{epoch}")
    except OSError:
        pass
    time.sleep(PAUSE)
    if os.environ.get("DTJ_ATTEMPT") == "1" and epoch == KILLED_AFTER and RANK == 0:
        os.kill(os.getpid(), signal.SIGKILL)
