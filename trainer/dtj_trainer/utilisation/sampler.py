"""Samples what the programs of a pod use, in a thread that takes no processor time from the programs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from dtj_trainer import contract
from dtj_trainer.artifacts.background_priority import run_in_background
from dtj_trainer.background import Background
from dtj_trainer.launch.settings import Settings
from dtj_trainer.utilisation.figures import Sample, gauges, pause, sample, totals
from dtj_trainer.utilisation.readings import Reading
from dtj_trainer.utilisation.recorder import Recorder

log = logging.getLogger(__name__)

Read = Callable[[Mapping[str, int]], Reading]
"""Returns a reading of programs, given by the first process of each."""
Keep = Callable[[Sample, float], None]
"""Keeps a sample and its time, in seconds since the first reading of a program."""


class Sampler:
    """Takes a reading at intervals, and keeps what the programs used in between."""

    def __init__(self, settings: Settings, programs: Callable[[], Mapping[str, int]]) -> None:
        """programs: returns the first process of each running program, by name."""
        self._settings = settings
        self._programs = programs
        self._before: Reading | None = None
        self._first_at: float | None = None
        self._latest: Sample | None = None

    def start(self, background: Background) -> None:
        """Sample in the background."""
        background.start(lambda: self._follow(background), "utilisation")

    def gauges(self) -> dict[str, float]:
        """Return the latest sample as Prometheus' gauges; empty while no program runs."""
        latest = self._latest
        return gauges(latest) if latest else {}

    def totals(self) -> contract.Utilisation | None:
        """Return what the pod used in the latest sample; None while no program runs."""
        latest = self._latest
        return totals(latest) if latest else None

    def look(self, read: Read, keep: Keep) -> float:
        """Take a reading, and keep the sample since the last one; return the seconds until the next reading."""
        began = time.thread_time()
        before, now = self._before, read(self._programs())
        self._before, latest, age = now, None, 0.0
        if now.programs:
            self._first_at = now.at if self._first_at is None else self._first_at
            age = now.at - self._first_at
            latest = sample(before, now) if before else None
        # Published before it is written: who finds the sample in the file finds it in the gauges too.
        self._latest = latest
        if latest:
            keep(latest, age)
        return pause(age, time.thread_time() - began)

    def _follow(self, background: Background) -> None:
        run_in_background()
        # Imported here, because an image may have dtj_trainer without psutil.
        try:
            from dtj_trainer.utilisation.sources import Sources
        except ImportError as error:
            log.warning("utilisation is not measured: %s", error)
            return
        settings = self._settings
        sources, recorder = Sources(settings), Recorder(settings.root, settings.pod.name, settings.attempt)
        while not background.wait(self.look(sources.read, recorder.add)):
            pass
