"""The operator's requests to the Kubernetes API."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from dtj.api.identity import KIND, LABEL_JOB
from dtj.api.job import Manifest
from dtj.cluster import kubernetes_client
from dtj.cluster.decoding import ListBody, listed
from dtj.cluster.interface import ApiError, Selection
from dtj.cluster.kubernetes_client import api_client, client, config
from dtj.cluster.paths import collection_path, job_path, object_path, selection_path
from dtj.cluster.rest_client import JSON_PATCH, MERGE_PATCH, RestClient, no_object
from dtj.cluster.server_clock import ServerClock

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
# Objects in a page of a list. The API server holds a whole page in memory: 100 of the largest ConfigMaps take 100 MB.
_PAGE = 100
JOBS_PAGE = 20
"""Jobs in a page of a list. The API server decodes jobs: a job of 1.4 MB may take 180 MB of its memory."""
# A page of large objects may take minutes in total. A connection that sends nothing for sock_read seconds is dead.
_LIST_TIMEOUT = aiohttp.ClientTimeout(total=300, sock_connect=10, sock_read=30)
# Fields of a pod's metadata that the operator does not read, and that may be large.
_UNREAD = ("managedFields", "annotations")
_WATCH_SECONDS = 600
# A connection may die silently. The API server sends a bookmark on each watch every minute, so a watch that is silent
# for longer is dead. The server ends each watch after _WATCH_SECONDS. Otherwise the timeout `total` ends the watch.
_WATCH_TIMEOUT = aiohttp.ClientTimeout(total=_WATCH_SECONDS + 30, sock_connect=10, sock_read=70)
METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
_METADATA_OF_ONE = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"


class KubernetesApi(RestClient):
    """A `Cluster` on a real API server."""

    async def serves(self, api_version: str) -> bool:
        """Return whether the API server serves this group and version."""
        try:
            await self._request("GET", f"/apis/{api_version}", "APIResourceList")
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True

    async def schema(self, api_version: str, kind: str) -> Manifest | None:
        """Return the schema of a kind as the API server publishes it.

        None where the server does not publish it: Kubernetes before 1.24, and a server that hides it from this user.
        """
        try:
            document = await self._request("GET", f"/openapi/v3/apis/{api_version}", "OpenAPI")
        except ApiError as error:
            if error.status in (403, 404):
                return None
            raise
        schemas: Manifest = (document.get("components") or {}).get("schemas") or {}
        return next((schema for name, schema in schemas.items() if name.endswith(f".{kind}")), None)

    async def serves_kind(self, api_version: str, plural: str) -> bool:
        try:
            group = await self._request("GET", f"/apis/{api_version}", "APIResourceList")
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return any(resource["name"] == plural for resource in group.get("resources") or [])

    async def create(self, manifest: Manifest) -> Manifest:
        path = collection_path(manifest) + "?fieldValidation=Strict"
        return await self._request("POST", path, manifest["kind"], manifest)

    async def get(self, manifest: Manifest) -> Manifest | None:
        try:
            return await self._request("GET", object_path(manifest), manifest["kind"])
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def pods_of(self, namespace: str, job: str) -> list[Manifest]:
        selection = Selection("v1", "Pod", f"{LABEL_JOB}={job}", namespace)
        pods = list[Manifest]()
        async for items, _ in self.pages(selection, METADATA_ONLY):
            for item in items:
                for name in _UNREAD:
                    item["metadata"].pop(name, None)
            pods += items
        return pods

    async def replace(self, manifest: Manifest) -> Manifest:
        """Replace an object. Raises ApiError 409 when the object has another resourceVersion than the manifest."""
        return await self._request("PUT", object_path(manifest), manifest["kind"], manifest)

    async def replace_data(self, manifest: Manifest) -> Manifest:
        # A merge patch keeps the keys that it does not name. The keys of a job's ConfigMap never become fewer.
        patch = {"data": manifest["data"]}
        return await self._request("PATCH", object_path(manifest), manifest["kind"], patch, MERGE_PATCH)

    async def delete(self, manifest: Manifest, uid: str) -> None:
        await self._delete(object_path(manifest), manifest["kind"], uid)

    async def update_deployment(self, manifest: Manifest) -> Manifest:
        # A merge patch would keep fields that the new template does not have.
        patch = [
            {"op": "add", "path": f"/metadata/annotations/{name.replace('/', '~1')}", "value": value}
            for name, value in manifest["metadata"]["annotations"].items()
        ]
        patch += [
            {"op": "replace", "path": f"/spec/{field}", "value": manifest["spec"][field]}
            for field in ("replicas", "template")
            if field in manifest["spec"]
        ]
        return await self._request("PATCH", object_path(manifest), manifest["kind"], patch, JSON_PATCH)

    async def delete_pod(self, namespace: str, name: str, uid: str, *, force: bool = False) -> None:
        at_once = {"gracePeriodSeconds": 0} if force else {}
        await self._delete(f"/api/v1/namespaces/{namespace}/pods/{name}", "Pod", uid, **at_once)

    async def delete_tree(self, manifest: Manifest) -> None:
        uid = manifest["metadata"]["uid"]
        await self._delete(object_path(manifest), manifest["kind"], uid, propagationPolicy="Foreground")

    async def _delete(self, path: str, kind: str, uid: str, **options: object) -> None:
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}, **options}
        try:
            await self._request("DELETE", path, kind, body)
        except ApiError as error:
            # 409: another object has the name now, so the object of this uid is gone.
            if error.status not in (404, 409):
                raise

    async def expire_job(self, namespace: str, name: str, uid: str, resource_version: str) -> None:
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": {"uid": uid, "resourceVersion": resource_version},
        }
        try:
            await self._request("DELETE", job_path(namespace, name), KIND, options)
        except ApiError as error:
            if error.status != 404:
                raise

    async def patch_status(
        self, namespace: str, name: str, resource_version: str, patch: Manifest
    ) -> Manifest:
        path = f"{job_path(namespace, name)}/status"
        body = {"metadata": {"resourceVersion": resource_version}, "status": patch}
        # Ask for the metadata only: the operator knows the rest of the job, which may be large. An API server before
        # 1.15 returns the whole job.
        return await self._request("PATCH", path, KIND, body, MERGE_PATCH, accept=_METADATA_OF_ONE)

    async def pages(
        self, selection: Selection, accept: str = "application/json"
    ) -> AsyncIterator[tuple[list[Any], str]]:
        # Send no resourceVersion: the API server then answers from etcd, not from its cache, which may be outdated.
        limit = JOBS_PAGE if selection.kind == KIND else _PAGE
        path, query = selection_path(selection), {"limit": str(limit)} | _selectors(selection)
        while True:
            body, address = ListBody(), f"{path}?{urlencode(query)}"
            async with self._answer(
                "GET", address, selection.kind, timeout=_LIST_TIMEOUT, accept=accept, verb="list"
            ) as answer:
                try:
                    async for items in listed(answer.content.iter_any(), body, selection.see):
                        yield items, ""
                except ValueError:
                    raise no_object(body.begin) from None
            metadata = body.fields.get("metadata")
            has_items = body.has_items or "items" in body.fields  # `items` is null if the list is empty
            if not has_items or not isinstance(metadata, dict) or "resourceVersion" not in metadata:
                raise ApiError(0, "Unreadable", "the answer is not a list of objects")
            yield [], metadata["resourceVersion"]
            if not metadata.get("continue"):
                return
            query["continue"] = metadata["continue"]

    def changes(
        self, selection: Selection, resource_version: str
    ) -> AsyncIterator[tuple[str, Mapping[str, Any]]]:
        query = _selectors(selection) | {
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(_WATCH_SECONDS),
        }
        return self._watch(selection_path(selection), selection.kind, query, _WATCH_TIMEOUT, selection.see)


async def connect(
    on_answer: Callable[[str, str, int], None] | None = None,
    may_write: Callable[[], bool] = lambda: True,
    clock: ServerClock | None = None,
) -> KubernetesApi:
    """Connect as the pod's service account, or by KUBECONFIG outside a pod. Arguments: as for RestClient."""
    settings = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=settings)
    except config.ConfigException:
        await config.load_kube_config(client_configuration=settings)
    # Do not limit the connections: each watch occupies one, and with many namespaces, watches would occupy them all.
    settings.connection_pool_maxsize = 0
    # Set trust_env only if a proxy is needed: with trust_env, each request reads ~/.netrc in a thread.
    settings.client_session_kwargs = {"trust_env": _has_proxy(settings.host)}
    return KubernetesApi(api_client(settings, kubernetes_client.OPERATOR), on_answer, may_write, clock)


def _has_proxy(url: str) -> bool:
    """Return whether the environment names a proxy for this host."""
    parts = urlsplit(url)
    return parts.scheme in getproxies() and not proxy_bypass(parts.hostname or "")


def own_namespace() -> str | None:
    """Return the namespace of the pod that this process runs in; None outside a pod."""
    try:
        return _NAMESPACE_FILE.read_text().strip()
    except FileNotFoundError:
        return None


def _selectors(selection: Selection) -> dict[str, str]:
    given = {
        "labelSelector": selection.labels,
        "fieldSelector": selection.name and f"metadata.name={selection.name}",
    }
    return {name: value for name, value in given.items() if value}
