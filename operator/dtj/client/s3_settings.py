"""What a job says of how its store is used. Without the Kubernetes client: commands without a cluster read it too."""

from __future__ import annotations

from collections.abc import Iterable

from dtj.api.spec import EnvVar
from dtj_trainer import contract


def s3_settings(variables: Iterable[EnvVar]) -> dict[str, str]:
    """Of a job's variables those that say how its store is used; values from Secrets and ConfigMaps are left out."""
    return {v.name: v.value for v in variables if v.name in contract.S3_SETTINGS and v.value is not None}
