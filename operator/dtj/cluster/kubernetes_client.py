"""Imports the official asyncio client without a slow dependency that dtj does not need.

The client imports `kubernetes_validate` where that package is installed, as it is for development. The import costs
four seconds of CPU in each process. Only the client's `dynamic` module needs it, and dtj does not use that module.
"""

from __future__ import annotations

import sys

from dtj.api.identity import MANAGER
from dtj_trainer.contract.distribution import version

__all__ = ["api_client", "client", "config"]


_VALIDATION = "kubernetes_validate"
_hidden = _VALIDATION not in sys.modules
if _hidden:
    # None makes an import of the name fail, as if the package were absent.
    sys.modules[_VALIDATION] = None  # type: ignore[assignment]
try:
    from kubernetes.aio import client, config
finally:
    if _hidden:
        del sys.modules[_VALIDATION]


def api_client(settings: client.Configuration, user_agent: str) -> client.ApiClient:
    """Make a client whose requests carry this User-Agent. The client's default is the name of its code generator."""
    api = client.ApiClient(settings)
    api.user_agent = user_agent
    return api


# The User-Agents of requests to the API server, which name the client in audit logs and in `managedFields`.

OPERATOR = f"{MANAGER}/{version()}"
"""The operator's User-Agent. The API server uses the part before the slash as field manager."""
USER = f"dtj/{version()}"
"""The User-Agent of the `dtj` command and the Python SDK."""
