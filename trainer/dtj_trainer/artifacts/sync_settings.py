"""What the upload and the restore of a pod are told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dtj_trainer import contract
from dtj_trainer.artifacts.pace import BYTES_PER_SECOND
from dtj_trainer.artifacts.restore import ALL, Lineage

if TYPE_CHECKING:
    from pathlib import Path

    from dtj_trainer.artifacts.peer_hosts import PeerHosts


@dataclass(frozen=True)
class SyncSettings:
    """The artifacts of a pod, and their places. Times in seconds.

    `uri` is the job's own prefix; None means that no artifacts are kept. The logs in `log_names` are uploaded; None
    means all logs.
    """

    root: Path
    config_dir: Path
    uri: str | None
    part: contract.Part
    attempt: int
    resume: str
    keep: int
    settle_seconds: float
    log_names: tuple[str, ...] | None = None
    checkpoints_dir: Path | None = None
    """The folder that has the checkpoints; None: CHECKPOINTS in the workspace."""
    keep_every: float = 0.0
    """Seconds; see `kept` in `retention`."""
    keep_bytes: int = 0
    """The bytes that one snapshot may have; 0: no limit."""
    upload_bytes_per_second: float = BYTES_PER_SECOND
    """The limit while the program runs; 0: no limit."""
    pod: str | None = None
    """`<role>-<index>` of a pod whose utilisation is sampled."""
    peers: PeerHosts | None = None
    """The pods that restore with this one; None: it is alone."""
    resume_since: int = 0
    """The attempt that the user resumed from the job's own snapshot `resume`; 0: `resume` is none of those."""
    resume_skip: tuple[str, ...] = ()
    """Folders of snapshots from which earlier attempts could not go on."""
    shards: bool = False
    """Whether several pods run ranks, so that each may have checkpoint files that no other has."""
    tracked: bool = False
    """Whether this pod writes the job's run to a tracking server."""
    history: contract.History | None = None
    """What this pod needs to know in order to write the job's history; None: it writes none."""
    archives: tuple[tuple[str, Path], ...] = ()
    """The archives of `spec.code` that no bucket has, with their names in the bucket."""

    @property
    def lineage(self) -> Lineage:
        """The snapshots of the job that count."""
        return Lineage(self.resume.rpartition("/")[2], self.resume_since) if self.resume_since else ALL

    @property
    def checkpoints(self) -> Path:
        """The folder that a restore fills and that uploads read."""
        return self.checkpoints_dir or self.root / contract.CHECKPOINTS
