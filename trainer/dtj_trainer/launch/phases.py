"""The times at which a pod reached its phases."""

from __future__ import annotations

import threading
from typing import Literal

from dtj_trainer import contract
from dtj_trainer.clock import now_text

Phase = Literal["started", "restored", "peersReady", "programStarted", "firstStep", "programEnded", "synced"]


class PhaseLog:
    """Records when each phase was first reached. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times: contract.Phases = {}

    def reached(self, phase: Phase) -> None:
        """Record the current time, unless the phase was reached before."""
        with self._lock:
            self._times.setdefault(phase, now_text())

    def times(self) -> contract.Phases:
        """Return the times of the phases reached so far."""
        with self._lock:
            return dict(self._times)
