"""Where a model's files are: a folder of this machine, or a prefix in S3."""

from __future__ import annotations

import hashlib
import json
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Protocol

from dtj_trainer import contract
from dtj_trainer.artifacts import s3
from dtj_trainer.artifacts.model_manifest import NAME, VERSION, ModelFile, ModelManifest
from dtj_trainer.artifacts.store import Store, existing_folder, open_store
from dtj_trainer.serving.errors import ModelDamaged, ModelMissing, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator


# These functions read the manifest of a model's folder, and compare files with it.

MAX_MANIFEST_BYTES = 1 << 20
_HEX_DIGITS = 64


def read_manifest(content: bytes) -> ModelManifest:
    """Read a manifest back.

    Raises ModelDamaged for a version above VERSION, for content that is no manifest, and for a path outside the
    model's folder.
    """
    try:
        read = json.loads(content)
        version = int(read["version"])
        if version > VERSION:
            raise ModelDamaged(f"{NAME} has version {version}; this dtj_trainer reads up to {VERSION}")
        files = tuple(
            ModelFile(_path(file["path"]), _size(file["size"]), _sha256(file["sha256"]))
            for file in read["files"]
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ModelDamaged(f"{NAME} can't be read: {error!r}") from error
    if len({file.path for file in files}) != len(files):
        raise ModelDamaged(f"{NAME} names a file twice")
    return ModelManifest(files)


def file_of(manifest: ModelManifest, path: str) -> ModelFile:
    """Return a file by its path. Raises ModelDamaged if the manifest does not name it."""
    for file in manifest.files:
        if file.path == path:
            return file
    raise ModelDamaged(f"{NAME} names no {path}: `dtj export` writes the file and the manifest")


def _check_file(content: bytes, file: ModelFile) -> None:
    """Raise ModelDamaged if the content of a file differs from what its manifest says."""
    if len(content) != file.size:
        raise ModelDamaged(f"{file.path} has {len(content)} bytes, but {NAME} lists {file.size} bytes")
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise ModelDamaged(f"{file.path} is not the file of {NAME}: its sha256 differs from the manifest's")


def _path(value: object) -> str:
    path = PurePosixPath(_text(value))
    if path.is_absolute() or not path.parts or ".." in path.parts or str(path) != value:
        raise ValueError(f"the path {value!r} is not one inside the model's folder")
    return str(path)


def _size(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"the size {value!r} is not a number of bytes")
    return value


def _sha256(value: object) -> str:
    text = _text(value)
    if len(text) != _HEX_DIGITS or not set(text) <= set("0123456789abcdef"):
        raise ValueError(f"{value!r} is no sha256 in hexadecimal digits")
    return text


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


class ModelPlace(Protocol):
    """A model's folder, to read from. Methods raise ServingError."""

    @property
    def uri(self) -> str:
        """The folder's URI or path."""

    def version(self) -> str:
        """Return a text that changes with the manifest. Raises ModelMissing without a manifest."""

    def read(self, name: str, most: int) -> bytes:
        """Read a file of at most `most` bytes. Raises ModelMissing, or ModelDamaged for a larger file."""


class FolderPlace:
    """See ModelPlace."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def uri(self) -> str:
        """See ModelPlace."""
        return str(self._folder)

    def version(self) -> str:
        """See ModelPlace."""
        return hashlib.sha256(self.read(NAME, MAX_MANIFEST_BYTES)).hexdigest()

    def read(self, name: str, most: int) -> bytes:
        """See ModelPlace."""
        try:
            with (self._folder / name).open("rb") as file:
                content = file.read(most + 1)
        except OSError as error:
            raise ModelMissing(f"{self._folder / name} can't be read: {error.strerror}") from error
        if len(content) > most:
            raise ModelDamaged(f"{self._folder / name} has more than {most} bytes")
        return content


class StorePlace:
    """See ModelPlace."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def uri(self) -> str:
        """See ModelPlace."""
        return self._store.location.uri

    def version(self) -> str:
        """See ModelPlace."""
        with sentences():
            return self._store.etag(NAME)

    def read(self, name: str, most: int) -> bytes:
        """See ModelPlace."""
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
    try:
        return existing_folder(uri, "a model is")
    except ValueError as error:
        raise ModelMissing(str(error)) from error


def model_store(uri: str) -> Store:
    """Return the store of an `s3://` URI. Raises ModelMissing for a malformed one."""
    try:
        return open_store(uri)
    except ValueError as error:
        raise ModelMissing(str(error)) from error


def find(uri: str) -> ModelPlace:
    """Return the place of the model at a URI or path: a model's folder, or the folder of a job that has one.

    Raises ModelMissing when neither has a manifest, StoreUnavailable when the store does not answer.
    """
    folder = local_folder(uri)
    if folder is not None:
        places: list[ModelPlace] = [FolderPlace(folder), FolderPlace(folder / contract.MODEL)]
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


def read_checked(place: ModelPlace, manifest: ModelManifest, name: str, most: int) -> bytes:
    """Read a file of at most `most` bytes. Raises ModelDamaged if the content differs from what the manifest says."""
    named = file_of(manifest, name)
    if named.size > most:
        raise ModelDamaged(f"{place.uri}: {name} has {named.size} bytes, and at most {most} are read")
    content = place.read(name, most)
    try:
        _check_file(content, named)
    except ModelDamaged as error:
        raise ModelDamaged(f"{place.uri}: {error}") from error
    return content
