"""A thread that repeats passes of uploads, with backoff when S3 fails, until everything is uploaded."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Protocol

from dtj_trainer.artifacts.fence import Superseded
from dtj_trainer.artifacts.multipart import HandedOver
from dtj_trainer.artifacts.s3 import FINISHING_DELAY_SECONDS, Backoff, RefusedKey, S3Error
from dtj_trainer.background import run_in_background

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

TICK_SECONDS = 1.0
LASTING_SECONDS = 15.0
"""A caller that waits gets an error that is not transient (no such bucket) only after it persisted for this long."""
REFUSALS = 2
"""A caller that waits gets the refusal of a key only after this many passes with a refusal: a store that is starting
may refuse a request by mistake."""
REPEATS = 3
"""Each pass tries all files. While a caller waits for the end, the bytes of this many passes that leave something
count as progress. Bytes that later passes send belong to files that change all the time."""


class SyncPass(Protocol):
    """One round of uploads or downloads; see `CheckpointUploader.upload_pass`."""

    def __call__(self, *, ended: bool, died_ns: int | None) -> bool:
        """Transfer what is due; return True when nothing is left. Raises S3Error."""


class Uploader(Protocol):
    """Something that uploads in passes."""

    @property
    def bytes_uploaded(self) -> int:
        """Return the bytes sent so far."""

    def upload_pass(self, *, ended: bool, died_ns: int | None) -> bool:
        """Make one pass."""


class SyncLoop:
    """Runs passes in a thread of its own. Errors are logged, and passes are repeated as long as the loop runs.

    The loop ends by itself when a later attempt has taken over; `wait` then raises Superseded.
    """

    def __init__(
        self,
        what: str,
        sync_pass: SyncPass,
        interval: float = TICK_SECONDS,
        *,
        beside_program: bool = False,
        sent: Callable[[], int] = lambda: 0,
    ) -> None:
        """`what` the loop does: `uploading files`. `interval`: seconds between passes.

        `beside_program`: until the end of the program is reported, passes run at a low priority. `sent`: returns the
        bytes that the passes have sent.
        """
        self._what = what
        self._pass = sync_pass
        self._interval = interval
        self._changed = threading.Condition()
        self._asked = 0
        """The number of `ask` calls. `_answered`: the number of calls whose uploads are done. `_failed_after`: the
        number of calls that the last failed pass knew of."""
        self._answered = 0
        self._failed_after = 0
        self._ended = self._stopped = False
        self._died_ns: int | None = None
        self._error: S3Error | None = None
        self._failing_since = 0.0
        self._refusals = 0
        """The passes since the last `ask` that ended with a refused key."""
        self.failures = 0
        self._sent = sent
        self._repeats = 0
        """The passes since the last `ask` that sent something and left something, up to REPEATS. `_last_sent`: the
        bytes sent by the end of the last of them."""
        self._last_sent = 0
        self._beside_program = self._in_background = beside_program
        self._thread = threading.Thread(target=self._begin, name=what, daemon=True)

    @classmethod
    def of(cls, what: str, uploader: Uploader) -> SyncLoop:
        """Make the loop of an uploader that works beside a program."""
        return cls(what, uploader.upload_pass, beside_program=True, sent=lambda: uploader.bytes_uploaded)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Begin no more passes. A pass under way ends when it has sent what it sends."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def join(self, seconds: float) -> None:
        """Wait for the end of the last pass after `stop`."""
        self._thread.join(seconds)

    def program_died(self, died_ns: int) -> None:
        """Record that the program was killed at this wall-clock time; incomplete files are not uploaded."""
        with self._changed:
            self._died_ns = self._died_ns or died_ns
            self._hand_over()

    def program_ended(self) -> None:
        """Record that the program ended by itself: what it left is complete."""
        with self._changed:
            self._ended = True
            self._hand_over()

    def program_began(self) -> None:
        """Record that another program begins: no end counts any more. Passes run at a low priority again."""
        with self._changed:
            self._died_ns, self._ended = None, False
            if self._beside_program and not self._in_background and self._thread.is_alive():
                self._in_background = True
                self._hand_to_another()

    def ask(self, *, ended: bool) -> int:
        """Ask for the upload of everything that exists now; return the number to `wait` for.

        `ended` says that the program ended by itself.
        """
        with self._changed:
            self._asked += 1
            self._repeats = self._refusals = 0
            self._ended = ended
            self._hand_over()
            self._changed.notify_all()
            return self._asked

    def _hand_over(self) -> None:
        """Let a thread of normal priority continue after the current pass: a thread can't raise its own priority.

        The caller holds the lock, and runs with normal priority itself.
        """
        if not self._in_background or not self._thread.is_alive():
            return
        self._in_background = False
        self._hand_to_another()

    def _hand_to_another(self) -> None:
        self._thread = threading.Thread(
            target=self._succeed, args=(self._thread, self._in_background), name=self._what, daemon=True
        )
        self._thread.start()
        self._changed.notify_all()

    def _begin(self) -> None:
        if self._in_background:
            run_in_background()
        self._run()

    def _succeed(self, former: threading.Thread, in_background: bool) -> None:
        former.join()
        if in_background:
            run_in_background()
        if not isinstance(self._error, Superseded):
            self._run()

    def wait(self, asked: int, seconds_left: Callable[[], float]) -> None:
        """Wait until everything asked for is uploaded, while `seconds_left` is positive.

        Raises S3Error, the last error, when something could not be uploaded.
        """
        with self._changed:
            while self._answered < asked:
                left = seconds_left()
                if isinstance(self._error, Superseded):
                    raise self._error
                if left <= 0 or not self._thread.is_alive():
                    raise self._error or S3Error(f"{self._what} took too long", transient=True)
                if self._error and self._lasting(self._error, asked):
                    raise self._error
                self._changed.wait(min(left, 1.0))

    @property
    def progress(self) -> int:
        """The bytes sent, without those that are sent again and again: see REPEATS."""
        return self._sent() if self._repeats < REPEATS else self._last_sent

    def _lasting(self, error: S3Error, asked: int) -> bool:
        """Return whether an error is final: a pass that began after the `ask` has tried all other files too."""
        if isinstance(error, RefusedKey):
            return self._refusals >= REFUSALS
        tried = self._failed_after >= asked
        return tried and not error.transient and self._failing_for() >= LASTING_SECONDS

    def _failing_for(self) -> float:
        return time.monotonic() - self._failing_since if self._failing_since else 0.0

    def _run(self) -> None:
        backoff = Backoff()
        while True:
            with self._changed:
                if self._stopped or self._thread is not threading.current_thread():
                    return  # The loop is stopped, or another thread has taken over.
                asked, ended = self._asked, self._ended
                died_ns = None if ended else self._died_ns
            delay = self._interval
            done, repeats, sent_before = False, 0, self._sent()
            try:
                done = self._pass(ended=ended, died_ns=died_ns)
            except Superseded as error:
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                return
            except HandedOver:
                delay = 0.0
            except S3Error as error:
                delay = self._failed(error, backoff, asked)
            except Exception as error:
                log.debug("%s", self._what, exc_info=True)
                delay = self._failed(S3Error(f"{self._what}: {error!r}", transient=True), backoff, asked)
            else:
                self._recovered(backoff)
                repeats = int(not done and self._sent() > sent_before)
            with self._changed:
                if done:
                    self._answered = asked
                    self._changed.notify_all()
                elif asked == self._asked and asked > self._answered and self._repeats < REPEATS:
                    self._last_sent = self._sent()
                    self._repeats += repeats
                if asked > self._answered:
                    delay = min(delay, FINISHING_DELAY_SECONDS)
                if asked == self._asked and self._thread is threading.current_thread() and not self._stopped:
                    self._changed.wait(delay)

    def _failed(self, error: S3Error, backoff: Backoff, asked: int) -> float:
        delay = backoff.next_delay()
        with self._changed:
            self._failed_after = asked
            if asked == self._asked and isinstance(error, RefusedKey):
                self._refusals += 1
            if self._error is None:
                log.warning("%s failed and is tried again: %s", self._what, error)
                self._failing_since = time.monotonic()
            self._error = error
            self.failures += 1
            self._changed.notify_all()
        return delay

    def _recovered(self, backoff: Backoff) -> None:
        backoff.reset()
        with self._changed:
            if self._error is not None:
                log.info("%s works again after %.0f s", self._what, self._failing_for())
            self._error = None
            self._failing_since, self._refusals = 0.0, 0
