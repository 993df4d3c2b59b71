"""When what happened: the times of a pod's phases."""

from __future__ import annotations

import threading
from typing import Literal

from dtj_trainer import contract
from dtj_trainer.clock import now_text

Phase = Literal["started", "restored", "peersReady", "programStarted", "firstStep", "programEnded", "synced"]


class PhaseLog:
    """Notes when a phase was first reached; may be shared by threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times: contract.Phases = {}

    def reached(self, phase: Phase) -> None:
        """Note the present time, unless the phase was reached before."""
        with self._lock:
            self._times.setdefault(phase, now_text())

    def times(self) -> contract.Phases:
        """What was reached so far."""
        with self._lock:
            return dict(self._times)
