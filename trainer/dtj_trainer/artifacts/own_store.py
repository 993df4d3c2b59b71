"""The store that the environment of a pod names: the job's own prefix in the bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dtj_trainer import contract
from dtj_trainer.artifacts.store import open_store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dtj_trainer.artifacts.store import Store


def own_store(environment: Mapping[str, str]) -> Store:
    """Open the store of `ENV_ARTIFACTS_URI`, without a request. Raises ValueError, which names the variable."""
    uri = environment.get(contract.ENV_ARTIFACTS_URI)
    if not uri:
        raise ValueError(
            f"{contract.ENV_ARTIFACTS_URI} is not set: the job's own prefix, s3://bucket/prefix/…"
        )
    try:
        return open_store(uri)
    except ValueError as error:
        raise ValueError(f"{contract.ENV_ARTIFACTS_URI}: {error}") from None
