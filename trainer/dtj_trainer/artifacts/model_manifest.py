"""The manifest of a model's folder: files, sizes and SHA-256. It is written last.

Readers take only the files that the manifest names. A folder whose files do not match its manifest is one that is
being written, or damaged.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dtj_trainer import contract
from dtj_trainer.artifacts.manifest import sha256_of
from dtj_trainer.artifacts.store import usable_name

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

NAME = contract.MANIFEST_FILE
VERSION = 1
"""The version of new manifests, and the newest that this release reads."""


@dataclass(frozen=True)
class ModelFile:
    """A file of a model. `path` is relative to the model's folder, `size` in bytes, `sha256` in hex digits."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class ModelManifest:
    """The files of one version of a model."""

    files: tuple[ModelFile, ...]

    def to_json(self) -> bytes:
        """Serialize the manifest as it is stored."""
        files = [{"path": file.path, "size": file.size, "sha256": file.sha256} for file in self.files]
        return json.dumps({"version": VERSION, "files": files}, indent=1).encode() + b"\n"


def manifest_of(folder: Path) -> ModelManifest:
    """Make the manifest of the files that are in a model's folder. Reads all of them.

    Hidden and temporary files, links, and the manifest itself are left out.
    """
    paths = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    usable = (path for path in paths if all(map(usable_name, path.relative_to(folder).parts)))
    found = {path: (path.stat().st_size, sha256_of(path)) for path in usable if path != folder / NAME}
    return manifest_with(folder, found)


def manifest_with(folder: Path, files: Mapping[Path, tuple[int, str]]) -> ModelManifest:
    """Make the manifest of files below a model's folder. `files`: the size and SHA-256 of each."""
    return ModelManifest(
        tuple(
            ModelFile(path.relative_to(folder).as_posix(), size, sha256)
            for path, (size, sha256) in sorted(files.items())
        )
    )
