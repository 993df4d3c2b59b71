"""Where a model's files are: a folder of this machine, or a prefix in S3."""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote, urlsplit

from dtj_trainer import contract
from dtj_trainer.artifacts import s3
from dtj_trainer.artifacts.model_manifest import NAME
from dtj_trainer.artifacts.store import Store, open_store
from dtj_trainer.serving.errors import ModelDamaged, ModelMissing, StoreUnavailable
from dtj_trainer.serving.model_manifest import MAX_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator


class Place(Protocol):
    """A model's folder, to read from. Methods raise ServingError."""

    @property
    def uri(self) -> str:
        """The folder's URI or path."""

    def version(self) -> str:
        """Return a text that changes with the manifest. Raises ModelMissing without a manifest."""

    def read(self, name: str, most: int) -> bytes:
        """Read a file of at most `most` bytes. Raises ModelMissing, or ModelDamaged for a larger file."""


class FolderPlace:
    """See Place."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def uri(self) -> str:
        """See Place."""
        return str(self._folder)

    def version(self) -> str:
        """See Place."""
        return hashlib.sha256(self.read(NAME, MAX_BYTES)).hexdigest()

    def read(self, name: str, most: int) -> bytes:
        """See Place."""
        try:
            with (self._folder / name).open("rb") as file:
                content = file.read(most + 1)
        except OSError as error:
            raise ModelMissing(f"{self._folder / name} can't be read: {error.strerror}") from error
        if len(content) > most:
            raise ModelDamaged(f"{self._folder / name} has more than {most} bytes")
        return content


class StorePlace:
    """See Place."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def uri(self) -> str:
        """See Place."""
        return self._store.location.uri

    def version(self) -> str:
        """See Place."""
        with sentences():
            return self._store.etag(NAME)

    def read(self, name: str, most: int) -> bytes:
        """See Place."""
        with sentences():
            sizes = {found.key: found.size for found in self._store.named(name)}
            if name not in sizes:
                raise ModelMissing(f"{self._store.uri(name)} does not exist")
            if sizes[name] > most:
                raise ModelDamaged(
                    f"{self._store.uri(name)} has {sizes[name]} bytes, and at most {most} are read"
                )
            return self._store.get_bytes(name)


@contextmanager
def sentences() -> Iterator[None]:
    """Convert errors of the store in this block to errors of serving."""
    try:
        yield
    except s3.NoSuchKey as error:
        raise ModelMissing(str(error)) from error
    except s3.S3Error as error:
        raise StoreUnavailable(str(error)) from error


def local_folder(uri: str) -> Path | None:
    """Return the folder of a path or a `file://` URI; None for `s3://`. Raises ModelMissing for anything else."""
    parts = urlsplit(uri)
    if parts.scheme == "s3":
        return None
    if parts.scheme not in ("", "file") or (parts.scheme == "file" and parts.netloc not in ("", "localhost")):
        raise ModelMissing(f"{uri} can't be read: a model is at s3://bucket/prefix, file:///folder or a path")
    folder = Path(unquote(parts.path)) if parts.scheme else Path(uri)
    if not folder.is_dir():
        raise ModelMissing(f"{uri} is not a folder")
    return folder


def model_store(uri: str) -> Store:
    """Return the store of an `s3://` URI. Raises ModelMissing for a malformed one."""
    try:
        return open_store(uri)
    except ValueError as error:
        raise ModelMissing(str(error)) from error


def find(uri: str) -> Place:
    """Return the place of the model at a URI or path: a model's folder, or the folder of a job that has one.

    Raises ModelMissing when neither has a manifest, StoreUnavailable when the store does not answer.
    """
    folder = local_folder(uri)
    if folder is not None:
        places: list[Place] = [FolderPlace(folder), FolderPlace(folder / contract.MODEL)]
    else:
        store = model_store(uri)
        places = [StorePlace(store), StorePlace(store.below(contract.MODEL))]
    for place in places:
        try:
            place.version()
        except ModelMissing:
            continue
        return place
    raise ModelMissing(f"neither {uri} nor its {contract.MODEL}/ has a {NAME}: `dtj export {uri}` writes it")
