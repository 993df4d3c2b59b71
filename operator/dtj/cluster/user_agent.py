"""The User-Agents of requests to the API server. They name the client in audit logs and in `managedFields`."""

from __future__ import annotations

from dtj.api.identity import MANAGER
from dtj_trainer.contract.distribution import version

OPERATOR = f"{MANAGER}/{version()}"
"""The operator's User-Agent. The API server uses the part before the slash as field manager."""
USER = f"dtj/{version()}"
"""The User-Agent of the `dtj` command and the Python SDK."""
