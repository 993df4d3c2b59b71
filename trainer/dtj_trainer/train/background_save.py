"""Saves that run beside the training, one at a time."""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)


class BackgroundSave:
    """Runs one save at a time in a thread of its own. All calls come from one thread.

    The thread has the priority of the program: a thread of lower priority would make the training wait whenever it
    holds Python's global lock. `save` should leave long work to calls that release the lock, or to a process.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._under_way: Future[object] | None = None

    @property
    def busy(self) -> bool:
        """Whether a save is under way."""
        return self._under_way is not None and not self._under_way.done()

    def begin(self, save: Callable[[], object]) -> None:
        """Wait for the save under way, then start `save`. Raises what the earlier save raised."""
        self.wait()
        self._under_way = self._thread.submit(save)

    def wait(self) -> None:
        """Wait for the save under way. If the save has failed, the first call raises its error."""
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.result()

    def close(self) -> None:
        """Wait for the save under way. Log its error instead of raising it: the caller may raise another error."""
        try:
            self.wait()
        except Exception:
            log.exception("the checkpoint could not be written")
        self._thread.shutdown()
