"""The stored state of the cluster on this machine: its processes, and the settings before the bring-up."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.local.paths import RUN
from tests.cluster.local.processes import Supervisor, boot

SUPERVISOR = Supervisor(RUN)
# Fixed in this version of the kubelet, whatever its --root-dir.
KUBELET_FIXED = (Path("/var/log/containers"), Path("/var/log/pods"), Path("/var/lib/kubelet"))
_MADE_HERE = RUN / "made-here"
_BOOT = RUN / "boot"


def begin() -> None:
    """Make the cluster's directory, and note what of the kubelet's own is not there yet."""
    if _BOOT.exists():
        return
    RUN.mkdir(parents=True, exist_ok=True, mode=0o755)
    _MADE_HERE.write_text("".join(f"{folder}\n" for folder in KUBELET_FIXED if not folder.exists()))
    _BOOT.write_text(boot())


def is_stale() -> bool:
    """Whether the cluster is from before a reboot: its store was not made to outlive one."""
    return RUN.exists() and (not _BOOT.exists() or _BOOT.read_text() != boot())


def made_here() -> list[Path]:
    """The folders outside of the cluster's own that were not there before it."""
    return [Path(line) for line in _MADE_HERE.read_text().splitlines()] if _MADE_HERE.exists() else []
