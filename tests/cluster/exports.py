"""The shell exports that tests need for a cluster."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cluster.objectstore import ObjectStore


def exports(kubeconfig: Path, store: ObjectStore) -> str:
    """Lines for `eval "$(…)"`."""
    values = {"KUBECONFIG": str(kubeconfig), "DTJ_TEST_S3_ENDPOINT": store.endpoint, **store.credentials()}
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in values.items())
