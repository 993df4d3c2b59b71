"""Mirrors the event files of a job from the bucket into a folder that TensorBoard reads."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from dtj_trainer import contract
from dtj_trainer.artifacts.key_names import path_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from dtj_trainer.artifacts.store import StoredObject

log = logging.getLogger(__name__)

FETCH_SECONDS = 5.0
"""Seconds from the end of one pass over the bucket to the next."""


class EventFiles:
    """Mirrors the bucket's TensorBoard files into a folder. Only reads the bucket."""

    def __init__(
        self,
        folder: Path,
        listed: Callable[[str], Iterable[StoredObject]],
        fetch_growth: Callable[[str, Path], None],
    ) -> None:
        """`listed` lists the objects below a folder, as `Store.objects`; `fetch_growth` works as
        `Store.get_growth`.
        """
        self._folder = folder.resolve()
        self._listed = listed
        self._fetch_growth = fetch_growth
        self._fetched: dict[str, str] = {}
        """ETags of the fetched objects, by key."""

    def fetch(self) -> int:
        """Fetch the files that are new or have changed, and return their number. Raises what the two callables
        raise.
        """
        fresh = [
            item for item in self._listed(contract.TENSORBOARD) if self._fetched.get(item.key) != item.etag
        ]
        fetched = 0
        for item in fresh:
            file = (self._folder / path_of(item.key).removeprefix(f"{contract.TENSORBOARD}/")).resolve()
            self._fetched[item.key] = item.etag
            if item.key.endswith("/") or not file.is_relative_to(self._folder):
                log.warning("%s is not the key of an event file and is ignored", item.key)
                continue
            file.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._fetch_growth(item.key, file)
            except BaseException:
                del self._fetched[item.key]
                raise
            fetched += 1
        return fetched
