"""The pod manifest: the files that one pod alone has, such as shards of `torch.distributed.checkpoint`.

The pods of a job share nothing but the bucket. Each has one small object there, its pod manifest:

- A pod that finds a new file lists the file as pending at once.
- The pod of rank 0 takes a capture, and announces the capture's number and paths in the manifest of pod 0.
- The other pod sends the files that the capture lacks, and names them in its manifest: its answer.
- The pod of rank 0 puts these files into the snapshot's manifest. The pod of rank 0 waits for pods with pending
  files, and names these pods in the manifest of pod 0.

A pod without files has no pod manifest, and nobody waits for it. `other_pods` sends and reads pod manifests.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from dtj_trainer.artifacts.capture import folders_of, place_of
from dtj_trainer.artifacts.manifest import (
    PARTS,
    PODS,
    Manifest,
    ManifestError,
    StoredFile,
    check_paths,
    checked_key,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Set

    from dtj_trainer.artifacts.capture import Node

ANNOUNCED = "0"
"""The pod name in the key of the manifest that the pod of rank 0 writes."""
LATE_SECONDS = 60.0
"""How long a pod waits until the pod of rank 0 announces a capture that is newer than the waiting pod's files.
The pod of rank 0 reads the other pods' manifests at least this often."""
LATE_AT_END_SECONDS = 10.0
"""The value of LATE_SECONDS once the pod's program has ended."""


@dataclass(frozen=True)
class PodManifest:
    """What one pod publishes about its checkpoint files.

    The pod of rank 0 announces a capture: its `number`; `paths`, of the pod's own files, and of folders with `/`
    at the end; `waits_for`, the pods whose files the snapshot lacks, each with the beginning of its manifest's ETag.

    Another pod publishes: `pending`, the paths of files that are not uploaded yet; `files`, the uploaded files that
    no other pod has; `answer`, the place below which the keys of its last answer are; `gone`, the paths of files that
    the pod gave to the restored snapshot and has removed; `sent`, the bytes sent, which grow during an upload.
    """

    number: int = -1
    pending: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    waits_for: tuple[tuple[str, str], ...] = ()
    files: tuple[StoredFile, ...] = ()
    answer: str = ""
    gone: tuple[str, ...] = ()
    sent: int = 0

    def to_json(self) -> bytes:
        """Serialize the manifest as it is stored in the bucket."""
        files = [[file.path, file.key, file.size, file.sha256, file.mtime_ns] for file in self.files]
        content = {
            "number": self.number,
            "pending": self.pending,
            "paths": self.paths,
            "waitsFor": self.waits_for,
            "files": files,
            "answer": self.answer,
            "gone": self.gone,
            "sent": self.sent,
        }
        return json.dumps(content, separators=(",", ":")).encode()

    @staticmethod
    def from_json(content: bytes) -> PodManifest:
        """Read a manifest back. Raises ManifestError."""
        try:
            read = json.loads(content)
            files = [
                StoredFile(str(path), checked_key(key), int(size), str(sha256), int(mtime_ns))
                for path, key, size, sha256, mtime_ns in read["files"]
            ]
            pending, paths, gone = (
                tuple(str(path) for path in read[field]) for field in ("pending", "paths", "gone")
            )
            waits_for = tuple((str(pod), str(etag)) for pod, etag in read["waitsFor"])
            said = PodManifest(
                int(read["number"]),
                pending,
                paths,
                waits_for,
                tuple(files),
                str(read["answer"]),
                gone,
                int(read["sent"]),
            )
            check_paths(Manifest(0, None, "", 0, said.files))
            return said
        except ManifestError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ManifestError(f"the pod manifest can't be read: {error!r}") from error


def pod_manifest_key(claim: int, pod: str) -> str:
    """Return the key of a pod's manifest below the checkpoints prefix."""
    return f"{PARTS}/{claim}/{pod}.json"


def answer_place(pod: str, process: str, count: int) -> str:
    """Return the place of an answer's files below the folder of a snapshot. process: identifies the pod's process.

    No two answers of a pod share a key: the pod of rank 0 may be removing what an earlier answer named.
    """
    return f"{PODS}/{pod}/{process}-{count}"


def is_in_answer(place: str, key: str) -> bool:
    """Return whether a key is of the answer at `place`, or of an earlier answer of the same process.

    place: see `answer_place`.
    """
    process, _, count = place.rpartition("-")
    found = re.match(rf"{re.escape(process)}-(\d+)/", key.partition("/")[2])
    return bool(process) and found is not None and int(found[1]) <= int(count)


def is_of_pod(key: str) -> bool:
    """Return whether a key belongs to an answer, of whatever pod."""
    return re.match(rf"{PODS}/[^/]+/[0-9a-f]{{8}}-\d+/", key.partition("/")[2]) is not None


class Copy(NamedTuple):
    """What identifies the content of a local file, also after a change of its mode or owner."""

    path: str
    size: int
    mtime_ns: int
    inode: int


def copy_of(node: Node) -> Copy:
    """Return what identifies the content of a local file."""
    return Copy(node.path, node.size, node.mtime_ns, node.inode)


def is_lent(file: StoredFile) -> bool:
    """Return whether another pod gave this file to its snapshot. After a restore, all pods have the file."""
    return file.key.partition("/")[2].startswith(f"{PODS}/")


def giver_of(file: StoredFile) -> str:
    """Return the pod that gave a file; empty for a file of the pod of rank 0."""
    return file.key.split("/")[2] if is_lent(file) else ""


def beginning(etag: str) -> str:
    """Return the beginning of an ETag, which distinguishes the manifests of one pod."""
    return etag.strip('"')[:8]


def folders_in(paths: Iterable[str]) -> set[str]:
    """Return all parent folders of these paths."""
    return {folder for path in paths for folder in folders_of(path)}


def of_the_next(paths: Iterable[str], known: Set[str], folders: Set[str]) -> set[str]:
    """Return the files that belong to a later capture: those in a new folder beside an elder folder of the capture.

    A program that makes a folder for each checkpoint may have begun the next one in one pod, and not yet in another.
    known: the folders that are not new. folders: those of the capture.
    """
    places = {place_of(folder) for folder in folders}
    return {
        path
        for path in paths
        if any(folder not in known and place_of(folder) in places for folder in folders_of(path))
    }
