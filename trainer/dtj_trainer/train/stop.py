"""Makes SIGTERM a flag that the training loop checks, instead of the end of the process."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

log = logging.getLogger(__name__)

EXIT_CODE = 128 + signal.SIGTERM
STOP_SECONDS = 40.0
"""Seconds from SIGTERM to the exit of a program that can't save any more. The value is less than STOP_SECONDS of
dtj_trainer.contract, after which dtj-launch kills the program, with an exit code that does not mean a stop."""
_LOOK_SECONDS = 0.5


class StopRequest:
    """Records whether this process received SIGTERM. Construct it in the main thread."""

    def __init__(self) -> None:
        self.requested = False
        signal.signal(signal.SIGTERM, self._note)

    def _note(self, _signal: int, _frame: FrameType | None) -> None:
        self.requested = True


def end_when_stopped(stop: StopRequest, what: str) -> None:
    """Make this process exit with EXIT_CODE STOP_SECONDS after SIGTERM, if it still runs then, and log `what`."""

    def watch() -> None:
        while not stop.requested:
            time.sleep(_LOOK_SECONDS)
        time.sleep(STOP_SECONDS)
        with contextlib.suppress(Exception):
            log.warning("%s within %.0f s of SIGTERM: the process exits", what, STOP_SECONDS)
        os._exit(EXIT_CODE)

    threading.Thread(target=watch, name="end-when-stopped", daemon=True).start()
