"""The manifest of a checkpoint. It is written last: files in the bucket are a checkpoint only with a manifest."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

EntryKind = Literal["file", "directory"]
MetricMode = Literal["max", "min"]

VERSION = 1
"""The version of new manifests, and the newest version that this release reads."""
_HASH_BLOCK_BYTES = 1024 * 1024


class ManifestError(ValueError):
    """A manifest that can't be trusted; the message says what is wrong with it."""


class NewerManifest(ManifestError):
    """A manifest that a later release wrote. Its checkpoint may be intact."""


@dataclass(frozen=True)
class Entry:
    """One file or directory directly below the checkpoints folder, as the program wrote it."""

    name: str
    kind: EntryKind


@dataclass(frozen=True)
class StoredFile:
    """One file of a checkpoint.

    `path` is relative to the checkpoints folder, `key` to the checkpoint's prefix in the bucket,
    `size` is in bytes, `sha256` in hexadecimal digits.
    """

    path: str
    key: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """A complete checkpoint in the bucket. `time` is RFC 3339 in UTC; `claim` is the number of its writer's claim."""

    step: int
    time: str
    attempt: int
    entries: tuple[Entry, ...]
    files: tuple[StoredFile, ...]
    metric: float | None = None
    metric_mode: MetricMode = "max"
    claim: int = 1

    @property
    def folder(self) -> str:
        """The folder's name below the checkpoints prefix."""
        return folder_name(self.step, self.claim)

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(file.size for file in self.files)

    def to_json(self) -> bytes:
        """Serialize the manifest as it is stored in the bucket."""
        content: dict[str, Any] = {
            "version": VERSION,
            "step": self.step,
            "time": self.time,
            "attempt": self.attempt,
            "claim": self.claim,
            "entries": [{"name": entry.name, "kind": entry.kind} for entry in self.entries],
            "files": [
                {"path": file.path, "key": file.key, "size": file.size, "sha256": file.sha256}
                for file in self.files
            ],
        }
        if self.metric is not None:
            content["metric"] = self.metric
            content["metricMode"] = self.metric_mode
        return json.dumps(content, indent=1).encode()

    @staticmethod
    def from_json(content: bytes) -> Manifest:
        """Read a manifest back.

        Raises NewerManifest for a version above VERSION. Raises ManifestError for content that is not JSON, a missing
        field or one of another type, a path outside the checkpoints folder, or a file that belongs to no entry.
        """
        try:
            read = json.loads(content)
            version = int(read["version"])
            if version > VERSION:
                raise NewerManifest(
                    f"the manifest has version {version}, and this dtj_trainer reads versions up to {VERSION}"
                )
            manifest = Manifest(
                step=int(read["step"]),
                time=str(read["time"]),
                attempt=int(read["attempt"]),
                entries=tuple(Entry(str(entry["name"]), _kind(entry["kind"])) for entry in read["entries"]),
                files=tuple(
                    StoredFile(str(file["path"]), str(file["key"]), int(file["size"]), str(file["sha256"]))
                    for file in read["files"]
                ),
                metric=None if read.get("metric") is None else float(read["metric"]),
                metric_mode=_mode(read.get("metricMode", "max")),
                claim=int(read.get("claim", 1)),
            )
        except ManifestError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ManifestError(f"the manifest can't be read: {error!r}") from error
        _check_paths(manifest)
        return manifest


def folder_name(step: int, claim: int) -> str:
    """Return `500` for the first claim and `500-2` for the second, so that no two writers share a folder."""
    return str(step) if claim == 1 else f"{step}-{claim}"


def step_and_claim(folder: str) -> tuple[int, int] | None:
    """Read step and claim from a checkpoint folder's name; None for the name of any other folder."""
    step, dash, claim = folder.partition("-")
    parts = [step, claim] if dash else [step]
    if not all(part.isascii() and part.isdecimal() for part in parts):
        return None
    found = int(step), int(claim or 1)
    return found if folder_name(*found) == folder else None


def _kind(value: object) -> EntryKind:
    if value == "file":
        return "file"
    if value == "directory":
        return "directory"
    raise ValueError(f"unknown kind of entry {value!r}")


def _mode(value: object) -> MetricMode:
    if value == "max":
        return "max"
    if value == "min":
        return "min"
    raise ValueError(f"unknown metricMode {value!r}")


def _check_paths(manifest: Manifest) -> None:
    kinds = {entry.name: entry.kind for entry in manifest.entries}
    for name in kinds:
        if name in {"", ".", ".."} or "/" in name:
            raise ManifestError(f"the manifest names an impossible entry {name!r}")
    for file in manifest.files:
        parts = PurePosixPath(file.path).parts
        if not parts or ".." in parts or parts[0] == "/" or ".." in PurePosixPath(file.key).parts:
            raise ManifestError(f"the manifest names a file outside the checkpoints folder: {file.path!r}")
        kind = kinds.get(parts[0])
        if kind is None or (kind == "file") != (len(parts) == 1):
            raise ManifestError(f"the manifest's file {file.path!r} belongs to none of its entries")


def sha256_of(path: Path) -> str:
    """The file's SHA-256 in hexadecimal digits, read block by block."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_HASH_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def fault_of(path: Path, expected: StoredFile, sha256: str | None = None) -> str | None:
    """Describe how a downloaded file differs from its manifest; None when it does not differ.

    `sha256` is the file's checksum, if the caller knows it.
    """
    size = path.stat().st_size
    if size != expected.size:
        return f"{expected.path} has {size} bytes instead of {expected.size}"
    if (sha256 or sha256_of(path)) != expected.sha256:
        return f"{expected.path} is damaged (its sha256 differs)"
    return None
