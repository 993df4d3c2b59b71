"""Supervises the ranks of one pod: records which ranks run, ends them, and does the final sync."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from dtj_trainer import contract
from dtj_trainer.launch.control import Answer, Attached
from dtj_trainer.launch.pod import ArtifactsUnavailable, Pod

log = logging.getLogger(__name__)


class RankSupervisor:
    """Implements `control.Supervision` for a pod."""

    def __init__(self, pod: Pod) -> None:
        self._pod = pod
        self._changed = threading.Condition()
        self._running: dict[int, Attached] = {}
        """The running ranks, by rank."""
        self._all_closed = True
        self._finishing = threading.Lock()
        self._opened = threading.Event()
        self._closed_by: ArtifactsUnavailable | None = None

    def opened(self, error: ArtifactsUnavailable | None = None) -> None:
        """Let the ranks start after the pod is open; with an error, report that it can't be opened."""
        self._closed_by = error
        self._opened.set()

    def ready(self) -> Answer:
        """Wait until the pod is open, and return the result."""
        self._opened.wait()
        error = self._closed_by
        return Answer(str(error), self._pod.report(), error.cause) if error else Answer(None, {})

    def attached(self, rank: Attached) -> None:
        """Record that a rank's program runs."""
        self._pod.phases.reached("programStarted")
        self._pod.programs.began(str(rank.rank), rank.program_pid)
        with self._changed:
            self._running[rank.rank] = rank
        log.info("rank %d runs as process %d", rank.rank, rank.program_pid)

    def died(self, at_ns: int) -> None:
        """Record that a rank's program was killed, so that its last file may be incomplete."""
        self._pod.program_died(at_ns)

    def ended(self, rank: Attached, *, cut_off: bool, torn: Sequence[Path]) -> None:
        """Record that a rank's program ended; see `Supervision.ended`."""
        self._pod.note_torn(torn)
        self._gone(rank, cut_off=cut_off)

    def lost(self, rank: Attached) -> None:
        """Kill the program of a wrapper that was killed."""
        log.warning("the wrapper of rank %d is gone; its processes are ended", rank.rank)
        _signal_group(rank.program_pid, signal.SIGKILL)
        self._gone(rank, cut_off=True)

    def _gone(self, rank: Attached, *, cut_off: bool) -> None:
        if cut_off:
            self._pod.program_died(time.time_ns())
        self._pod.programs.ended(str(rank.rank))
        with self._changed:
            self._running.pop(rank.rank, None)
            self._all_closed &= not cut_off
            if not self._running:
                self._pod.phases.reached("programEnded")
            self._changed.notify_all()

    def finish(self) -> Answer:
        """Wait until no rank runs in this pod, upload everything, and return the result."""
        with self._changed:
            self._changed.wait_for(lambda: not self._running)
            ended = self._all_closed
        with self._finishing:
            try:
                self._pod.finish(ended=ended)
            except ArtifactsUnavailable as error:
                return Answer(str(error), self._pod.report(), error.cause)
            self._pod.end_tracking("FINISHED")
        return Answer(None, self._pod.report())

    def stop(self) -> bool:
        """Ask the running ranks to end, then kill them; return whether all closed their files."""
        with self._changed:
            running = list(self._running.values())
        for rank in running:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(rank.wrapper_pid, signal.SIGTERM)
        deadline = time.monotonic() + contract.STOP_SECONDS
        with self._changed:
            self._changed.wait_for(lambda: not self._running, max(deadline - time.monotonic(), 0))
            left = list(self._running.values())
        for rank in left:
            _signal_group(rank.program_pid, signal.SIGKILL)
        with self._changed:
            self._changed.wait_for(lambda: not self._running, 2.0)
            return self._all_closed and not self._running


def _signal_group(leader: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)
