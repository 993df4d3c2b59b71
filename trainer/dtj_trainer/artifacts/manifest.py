"""The manifest of a snapshot: what the checkpoints folder held at one moment, and where the bucket has it.

A snapshot has a folder of its own in the bucket, named by its number, with the files that were new in the snapshot.
The manifest is written last and never changes: files in the bucket are a snapshot only with a manifest. An unchanged
file keeps the key that an earlier snapshot gave it, which may be of an earlier claim.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

from dtj_trainer.artifacts.capture import LATEST_NS, folders_of, is_below, is_inside
from dtj_trainer.artifacts.local_checkpoints import MARK_FILE

if TYPE_CHECKING:
    pass


MetricMode = Literal["max", "min"]

VERSION = 2
"""The version of new manifests, and the newest version that this release reads. Version 1 had one checkpoint of the
program, without links, empty folders and times; its keys were relative to its own folder."""
PARTS = "parts"
"""The folder of part manifests in a snapshot's folder; see `other_pods`."""
PODS = "pods"
"""The folder, in a snapshot's folder, of files that pods other than that of rank 0 have uploaded."""
DAMAGED_FILE = "damaged.txt"
"""The object that a rank puts into a snapshot's folder when a file is damaged, so that later restores skip the
snapshot. The content describes the fault."""
UNKNOWN_TIME = -1
"""Stands for a modification time that a manifest of version 1 does not have."""
_HASH_BLOCK_BYTES = 1024 * 1024


class ManifestError(ValueError):
    """A manifest that can't be trusted; the message says what is wrong with it."""


class NewerManifest(ManifestError):
    """A manifest that a later release wrote. Its snapshot may be intact. `attempt`: of the job; None: unknown."""

    def __init__(self, message: str, attempt: int | None) -> None:
        super().__init__(message)
        self.attempt = attempt


@dataclass(frozen=True)
class StoredFile:
    """One file of a snapshot.

    `path` is relative to the checkpoints folder, `key` to the checkpoints' prefix in the bucket, `size` is in bytes,
    `sha256` in hexadecimal digits. `mtime_ns`: the modification time. An empty key: only pods have the file, and the
    bucket does not.
    """

    path: str
    key: str
    size: int
    sha256: str
    mtime_ns: int = UNKNOWN_TIME


@dataclass(frozen=True)
class StoredFolder:
    """A folder of a snapshot."""

    path: str
    mtime_ns: int = UNKNOWN_TIME


@dataclass(frozen=True)
class StoredLink:
    """A symbolic link of a snapshot; `target` is the text of the link."""

    path: str
    target: str
    mtime_ns: int = UNKNOWN_TIME


StoredNode = StoredFile | StoredFolder | StoredLink


@dataclass(frozen=True)
class Manifest:
    """A complete snapshot in the bucket.

    `number`: orders the snapshots of a claim. `step`: of the training; None where nothing names the step. `time` is
    RFC 3339 in UTC. `claim` is the number of its writer's claim. `new`: some of the newest names in the snapshot.
    """

    number: int
    step: int | None
    time: str
    attempt: int
    files: tuple[StoredFile, ...]
    folders: tuple[StoredFolder, ...] = ()
    links: tuple[StoredLink, ...] = ()
    new: tuple[str, ...] = ()
    metric: float | None = None
    metric_mode: MetricMode = "max"
    claim: int = 1
    version: int = VERSION

    @property
    def nodes(self) -> list[StoredNode]:
        """All files, folders and links."""
        return [*self.files, *self.folders, *self.links]

    @cached_property
    def marks(self) -> list[StoredFile]:
        """The marks of the folders of `checkpoints.save`."""
        return [file for file in self.files if file.path.partition("/")[2] == MARK_FILE]

    @property
    def save(self) -> str:
        """The key of the mark file, which identifies the folder of `checkpoints.save`; empty: there is none."""
        return max(self.marks, key=lambda mark: mark.path).key if self.marks else ""

    @property
    def folder(self) -> str:
        """The folder's name below the checkpoints prefix."""
        return folder_name(self.number, self.claim)

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(file.size for file in self.files)

    @cached_property
    def of_save(self) -> bool:
        """Whether the snapshot consists of one folder of `checkpoints.save`."""
        tops = {mark.path.partition("/")[0] for mark in self.marks}
        return len(tops) == 1 and all(is_below(node.path, tops) for node in self.nodes)

    @property
    def paths(self) -> set[str]:
        """The paths of all files, folders and links."""
        paths = {node.path for node in self.nodes}
        return paths | {folder for path in paths for folder in folders_of(path)}

    def to_json(self) -> bytes:
        """Serialize the manifest as it is stored in the bucket."""
        content: dict[str, Any] = {
            "version": VERSION,
            "number": self.number,
            "step": self.step,
            "time": self.time,
            "attempt": self.attempt,
            "claim": self.claim,
            "new": self.new,
            "entries": [
                *([node.path, "directory", 0, node.mtime_ns] for node in self.folders),
                *(
                    [node.path, "file", node.size, node.mtime_ns, node.sha256, node.key]
                    for node in self.files
                ),
                *([node.path, "link", 0, node.mtime_ns, node.target] for node in self.links),
            ],
        }
        if self.metric is not None:
            content["metric"] = self.metric
            content["metricMode"] = self.metric_mode
        return json.dumps(content, separators=(",", ":")).encode()

    @staticmethod
    def from_json(content: bytes, folder: str = "", *, in_bucket: bool = True) -> Manifest:
        """Read a manifest back.

        folder: the name of the folder that has the manifest, which differs from that of the manifest where somebody
        has copied the folder. in_bucket: whether each file needs a key. Raises NewerManifest for a version above
        VERSION. Raises ManifestError for content that is not JSON, a missing field or one of another type, or a path
        that leads out of the checkpoints folder.
        """
        try:
            read = json.loads(content)
            version = int(read["version"])
            if version > VERSION:
                attempt = read.get("attempt")
                raise NewerManifest(
                    f"the manifest has version {version}, and this dtj_trainer reads versions up to {VERSION}",
                    attempt if isinstance(attempt, int) else None,
                )
            number = int(read["step"] if version == 1 else read["number"])
            manifest = Manifest(
                number=number,
                step=None if read["step"] is None else int(read["step"]),
                time=str(read["time"]),
                attempt=int(read["attempt"]),
                files=(),
                new=tuple(str(name) for name in read.get("new", ())),
                metric=None if read.get("metric") is None else float(read["metric"]),
                metric_mode=_mode(read.get("metricMode", "max")),
                claim=int(read.get("claim", 1)),
                version=version,
            )
            place = folder or manifest.folder
            manifest = (
                replace(manifest, files=tuple(_first_form(file, place) for file in read["files"]))
                if version == 1
                else _with_entries(manifest, read["entries"], place, in_bucket=in_bucket)
            )
        except ManifestError:
            raise
        except (
            ValueError,
            KeyError,
            IndexError,
            TypeError,
            AttributeError,
            OverflowError,
            RecursionError,
        ) as error:
            raise ManifestError(f"the manifest can't be read: {error!r}") from error
        check_paths(manifest)
        return manifest


def _first_form(file: dict[str, Any], place: str) -> StoredFile:
    key = f"{place}/{checked_key(file['key'])}"
    return StoredFile(str(file["path"]), key, int(file["size"]), str(file["sha256"]))


def _with_entries(
    manifest: Manifest, entries: Iterable[list[Any]], place: str, *, in_bucket: bool
) -> Manifest:
    files, folders, links = [], [], []
    own = f"{manifest.folder}/"
    for path, kind, size, mtime_ns, *rest in entries:
        if kind == "file":
            key = "" if rest[1] == "" and not in_bucket else checked_key(rest[1])
            key = f"{place}/{key.removeprefix(own)}" if key.startswith(own) else key
            files.append(StoredFile(str(path), key, int(size), str(rest[0]), int(mtime_ns)))
        elif kind == "directory":
            folders.append(StoredFolder(str(path), int(mtime_ns)))
        elif kind == "link":
            links.append(StoredLink(str(path), str(rest[0]), int(mtime_ns)))
        else:
            raise ValueError(f"unknown kind of entry {kind!r}")
    return replace(manifest, files=tuple(files), folders=tuple(folders), links=tuple(links))


def folder_name(number: int, claim: int) -> str:
    """Return `500` for the first claim and `500-2` for the second, so that no two writers share a folder."""
    return str(number) if claim == 1 else f"{number}-{claim}"


def number_and_claim(folder: str) -> tuple[int, int] | None:
    """Read number and claim from a snapshot folder's name; None for the name of any other folder."""
    number, dash, claim = folder.partition("-")
    parts = [number, claim] if dash else [number]
    if not all(part.isascii() and part.isdecimal() for part in parts):
        return None
    found = int(number), int(claim or 1)
    return found if folder_name(*found) == folder else None


def checked_key(value: object) -> str:
    """Return a key below the checkpoints prefix. Raises ManifestError for anything else."""
    key = str(value)
    if not key or key.startswith("/") or ".." in key.split("/"):
        raise ManifestError(f"the manifest names a key outside the checkpoints prefix: {key!r}")
    return key


def _mode(value: object) -> MetricMode:
    if value == "max":
        return "max"
    if value == "min":
        return "min"
    raise ValueError(f"unknown metricMode {value!r}")


def check_paths(manifest: Manifest) -> None:
    """Raise ManifestError unless a restore can write all entries, and only inside the checkpoints folder."""
    leaves: list[StoredNode] = [*manifest.files, *manifest.links]
    taken = {node.path for node in leaves}
    if len(taken) < len(leaves):
        ((twice, _),) = Counter(node.path for node in leaves).most_common(1)
        raise ManifestError(f"the manifest names {twice!r} twice")
    for node in [*leaves, *manifest.folders]:
        if not -LATEST_NS <= node.mtime_ns <= LATEST_NS:
            raise ManifestError(
                f"the manifest has an impossible modification time for {node.path!r}: {node.mtime_ns} ns"
            )
        if str(PurePosixPath(node.path)) != node.path or node.path == "." or "\0" in node.path:
            raise ManifestError(
                f"the manifest names {node.path!r}, which is not a normalized path below the checkpoints folder"
            )
        if node.path.startswith("/") or ".." in node.path.split("/"):
            raise ManifestError(f"the manifest names a path outside the checkpoints folder: {node.path!r}")
        if parent := next((folder for folder in folders_of(node.path) if folder in taken), None):
            raise ManifestError(f"the manifest names {node.path!r} below {parent!r}, which is no folder")
    for link in manifest.links:
        if not is_inside(link.path, link.target):
            raise ManifestError(f"the manifest's link {link.path!r} leads out of the checkpoints folder")
    if both := next((folder.path for folder in manifest.folders if folder.path in taken), None):
        raise ManifestError(f"the manifest names {both!r} twice: as a folder, and as a file or link")


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
