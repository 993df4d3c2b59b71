"""Calls of the API without kubectl, because each kubectl call takes processor time from the training."""

from __future__ import annotations

import json
import os
from functools import cache
from typing import Any
from urllib.parse import urlencode

from kubernetes import config
from urllib3 import PoolManager, Retry
from urllib3.exceptions import HTTPError

from dtj.api.identity import GROUP, PLURAL, VERSION

FOLDERS = {"dtj": f"/apis/{GROUP}/{VERSION}"} | dict.fromkeys(
    ("events", "pods", "secrets", "serviceaccounts"), "/api/v1"
)
PLURALS = {"dtj": PLURAL}
TIMEOUT_SECONDS = 60
# An API server or etcd on a busy machine may be late once, which is not the subject of any test.
RETRIES = Retry(
    3,
    backoff_factor=1,
    status_forcelist=(429, 500, 502, 503, 504),
    raise_on_status=False,
    allowed_methods=None,
)


class KubectlError(Exception):
    """kubectl, or the API server without it, refused; the text is what a person sees."""


def read(namespace: str, kind: str, name: str = "", selector: str = "") -> dict[str, Any]:
    """An object, or the list of those that a label selector selects; of the kinds in FOLDERS. Raises KubectlError."""
    query = f"?{urlencode({'labelSelector': selector})}" if selector else ""
    return _call("GET", _path(namespace, kind, name) + query)


def apply(namespace: str, kind: str, manifest: dict[str, Any]) -> None:
    """Apply an object as `kubectl apply --server-side --force-conflicts` does. Raises KubectlError."""
    query = urlencode({"fieldManager": "kubectl", "force": "true"})
    _call("PATCH", f"{_path(namespace, kind, manifest['metadata']['name'])}?{query}", manifest)


def make_namespace(name: str) -> None:
    """Make a namespace. Raises KubectlError."""
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    _call("PATCH", f"/api/v1/namespaces/{name}?fieldManager=kubectl", body)


def delete_namespace(name: str) -> None:
    """Tell the API server to delete a namespace; do not wait for the end. Raises KubectlError."""
    _call("DELETE", f"/api/v1/namespaces/{name}")


def _path(namespace: str, kind: str, name: str = "") -> str:
    """The URL path of an object, or of all objects of a kind in a namespace."""
    return f"{FOLDERS[kind]}/namespaces/{namespace}/{PLURALS.get(kind, kind)}/{name}".rstrip("/")


def _call(method: str, at: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    host, pool = _connection(os.environ["KUBECONFIG"])
    headers = {"Content-Type": "application/apply-patch+yaml"} if method == "PATCH" else None
    try:
        answer = pool.request(
            method, f"{host}{at}", body=body and json.dumps(body), headers=headers,
            timeout=TIMEOUT_SECONDS, retries=RETRIES,
        )  # fmt: skip
        found: dict[str, Any] = answer.json()
    except (HTTPError, ValueError) as error:
        raise KubectlError(f"{at}: {error}") from None
    if answer.status not in (200, 201, 202):
        raise KubectlError(found.get("message", f"{at}: {answer.status}"))
    return found


@cache
def _connection(kubeconfig: str) -> tuple[str, PoolManager]:
    """The API server's address, and connections to it that are kept."""
    client = config.new_client_from_config(kubeconfig)
    return client.configuration.host, client.rest_client.pool_manager
