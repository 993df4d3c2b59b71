"""Paths of the local cluster: builds in the cache of the user, and the directory of the running cluster."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cluster.progress import note

if TYPE_CHECKING:
    from collections.abc import Iterator

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "dtj"
PREFIX_VARIABLE = "DTJ_TEST_CLUSTER_PREFIX"
PREFIX = os.environ.get(PREFIX_VARIABLE, "10.200")
"""The first two numbers of all addresses; another prefix is another cluster, with names and folders of its own."""
NAME = "dtj" if PREFIX == "10.200" else f"dtj{PREFIX.removeprefix('10.')}"
"""Begins the names of devices and cgroups."""
RUN = Path(f"/var/lib/{NAME}-cluster")
IMAGES = CACHE / ("containerd" if NAME == "dtj" else f"containerd-{NAME}")
"""What each node's containerd keeps between clusters."""
PKI = RUN / "pki"
KUBECONFIGS = RUN / "kubeconfig"
ADMIN_KUBECONFIG = KUBECONFIGS / "admin.yaml"


@contextmanager
def locked(name: str) -> Iterator[None]:
    """One at a time on this machine; another waits, and says so."""
    path = CACHE / "locks" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            note(f"waiting for another process that works on the {name}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def built_once(target: Path) -> Iterator[Path | None]:
    """Give a temporary directory to build in, which becomes `target` at the end; None where it exists.

    It becomes `target` by one rename, so a build that was killed leaves nothing half.
    """
    if target.exists():
        yield None
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield temporary
        temporary.chmod(0o755)
        temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
