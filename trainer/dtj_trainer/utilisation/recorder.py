"""Keeps samples as lines of JSON and as TensorBoard's scalars, in files that only dtj-launch writes."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path

from dtj_trainer import contract
from dtj_trainer.clock import now_text
from dtj_trainer.tensorboard import ScalarWriter
from dtj_trainer.utilisation.figures import Sample, row, scalars

log = logging.getLogger(__name__)

ROTATE_SECONDS = 6 * 3600.0
"""Each event file is at least one object of the bucket: with this age, there are few in a week."""


class Recorder:
    """Appends the samples of one pod to its files. They do not lie among the program's own event files."""

    def __init__(
        self, root: Path, pod: str, attempt: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """root: the workspace. pod: `<role>-<index>`. clock: returns monotonic seconds."""
        self._folder = root / contract.UTILISATION
        self._pod = pod
        self._attempt = attempt
        self._events = ScalarWriter(
            self._folder / contract.TENSORBOARD, rotate_seconds=ROTATE_SECONDS, clock=clock
        )
        self._told = False

    def add(self, sample: Sample, age: float) -> None:
        """Append a sample. age: seconds since the first reading, which are TensorBoard's steps.

        A disk without room is told once, and the sample is lost: the program's own writes matter more.
        """
        line = row(sample, time=now_text(), pod=self._pod, attempt=self._attempt)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with (self._folder / f"{self._pod}.jsonl").open("a") as file:
                file.write(json.dumps(line, separators=(",", ":")) + "\n")
            self._events.add(round(age), scalars(sample, self._pod))
        except OSError as error:
            if not self._told:
                self._told = True
                log.warning("utilisation can't be written: %s", error)
