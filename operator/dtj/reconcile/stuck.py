"""The exception that the health check reports as a failure of the process."""

from __future__ import annotations


class Stuck(RuntimeError):
    """The operator makes no progress. The kubelet should restart its process."""
