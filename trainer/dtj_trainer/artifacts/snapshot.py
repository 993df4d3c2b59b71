"""The index of the snapshots in a bucket, and the names in a snapshot: number, step, keys, the newest files."""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dtj_trainer import contract
from dtj_trainer.artifacts.capture import topmost_new
from dtj_trainer.artifacts.local_checkpoints import newest_of
from dtj_trainer.artifacts.manifest import (
    DAMAGED_FILE,
    PARTS,
    PODS,
    Manifest,
    ManifestError,
    NewerManifest,
    StoredFile,
    StoredFolder,
    StoredLink,
    number_and_claim,
)
from dtj_trainer.artifacts.retention import Candidate, kept
from dtj_trainer.artifacts.s3 import DamagedObject, NoSuchKey
from dtj_trainer.artifacts.store import key_of
from dtj_trainer.clock import seconds_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Set

    from dtj_trainer.artifacts.capture import Capture, Node
    from dtj_trainer.artifacts.local_checkpoints import Mark
    from dtj_trainer.artifacts.store import Store


# CheckpointIndex lists the snapshots in a bucket by their manifests.

log = logging.getLogger(__name__)


@dataclass
class CheckpointIndex:
    """The readable manifests by folder, and the folders that have none."""

    manifests: dict[str, Manifest] = field(default_factory=dict)
    bare: set[str] = field(default_factory=set)
    """Folders without a manifest: of an upload under way or given up, or with files that other snapshots name."""
    damaged: set[str] = field(default_factory=set)
    """Folders whose manifest can't be trusted."""
    newer: set[str] = field(default_factory=set)
    """Folders whose manifest a later release wrote. Nothing removes these folders."""

    def newest_first(self) -> list[Manifest]:
        """The manifests in the order in which a restore tries them."""
        return sorted(self.manifests.values(), key=age, reverse=True)

    def keys_in(self, folder: str) -> set[str]:
        """Return the keys below a folder that a manifest names, of whatever snapshot."""
        below = f"{folder}/"
        files = (file for manifest in self.manifests.values() for file in manifest.files)
        return {file.key for file in files if file.key.startswith(below)}

    def kept(self, keep: int, keep_every: float) -> set[str]:
        """Return the folders of the snapshots that retention keeps; see `retention.kept`."""
        candidates = {candidate_of(manifest): folder for folder, manifest in self.manifests.items()}
        return {candidates[candidate] for candidate in kept(candidates, keep, keep_every)}


def age(manifest: Manifest) -> tuple[int, int]:
    """Return a key that is greater for a newer snapshot: a later claim is newer, whatever its number."""
    return manifest.claim, manifest.number


def folders_newest_first(store: Store) -> list[str]:
    """List the folders of snapshots below a checkpoints prefix, complete or not, by their names alone."""
    found = {folder: place for folder in store.folders() if (place := number_and_claim(folder))}
    return sorted(found, key=lambda folder: found[folder][::-1], reverse=True)


def candidate_of(manifest: Manifest) -> Candidate:
    """Return the manifest as a candidate for retention."""
    return Candidate(
        manifest.claim,
        manifest.number,
        manifest.metric,
        manifest.metric_mode,
        seconds_of(manifest.time),
        whole=not manifest.of_save,
        save=manifest.save,
    )


def read_manifest(store: Store, folder: str) -> Manifest:
    """Read the manifest of a snapshot. Raises NoSuchKey, ManifestError, DamagedObject and other S3Errors."""
    manifest = Manifest.from_json(store.get_bytes(f"{folder}/{contract.MANIFEST_FILE}"), folder)
    if manifest.folder != folder:
        raise ManifestError(f"the manifest belongs to checkpoint {manifest.folder}")
    return manifest


def read_index(store: Store) -> CheckpointIndex:
    """Read every manifest below a checkpoints prefix. Raises S3Error."""
    index = CheckpointIndex()
    shared: dict[StoredFile, StoredFile] = {}
    for folder in folders_newest_first(store):
        try:
            manifest = read_manifest(store, folder)
            # Snapshots have most files in common: keep each in memory once.
            files = tuple(shared.setdefault(file, file) for file in manifest.files)
            index.manifests[folder] = replace(manifest, files=files)
        except NewerManifest:
            index.newer.add(folder)
        except NoSuchKey:
            index.bare.add(folder)
        except (ManifestError, DamagedObject):
            index.damaged.add(folder)
    return index


_INDEX = re.compile(r"-(\d{1,18})\.index$")
_MOST_KEY_BYTES = 800
"""S3 limits a key to 1,024 bytes, including the job's prefix."""
_NAMED = "named"
"""The folder, in the keys, of files whose paths can't be keys."""
_NEW_NAMES = 3


@dataclass(frozen=True)
class Due:
    """A capture to upload, and the number and step of its snapshot.

    `saved`: the newest folder of `checkpoints.save` in the capture. `alone`: the capture has nothing else.
    """

    capture: Capture
    number: int
    step: int | None
    saved: str | None
    mark: Mark | None
    alone: bool


def ref_of(manifest: Manifest, uri: str) -> contract.CheckpointRef:
    """Return a snapshot in the form of a pod's report."""
    found: contract.CheckpointRef = {"time": manifest.time, "uri": uri}
    if manifest.step is not None:
        found["step"] = manifest.step
    if manifest.new:
        found["new"] = list(manifest.new)
    return found


StepAt = Callable[[int], int | None]
"""The program's step at a time (wall clock, nanoseconds); None for a program that reports no steps."""


def step_of(
    nodes: Mapping[str, Node],
    marks: Mapping[str, Mark],
    last: Mapping[str, Node],
    step_at: StepAt,
    before: int | None,
) -> int | None:
    """Return the step of a capture: of the newest mark, of TensorFlow's index, or what the program has reported.

    marks: of the folders of `checkpoints.save`. last, before: content and step of the capture before.
    """
    if saved := newest_of({name: mark for name, mark in marks.items() if name in nodes}):
        return marks[saved].step
    if (step := step_of_tensorflow(nodes)) is not None:
        return step
    new = (node for path, node in nodes.items() if not node.same(last.get(path)))
    changed = [node.changed_ns for node in new if node.kind != "directory"]
    return step_at(max(changed)) if changed else before


def later_number(step: int | None, last: int) -> int:
    """Return the step, or the number after the last one if the step is not greater. last: -1: there is none."""
    return step if step is not None and step > last else max(last, 0) + 1


def new_number(step: int | None, claim: int, manifests: Iterable[Manifest]) -> int:
    """Return the number of the next snapshot: the step, unless that would not come after the claim's last number."""
    manifests = list(manifests)
    last = max((manifest.number for manifest in manifests if manifest.claim == claim), default=-1)
    if last < 0 and step is None:  # Without a step, continue the numbers of earlier attempts.
        last = max((manifest.number for manifest in manifests), default=0)
    return later_number(step, last)


def step_of_tensorflow(nodes: Mapping[str, Node]) -> int | None:
    """Return the step in the name of the newest checkpoint that TensorFlow wrote, `NAME-<step>.index`."""
    found = [
        (node.changed_ns, int(match[1]))
        for path, node in nodes.items()
        if (match := _INDEX.search(path)) and f"{path.removesuffix('index')}data-00000-of-00001" in nodes
    ]
    return max(found)[1] if found else None


def saves_to_keep(
    saves: Mapping[str, tuple[Mark, float]],
    claim: int,
    manifests: Iterable[Manifest],
    keep: int,
    keep_every: float,
) -> list[tuple[str, int]]:
    """Return the folders of `checkpoints.save` that retention would keep beside the snapshots, the newest first.

    saves: marks and times (Unix seconds) of the folders that are in no snapshot. Each folder comes with the number of
    its snapshot: the step, or a lower one that is free.
    """
    stored = [candidate_of(manifest) for manifest in manifests]
    taken = {candidate.number for candidate in stored if candidate.claim == claim}
    found: dict[Candidate, str] = {}
    for name in sorted(saves, key=lambda name: saves[name][0].step, reverse=True):
        mark, at = saves[name]
        number = next((number for number in range(mark.step, -1, -1) if number not in taken), None)
        if number is not None:
            taken.add(number)
            found[Candidate(claim, number, mark.metric, mark.metric_mode, at, save=name)] = name
    keep_all = kept([*found, *stored], keep, keep_every)
    chosen = sorted(found.keys() & keep_all, key=lambda candidate: candidate.number, reverse=True)
    return [(found[candidate], candidate.number) for candidate in chosen]


def new_names(nodes: Mapping[str, Node], before: Mapping[str, Node]) -> tuple[str, ...]:
    """Return the names of the newest changed files; of a new folder, the folder's name in place of its files."""
    newest: dict[str, int] = {}
    for path, node in nodes.items():
        if node.kind != "directory" and not node.same(before.get(path)):
            name = topmost_new(path, before)
            newest[name] = max(newest.get(name, 0), node.changed_ns)
    return tuple(sorted(newest, key=lambda name: newest[name], reverse=True)[:_NEW_NAMES])


def folders_and_links(nodes: Mapping[str, Node]) -> tuple[tuple[StoredFolder, ...], tuple[StoredLink, ...]]:
    """Return the folders and links of a capture in the form of a manifest."""
    folders = (node for node in nodes.values() if node.kind == "directory")
    links = (node for node in nodes.values() if node.kind == "link")
    return (
        tuple(StoredFolder(node.path, node.mtime_ns) for node in folders),
        tuple(StoredLink(node.path, node.target, node.mtime_ns) for node in links),
    )


def keys_of(nodes: Iterable[Node], folder: str, saved: str | None, taken: Set[str]) -> dict[Node, str]:
    """Return a key for each file that is new in a snapshot.

    folder: of the snapshot. saved: the folder of `checkpoints.save` that alone makes up the snapshot; its name is not
    part of the keys. taken: keys that are in use.
    """
    keys: dict[Node, str] = {}
    used = set(taken)
    for node in nodes:
        path = node.path.removeprefix(f"{saved}/") if saved else node.path
        key, revision = f"{folder}/{_safe(path)}", 2
        while key in used:
            key, revision = f"{folder}/r{revision}/{_safe(path)}", revision + 1
        used.add(key)
        keys[node] = key
    return keys


def _safe(path: str) -> str:
    """Return a path as a key. A path that dtj reserves, that is too long, or that stores treat specially becomes a
    hash.
    """
    first = path.partition("/")[0]
    reserved = path in {contract.MANIFEST_FILE, DAMAGED_FILE} or first in {PODS, PARTS, _NAMED}
    odd = any(part in {"", ".", ".."} for part in path.split("/"))
    key = key_of(path)
    if reserved or odd or len(key.encode()) > _MOST_KEY_BYTES:
        return f"{_NAMED}/{hashlib.sha256(os.fsencode(path)).hexdigest()}"
    return key
