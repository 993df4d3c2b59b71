"""Files of a data set that is read whole, from a folder or from S3."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from dtj_trainer.artifacts.download import ByteCount
from dtj_trainer.artifacts.s3 import DamagedObject
from dtj_trainer.data.errors import DataCorrupt, DataTooLarge
from dtj_trainer.data.layouts import layout_of
from dtj_trainer.data.staging import asked, compare

if TYPE_CHECKING:
    from collections.abc import Collection

    from dtj_trainer.data.sources import DataSource

MAX_FILES = 500_000
MAX_FILE_BYTES = 2 << 30
"""Limit of one file that is read whole."""


class Files(Protocol):
    """The files of a set, by path below its URI."""

    remote: bool
    names: Collection[str]

    def read(self, name: str) -> bytes:
        """Return a file's content. Raises DataError, or OSError for a local file."""

    def fingerprint(self) -> str:
        """Return a digest that changes when a file changes."""


class FolderFiles:
    """The files of a folder of this machine, and of the folders in it."""

    remote = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        direct = {path.name for path in folder.iterdir() if path.is_file() and path.name[0] != "."}
        self.names: Collection[str] = direct if layout_of(direct) else frozenset(_walk(folder))

    def read(self, name: str) -> bytes:
        """See Files."""
        path = self._folder / name
        _check_size(name, path.stat().st_size)
        return path.read_bytes()

    def fingerprint(self) -> str:
        """See Files."""
        stats = ((name, (self._folder / name).stat()) for name in sorted(self.names))
        return _digest(*(f"{name} {stat.st_size} {stat.st_mtime_ns}" for name, stat in stats))


class StoreFiles:
    """The files below a prefix in S3. Each is received into memory, again where the connection breaks."""

    remote = True

    def __init__(self, uri: str, source: DataSource) -> None:
        self._uri = uri
        self._source = source
        self._received = ByteCount()
        self._files = asked(uri, lambda: source.list(below=True), self._received)
        # Leave out hidden files, as in a local folder: editors, notebooks and macOS leave them behind.
        self.names: Collection[str] = [name for name in self._files if not _hidden(name)]
        _check_count(uri, len(self.names))

    def read(self, name: str) -> bytes:
        """See Files."""
        file = self._files[name]
        _check_size(name, file.size)

        def ask() -> bytes:
            content = bytearray()
            for chunk in self._source.read(file, 0):
                content += chunk
                self._received.add(len(chunk))
            md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
            compare(self._source, file, len(content), md5)
            return bytes(content)

        try:
            return asked(self._uri, ask, self._received)
        except DamagedObject as error:
            raise DataCorrupt(str(error)) from error

    def fingerprint(self) -> str:
        """See Files."""
        return _digest(*(f"{name} {file.size} {file.etag}" for name, file in sorted(self._files.items())))


def _hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


def _walk(folder: Path) -> list[str]:
    """List the files, and empty folders with a `/` at the end, as consoles of S3 list them."""
    found: list[str] = []
    for parent, folders, files in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        below = Path(parent).relative_to(folder)
        found += [(below / name).as_posix() for name in files if not name.startswith(".")]
        if not files and not folders and below.parts:
            found.append(f"{below.as_posix()}/")
        _check_count(str(folder), len(found))
    return found


def _check_count(uri: str, count: int) -> None:
    if count > MAX_FILES:
        raise DataTooLarge(
            f"{uri} has more than {MAX_FILES} files: write the set as shards by `dtj data stage`"
        )


def _check_size(name: str, size: int) -> None:
    if size > MAX_FILE_BYTES:
        raise DataTooLarge(
            f"{name} has {size} bytes; the limit of a file that is read whole is {MAX_FILE_BYTES}: write the set as "
            "shards by `dtj data stage`"
        )


def _digest(*lines: str) -> str:
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()
