"""The index of the checkpoints in a bucket, read from their manifests."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dtj_trainer import contract
from dtj_trainer.artifacts.manifest import Manifest, ManifestError, NewerManifest, step_and_claim
from dtj_trainer.artifacts.retention import Candidate
from dtj_trainer.artifacts.s3 import DamagedObject, NoSuchKey
from dtj_trainer.clock import seconds_of

if TYPE_CHECKING:
    from dtj_trainer.artifacts.store import Store

log = logging.getLogger(__name__)


@dataclass
class CheckpointIndex:
    """The readable manifests by folder, and the folders that have none."""

    manifests: dict[str, Manifest] = field(default_factory=dict)
    torn: set[str] = field(default_factory=set)
    """Folders without a manifest, and the folders in `damaged`. The uploader removes them once a newer upload
    exists."""
    damaged: dict[str, str] = field(default_factory=dict)
    """What is wrong with a manifest, by folder."""
    newer: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Folders whose manifest a later release wrote, with their `age`. Nothing removes these folders."""

    def newest_first(self) -> list[Manifest]:
        """The manifests in the order in which a restore tries them."""
        return sorted(self.manifests.values(), key=age, reverse=True)


def age(manifest: Manifest) -> tuple[int, int]:
    """Return a key that is greater for a newer checkpoint: a later claim is newer, whatever its step."""
    return manifest.claim, manifest.step


def candidate_of(manifest: Manifest) -> Candidate:
    """Return the manifest as a candidate for retention."""
    time = seconds_of(manifest.time)
    return Candidate(manifest.claim, manifest.step, manifest.metric, manifest.metric_mode, time)


def read_index(store: Store, *, warn: bool = False) -> CheckpointIndex:
    """Read every manifest below a checkpoints prefix. `warn`: log a warning about each torn or damaged checkpoint."""
    index = CheckpointIndex()
    for folder in store.folders():
        expected = step_and_claim(folder)
        if expected is None:
            continue
        try:
            manifest = Manifest.from_json(store.get_bytes(f"{folder}/{contract.MANIFEST_FILE}"))
            if (manifest.step, manifest.claim) != expected:
                raise ManifestError(f"the manifest is of checkpoint {manifest.folder}")
            index.manifests[folder] = manifest
        except NewerManifest:
            step, claim = expected
            index.newer[folder] = claim, step
        except NoSuchKey:
            index.torn.add(folder)
            if warn:
                log.warning("checkpoint %s is torn: it has no manifest; skipped", store.uri(folder))
        except (ManifestError, DamagedObject) as error:
            index.torn.add(folder)
            index.damaged[folder] = str(error)
            if warn:
                log.warning("checkpoint %s is damaged: %s; skipped", store.uri(folder), error)
    return index
