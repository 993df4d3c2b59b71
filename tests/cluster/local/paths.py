"""Where things lie: builds in the user's cache, the running cluster in a directory of its own."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "dtj"
RUN = Path("/var/lib/dtj-cluster")
PKI = RUN / "pki"
KUBECONFIGS = RUN / "kubeconfig"
ADMIN_KUBECONFIG = KUBECONFIGS / "admin.yaml"
LOGS = RUN / "logs"
PIDS = RUN / "pids"
CONFIG = RUN / "config"


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
