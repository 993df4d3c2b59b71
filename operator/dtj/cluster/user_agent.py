"""The User-Agents of requests to the API server. They name the client in audit logs and in `managedFields`."""

from __future__ import annotations

from importlib.metadata import version

from dtj.api.identity import MANAGER

OPERATOR = f"{MANAGER}/{version('dtj')}"
"""The operator's User-Agent. The API server uses the part before the slash as field manager."""
USER = f"dtj/{version('dtj')}"
"""The User-Agent of the `dtj` command and the Python SDK."""
