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
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dtj_trainer.artifacts.look import folders_of, place_of
from dtj_trainer.artifacts.manifest import PARTS, ManifestError, StoredFile, checked_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Set

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

    number: of the picture that it announces or answers. pending: the paths of files that are not uploaded yet. paths:
    of all files of the announced picture. waits_for: the pods whose files the announced picture lacks, each with the
    ETag of its manifest. files: those that the pod alone has, and that are uploaded.
    """

    number: int = -1
    pending: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    waits_for: tuple[tuple[str, str], ...] = ()
    files: tuple[StoredFile, ...] = ()

    def to_json(self) -> bytes:
        """Serialize the manifest as it is stored in the bucket."""
        files = [[file.path, file.key, file.size, file.sha256, file.mtime_ns] for file in self.files]
        content = {
            "number": self.number,
            "pending": self.pending,
            "paths": self.paths,
            "waitsFor": self.waits_for,
            "files": files,
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
            pending, paths = (tuple(str(path) for path in read[field]) for field in ("pending", "paths"))
            waits_for = tuple((str(pod), str(etag)) for pod, etag in read["waitsFor"])
            return PodManifest(int(read["number"]), pending, paths, waits_for, tuple(files))
        except (ValueError, KeyError, TypeError) as error:
            raise ManifestError(f"the pod manifest can't be read: {error!r}") from error


def pod_manifest_key(claim: int, pod: str) -> str:
    """Return the key of a pod's manifest below the checkpoints prefix."""
    return f"{PARTS}/{claim}/{pod}.json"


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
