"""SIGTERM as a question that the training loop asks, in place of the end of the process."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

EXIT_CODE = 128 + signal.SIGTERM


class StopRequest:
    """Whether this process got SIGTERM since it was made. For the main thread."""

    def __init__(self) -> None:
        self.requested = False
        signal.signal(signal.SIGTERM, self._note)

    def _note(self, _signal: int, _frame: FrameType | None) -> None:
        self.requested = True
