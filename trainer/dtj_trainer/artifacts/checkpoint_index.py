"""The index of the snapshots in a bucket, read from their manifests."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dtj_trainer import contract
from dtj_trainer.artifacts.manifest import (
    Manifest,
    ManifestError,
    NewerManifest,
    StoredFile,
    number_and_claim,
)
from dtj_trainer.artifacts.retention import Candidate, kept
from dtj_trainer.artifacts.s3 import DamagedObject, NoSuchKey
from dtj_trainer.clock import seconds_of

if TYPE_CHECKING:
    from dtj_trainer.artifacts.store import Store

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
        raise ManifestError(f"the manifest is of checkpoint {manifest.folder}")
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
