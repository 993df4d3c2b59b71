"""The checkpoints in a bucket, as their manifests tell."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dtj_trainer import contract
from dtj_trainer.artifacts.manifest import Manifest, ManifestError
from dtj_trainer.artifacts.retention import Candidate
from dtj_trainer.artifacts.s3 import NoSuchKey

if TYPE_CHECKING:
    from dtj_trainer.artifacts.store import Store

log = logging.getLogger(__name__)


@dataclass
class CheckpointIndex:
    """Manifests by step, and the steps that have files but no manifest that can be read."""

    manifests: dict[int, Manifest] = field(default_factory=dict)
    torn: set[int] = field(default_factory=set)

    def newest_first(self) -> list[Manifest]:
        """The manifests in the order in which a restore tries them."""
        return sorted(self.manifests.values(), key=lambda m: (m.attempt, m.step), reverse=True)


def candidate_of(manifest: Manifest) -> Candidate:
    """The manifest as a candidate for keeping."""
    return Candidate(manifest.attempt, manifest.step, manifest.metric, manifest.metric_mode)


def read_index(store: Store, *, warn: bool = False) -> CheckpointIndex:
    """Read every manifest below a checkpoints prefix; `warn` tells the log about each torn checkpoint."""
    index = CheckpointIndex()
    for folder in store.folders():
        if not folder.isdecimal():
            continue
        step = int(folder)
        try:
            manifest = Manifest.from_json(store.get_bytes(f"{folder}/{contract.MANIFEST_FILE}"))
            if manifest.step != step:
                raise ManifestError(f"the manifest is of step {manifest.step}")
            index.manifests[step] = manifest
        except NoSuchKey:
            index.torn.add(step)
            if warn:
                log.warning("checkpoint %s is torn: it has no manifest; skipped", store.uri(folder))
        except ManifestError as error:
            index.torn.add(step)
            if warn:
                log.warning("checkpoint %s is damaged: %s; skipped", store.uri(folder), error)
    return index
