"""dtj: a Kubernetes operator that launches distributed deep-learning training, its command and its Python SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dtj.client import AsyncClient, Client, DistributedTrainingJob

__all__ = ["AsyncClient", "Client", "DistributedTrainingJob", "__version__"]

__version__: str


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from dtj_trainer.contract.distribution import version

        return version()
    # Import the client on first use: the operator also imports this package, and does not need the client.
    if name in __all__:
        import dtj.client

        return getattr(dtj.client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
