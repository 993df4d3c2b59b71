"""The models that a server has, by name, and their replacement by newer versions."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from dtj_trainer.serving.batching import Batcher, Limits
from dtj_trainer.serving.errors import ServingError
from dtj_trainer.serving.loaded_model import LoadedModel, load

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dtj_trainer.serving.metrics import Metrics
    from dtj_trainer.serving.places import Place

log = logging.getLogger(__name__)
_LONGEST_PAUSE = 16
"""After failures, looks at a manifest are left out: 1, 2, 4 and so on, up to this number."""


class Slot:
    """A name with the version that answers. A newer one takes new requests; the older one answers its own.

    Raises ServingError when the model can't be loaded.
    """

    def __init__(
        self,
        name: str,
        place: Place,
        limits: Limits,
        runs: threading.Semaphore,
        threads: int,
        metrics: Metrics,
    ) -> None:
        self.name = name
        self._place, self._threads, self._metrics = place, threads, metrics
        self._seen = place.version()
        self.model: LoadedModel = load(place, threads)
        metrics.loaded(name, self.model, None)
        self.batcher = Batcher(name, limits, runs, lambda examples: metrics.ran(name, examples))
        self._failures = self._left_out = 0

    @property
    def uri(self) -> str:
        """The model's folder."""
        return self._place.uri

    def refresh(self) -> None:
        """Load the model if its manifest has changed. Keep the present one if that fails."""
        if self._left_out:
            self._left_out -= 1
            return
        try:
            # Before the files: if the manifest changes meanwhile, the next call sees it.
            version = self._place.version()
            if version == self._seen:
                self._failures = 0
                return
            new = load(self._place, self._threads)
        except ServingError as error:
            self._left_out = min(2**self._failures - 1, _LONGEST_PAUSE)
            self._failures += 1
            self._metrics.load_failed(self.name)
            log.warning("%s keeps its version %s: %s", self.name, self.model.version, error)
            return
        self._seen, self._failures = version, 0
        if new.version == self.model.version and new.description == self.model.description:
            return
        self._metrics.loaded(self.name, new, self.model)
        log.info("%s: version %s replaces %s", self.name, new.version, self.model.version)
        self.model = new


class Watch:
    """A thread that refreshes slots every `seconds`."""

    def __init__(self, slots: Mapping[str, Slot], seconds: float) -> None:
        self._slots, self._seconds = slots, seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="manifests", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._ended.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._ended.wait(self._seconds):
            for slot in self._slots.values():
                try:
                    slot.refresh()
                except Exception:
                    log.exception("%s could not be refreshed", slot.name)
