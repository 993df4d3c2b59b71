"""Tells of artifacts in a pod that uploads none of their kind: only the pod of rank 0 or of the chief does."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from dtj_trainer import contract
from dtj_trainer.artifacts.local_checkpoints import read_mark

if TYPE_CHECKING:
    from pathlib import Path

    from dtj_trainer.artifacts.sync_settings import SyncSettings

log = logging.getLogger(__name__)


class Unuploaded:
    """Looks for such artifacts in one pod's workspace, and warns of the first one."""

    def __init__(self, settings: SyncSettings) -> None:
        root, part = settings.root, settings.part
        self._folders = [] if part == "primary" else [root / contract.MODEL]
        if part == "other":
            self._folders.append(root / contract.TENSORBOARD)
            self._folders += [] if settings.shards else [settings.checkpoints]
        self.restored: set[str] = set()
        """The names of the restored checkpoints."""

    def warn(self) -> None:
        """Look once more, unless a warning was given."""
        for folder in self._folders:
            with suppress(OSError):  # A program may remove the folders themselves.
                for path in folder.iterdir():
                    if self._is_of_the_program(path):
                        self._folders = []
                        log.warning(
                            "%s is not uploaded: only the pod of rank 0 or of the chief uploads artifacts",
                            path,
                        )
                        return

    def _is_of_the_program(self, path: Path) -> bool:
        mark = read_mark(path)
        part = mark is not None and mark.parts > 1
        return not part and not path.name.startswith(".") and path.name not in self.restored
