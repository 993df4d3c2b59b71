"""Who asks: the User-Agent of requests to the API server, which names a client in audit logs and `managedFields`."""

from __future__ import annotations

from importlib.metadata import version

from dtj.api.identity import MANAGER

OPERATOR = f"{MANAGER}/{version('dtj')}"
"""Of the operator. The API server takes the part before the slash for the field manager."""
USER = f"dtj/{version('dtj')}"
"""Of the `dtj` command and the Python SDK."""
