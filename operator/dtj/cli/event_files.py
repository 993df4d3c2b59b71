"""The event files of a job, brought into a folder as they appear and grow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dtj.api.errors import Unusable
from dtj_trainer import contract

if TYPE_CHECKING:
    from dtj.client import Artifacts


class EventFiles:
    """Mirrors the bucket's TensorBoard files into a folder."""

    def __init__(self, artifacts: Artifacts, folder: Path) -> None:
        self._artifacts = artifacts
        self._folder = folder.resolve()
        self._fetched: dict[str, str] = {}
        """ETags by key."""

    def fetch(self) -> int:
        """Bring what is new or has changed; how many files that were. Raises DtjError."""
        fresh = [
            item
            for item in self._artifacts.ls(contract.TENSORBOARD)
            if self._fetched.get(item.key) != item.etag
        ]
        for item in fresh:
            file = (self._folder / item.key.removeprefix(f"{contract.TENSORBOARD}/")).resolve()
            if not file.is_relative_to(self._folder):
                raise Unusable(f"{item.key} in {self._artifacts.uri} has a key that leads out of its folder")
            _store(file, self._artifacts.read(item.key))
            self._fetched[item.key] = item.etag
        return len(fresh)


def _store(file: Path, content: bytes) -> None:
    """Write a file; one that has grown is appended to, as TensorBoard goes on reading where it was."""
    file.parent.mkdir(parents=True, exist_ok=True)
    there = file.read_bytes() if file.exists() else b""
    if content.startswith(there):
        with file.open("ab") as opened:
            opened.write(content[len(there) :])
    else:
        file.write_bytes(content)
