"""The official asyncio client, imported without what dtj does not use of it.

The client imports `kubernetes_validate` wherever that package is installed, as it is for development: four seconds of
CPU in each process. Only the client's `dynamic` module uses it, which dtj does not.
"""

from __future__ import annotations

import sys

_VALIDATION = "kubernetes_validate"
_hidden = _VALIDATION not in sys.modules
if _hidden:
    sys.modules[_VALIDATION] = None  # type: ignore[assignment]  # An import of the name fails, as if it were absent.
try:
    from kubernetes.aio import client, config
finally:
    if _hidden:
        del sys.modules[_VALIDATION]

__all__ = ["api_client", "client", "config"]


def api_client(settings: client.Configuration, user_agent: str) -> client.ApiClient:
    """A client whose requests have this User-Agent. The package's own default is the name of its code generator."""
    made = client.ApiClient(settings)
    made.user_agent = user_agent
    return made
