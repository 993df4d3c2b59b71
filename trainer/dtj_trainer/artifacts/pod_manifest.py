"""What a pod says in the bucket of the files that it alone has, as shards of `torch.distributed.checkpoint`.

The pods of a job share nothing but the bucket. Each has one small object there, its pod manifest:

- A pod that sees a new file says at once that the file is pending.
- The pod with the claim takes a picture, and announces the picture's number and paths in the manifest of pod 0.
- The other pod sends the files that the picture lacks, and names them in its manifest.
- The pod with the claim puts these files into the snapshot's manifest. For pods with pending files it waits, and says
  so.

A pod without files has no pod manifest, and nobody waits for it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from dtj_trainer.artifacts.look import folders_of, place_of
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

    from dtj_trainer.artifacts.look import Node

ANNOUNCED = "0"
"""The name of the manifest of the pod with the claim."""
LATE_SECONDS = 60.0
"""How long a pod waits for a picture that is newer than its files. The pod with the claim reads the other pods'
manifests at least so often."""
LATE_AT_END_SECONDS = 10.0
"""The same, once the pod's program has ended."""


@dataclass(frozen=True)
class PodManifest:
    """What one pod says.

    The pod with the claim announces a picture: its `number`; `paths`, of the pod's own files, and of folders with `/`
    at the end; `waits_for`, the pods whose files the snapshot lacks, each with the beginning of its manifest's ETag.

    Another pod says: `pending`, the paths of files that are not uploaded yet; `files`, those that the pod alone has,
    and that are uploaded; `answer`, the place of the last of its answers, below which its keys are; `gone`, the paths
    of files that it gave to the restored snapshot and has removed; `sent`, bytes, which grows during an upload.
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

    No two answers of a pod share a key: the pod with the claim may be removing what an earlier answer named.
    """
    return f"{PODS}/{pod}/{process}-{count}"


def is_in_answer(place: str, key: str) -> bool:
    """Return whether a key is of an answer, or of an earlier one of the same process. place: see `answer_place`."""
    process, _, count = place.rpartition("-")
    found = re.match(rf"{re.escape(process)}-(\d+)/", key.partition("/")[2])
    return bool(process) and found is not None and int(found[1]) <= int(count)


def is_of_pod(key: str) -> bool:
    """Return whether a key is of the answer of any pod."""
    return re.match(rf"{PODS}/[^/]+/[0-9a-f]{{8}}-\d+/", key.partition("/")[2]) is not None


class Copy(NamedTuple):
    """What another mode or owner of a file leaves as it is."""

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
    """Return the pod that gave a file; empty for a file of the pod with the claim."""
    return file.key.split("/")[2] if is_lent(file) else ""


def beginning(etag: str) -> str:
    """Return the beginning of an ETag, which distinguishes the manifests of one pod."""
    return etag.strip('"')[:8]


def folders_in(paths: Iterable[str]) -> set[str]:
    """Return all folders of these files."""
    return {folder for path in paths for folder in folders_of(path)}


def of_the_next(paths: Iterable[str], known: Set[str], folders: Set[str]) -> set[str]:
    """Return the files that belong to a later picture: those in a new folder beside an elder folder of the picture.

    A program that makes a folder for each checkpoint may have begun the next one in one pod, and not yet in another.
    known: the folders that are not new. folders: those of the picture.
    """
    places = {place_of(folder) for folder in folders}
    return {
        path
        for path in paths
        if any(folder not in known and place_of(folder) in places for folder in folders_of(path))
    }
