"""Connects a command to the cluster, and keeps the client open until the command ends."""

from __future__ import annotations

import atexit
from contextlib import ExitStack
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dtj.client import Client

opened = ExitStack()
"""The clients that stay open until the command ends. `main` closes the clients before the interpreter exits: a client
may send requests when it is closed, and asyncio starts no threads while the interpreter exits."""
atexit.register(opened.close)  # Close the clients even if a command is called without `main`, as in tests.


def connect(namespace: str | None, context: str | None) -> Client:
    """Return a client of the cluster, which `opened` closes.

    Raises Unreachable, or Unusable if the kubeconfig can't be used.
    """
    import dtj.client

    client = dtj.client.Client(namespace=namespace, context=context)
    opened.callback(client.close)
    return client
