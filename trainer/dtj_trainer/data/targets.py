"""Where `stage` writes shards: a folder of this machine, or a prefix in S3."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

from dtj_trainer.artifacts.s3 import DATA_TIMEOUT_SECONDS, NoSuchKey, S3Error, retry_transient
from dtj_trainer.artifacts.store import Store
from dtj_trainer.data.errors import DataNotFound, DataUnavailable
from dtj_trainer.data.sources import s3_location

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

T = TypeVar("T")


class Target(Protocol):
    """A place for objects, named by paths. Each method raises DataNotFound or DataUnavailable."""

    def put(self, name: str, path: Path) -> str | None:
        """Move a local file to an object; return the object's ETag, if the place has ETags."""

    def write(self, name: str, content: bytes) -> None:
        """Write a small object, completely or not at all."""

    def read(self, name: str) -> bytes | None:
        """Return the content of a small object; None where there is no object."""

    def read_all(self, folder: str) -> dict[str, bytes]:
        """Return the small objects directly below a folder, by name."""

    def remove(self, names: list[str]) -> None:
        """Remove objects. A missing object is no error."""


class FolderTarget:
    """A folder, which is created if needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, name: str, path: Path) -> str | None:
        """See Target."""
        arriving = self._arriving(name)
        shutil.move(path, arriving)
        arriving.replace(self._folder / name)
        return None

    def write(self, name: str, content: bytes) -> None:
        """See Target."""
        arriving = self._arriving(name)
        arriving.write_bytes(content)
        arriving.replace(self._folder / name)

    def read(self, name: str) -> bytes | None:
        """See Target."""
        path = self._folder / name
        return path.read_bytes() if path.exists() else None

    def read_all(self, folder: str) -> dict[str, bytes]:
        """See Target."""
        files = (path for path in (self._folder / folder).glob("*") if not path.name.startswith("."))
        return {path.name: path.read_bytes() for path in files}

    def remove(self, names: list[str]) -> None:
        """See Target."""
        for name in names:
            (self._folder / name).unlink(missing_ok=True)
        for folder in {(self._folder / name).parent for name in names}:
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()

    def _arriving(self, name: str) -> Path:
        path = self._folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataNotFound(f"{path.parent} can't be created: {error.strerror}") from error
        return path.with_name(f".{path.name}.part")


class StoreTarget:
    """A prefix in S3."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def put(self, name: str, path: Path) -> str | None:
        """See Target."""
        etag = self._asked(lambda: self._store.put_file(name, path))
        path.unlink()
        return etag

    def write(self, name: str, content: bytes) -> None:
        """See Target."""
        self._asked(lambda: self._store.put_bytes(name, content))

    def read(self, name: str) -> bytes | None:
        """See Target."""
        try:
            return self._asked(lambda: self._store.get_bytes(name))
        except NoSuchKey:
            return None

    def read_all(self, folder: str) -> dict[str, bytes]:
        """See Target."""
        names = self._asked(lambda: [item.key for item in self._store.objects(folder)])
        found = {name.removeprefix(f"{folder}/"): self.read(name) for name in names}
        return {name: content for name, content in found.items() if content is not None}

    def remove(self, names: list[str]) -> None:
        """See Target."""
        self._asked(lambda: self._store.delete(names))

    def _asked(self, ask: Callable[[], T]) -> T:
        try:
            return retry_transient(
                ask,
                timeout=DATA_TIMEOUT_SECONDS,
                on_wait=lambda error, delay: log.warning("staging: retry in %.1f s: %s", delay, error),
            )
        except NoSuchKey:
            raise
        except S3Error as error:
            raise (DataUnavailable if error.transient else DataNotFound)(str(error)) from error


def open_target(uri: str) -> Target:
    """Return the target at an `s3://` URI, a `file://` URI or a path. Raises DataNotFound for other URIs."""
    parts = urlsplit(uri)
    if parts.scheme == "s3":
        return StoreTarget(Store(s3_location(uri)))
    if parts.scheme not in ("", "file") or (parts.scheme and parts.netloc not in ("", "localhost")):
        raise DataNotFound(
            f"{uri} can't be written: a set is staged to s3://bucket/prefix, file:///folder or a path"
        )
    return FolderTarget(Path(unquote(parts.path)) if parts.scheme else Path(uri))
