"""Reads the manifest of a model's folder, and compares files with it."""

from __future__ import annotations

import hashlib
import json
from pathlib import PurePosixPath

from dtj_trainer.artifacts.model_manifest import NAME, VERSION, ModelFile, ModelManifest
from dtj_trainer.serving.errors import ModelDamaged

MAX_BYTES = 1 << 20
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


def check(content: bytes, file: ModelFile) -> None:
    """Raise ModelDamaged if the content of a file differs from what its manifest says."""
    if len(content) != file.size:
        raise ModelDamaged(f"{file.path} has {len(content)} bytes, and {NAME} says {file.size}")
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise ModelDamaged(f"{file.path} is not the file of {NAME}: its sha256 differs")


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
