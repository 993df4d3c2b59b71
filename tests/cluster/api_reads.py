"""Reads of the API without kubectl, because each kubectl call takes processor time from the training."""

from __future__ import annotations

import os
from functools import cache
from typing import Any
from urllib.parse import urlencode

from kubernetes import config
from urllib3 import PoolManager, Retry
from urllib3.exceptions import HTTPError

from dtj.api.identity import GROUP, PLURAL, VERSION

FOLDERS = {"dtj": f"/apis/{GROUP}/{VERSION}", "pods": "/api/v1", "events": "/api/v1"}
PLURALS = {"dtj": PLURAL}
TIMEOUT_SECONDS = 60
# An API server or etcd on a busy machine may be late once, which is not the subject of any test.
RETRIES = Retry(3, backoff_factor=1, status_forcelist=(429, 500, 502, 503, 504), raise_on_status=False)


class ReadError(Exception):
    """What the API server says, or why it says nothing."""


def read(namespace: str, kind: str, name: str = "", selector: str = "") -> dict[str, Any]:
    """An object, or the list of those that a label selector selects; of the kinds in FOLDERS. Raises ReadError."""
    host, pool = _connection(os.environ["KUBECONFIG"])
    path = f"{FOLDERS[kind]}/namespaces/{namespace}/{PLURALS.get(kind, kind)}/{name}".rstrip("/")
    query = f"?{urlencode({'labelSelector': selector})}" if selector else ""
    try:
        answer = pool.request("GET", f"{host}{path}{query}", timeout=TIMEOUT_SECONDS, retries=RETRIES)
        found: dict[str, Any] = answer.json()
    except (HTTPError, ValueError) as error:
        raise ReadError(f"{path}: {error}") from None
    if answer.status != 200:
        raise ReadError(found.get("message", f"{path}: {answer.status}"))
    return found


@cache
def _connection(kubeconfig: str) -> tuple[str, PoolManager]:
    """The API server's address, and connections to it that are kept."""
    client = config.new_client_from_config(kubeconfig)
    return client.configuration.host, client.rest_client.pool_manager
