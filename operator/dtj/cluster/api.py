"""The Kubernetes API through `kubernetes.aio`, plain dictionaries in and out."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from dtj.api.identity import API_VERSION, GROUP, KIND, LABEL_JOB, PLURAL, VERSION
from dtj.api.job import Manifest
from dtj.api.mpijob import MPIJOB_API_VERSION, MPIJOB_KIND, MPIJOB_PLURAL
from dtj.api.nesting import read_json
from dtj.cluster import user_agent
from dtj.cluster.decoding import decoded
from dtj.cluster.kubernetes_client import api_client, client, config
from dtj.cluster.port import ApiError, Selection
from dtj.cluster.server_clock import ServerClock

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_TIMEOUT = aiohttp.ClientTimeout(total=30.0)
_PLURALS = {
    ("v1", "Pod"): "pods",
    ("v1", "Service"): "services",
    ("v1", "ConfigMap"): "configmaps",
    ("v1", "Secret"): "secrets",
    ("v1", "Event"): "events",
    ("apps/v1", "Deployment"): "deployments",
    ("coordination.k8s.io/v1", "Lease"): "leases",
    ("networking.k8s.io/v1", "NetworkPolicy"): "networkpolicies",
    ("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration"): "validatingwebhookconfigurations",
    ("scheduling.x-k8s.io/v1alpha1", "PodGroup"): "podgroups",
    ("scheduling.volcano.sh/v1beta1", "PodGroup"): "podgroups",
    (API_VERSION, KIND): PLURAL,
    (MPIJOB_API_VERSION, MPIJOB_KIND): MPIJOB_PLURAL,
}
_CHUNK = 500
_WATCH_SECONDS = 600
# A connection may die without a sign. The API server writes a bookmark on each watch every minute, so one that says
# nothing for longer is dead; and none is trusted for ever: the server ends it in time, or else this side does.
_WATCH_TIMEOUT = aiohttp.ClientTimeout(total=_WATCH_SECONDS + 30, sock_connect=10, sock_read=70)
_METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
_VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
MERGE_PATCH = "application/merge-patch+json"
_JSON_PATCH = "application/json-patch+json"


class KubernetesApi:
    """A `Cluster` on a real API server. Close it when done."""

    def __init__(
        self,
        api: client.ApiClient,
        on_answer: Callable[[str, str, int], None] | None = None,
        may_write: Callable[[], bool] = lambda: True,
        clock: ServerClock | None = None,
    ) -> None:
        """on_answer: told verb (as a role names it), kind and HTTP status (0: no answer) of each request. may_write:
        asked before each request that is no GET; where it says no, the request is not made. clock: shown the dates of
        answers.
        """
        self._api = api
        self._on_answer = on_answer
        self._may_write = may_write
        self._clock = clock

    async def close(self) -> None:
        """Close the connections."""
        await self._api.close()

    async def serves(self, api_version: str) -> bool:
        """Whether the API server knows this group and version."""
        try:
            await self._request("GET", f"/apis/{api_version}", "APIResourceList")
        except ApiError as error:
            if error.status in (0, 404):
                return False
            raise
        return True

    async def serves_kind(self, api_version: str, plural: str) -> bool:
        try:
            found = await self._request("GET", f"/apis/{api_version}", "APIResourceList")
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return any(resource["name"] == plural for resource in found.get("resources") or [])

    async def create(self, manifest: Manifest) -> Manifest:
        path = _collection(manifest) + "?fieldValidation=Strict"
        return await self._request("POST", path, manifest["kind"], manifest)

    async def get(self, manifest: Manifest) -> Manifest | None:
        try:
            return await self._request("GET", _path(manifest), manifest["kind"])
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def pods_of(self, namespace: str, job: str) -> list[Manifest]:
        selection = Selection("v1", "Pod", f"{LABEL_JOB}={job}", namespace)
        return [item async for items, _ in self.pages(selection, _METADATA_ONLY) for item in items]

    async def replace(self, manifest: Manifest) -> Manifest:
        """Replace an object; 409 when it is not at the manifest's resourceVersion any more."""
        return await self._request("PUT", _path(manifest), manifest["kind"], manifest)

    async def replace_data(self, manifest: Manifest) -> Manifest:
        # A merge patch keeps keys that it does not name: the ConfigMap's set of keys never shrinks.
        patch = {"data": manifest["data"]}
        return await self._request("PATCH", _path(manifest), manifest["kind"], patch, MERGE_PATCH)

    async def delete(self, manifest: Manifest, uid: str) -> None:
        await self._delete(_path(manifest), manifest["kind"], uid)

    async def update_deployment(self, manifest: Manifest) -> Manifest:
        # Not merged: a field that the template has not any more is to go.
        patch = [
            {"op": "add", "path": f"/metadata/annotations/{name.replace('/', '~1')}", "value": value}
            for name, value in manifest["metadata"]["annotations"].items()
        ]
        patch += [
            {"op": "replace", "path": f"/spec/{field}", "value": manifest["spec"][field]}
            for field in ("replicas", "template")
            if field in manifest["spec"]
        ]
        return await self._request("PATCH", _path(manifest), manifest["kind"], patch, _JSON_PATCH)

    async def delete_pod(self, namespace: str, name: str, uid: str, *, force: bool = False) -> None:
        at_once = {"gracePeriodSeconds": 0} if force else {}
        await self._delete(f"/api/v1/namespaces/{namespace}/pods/{name}", "Pod", uid, **at_once)

    async def delete_tree(self, manifest: Manifest) -> None:
        uid = manifest["metadata"]["uid"]
        await self._delete(_path(manifest), manifest["kind"], uid, propagationPolicy="Foreground")

    async def _delete(self, path: str, kind: str, uid: str, **options: object) -> None:
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}, **options}
        try:
            await self._request("DELETE", path, kind, body)
        except ApiError as error:
            # 409: another object has the name now, so that one is gone.
            if error.status not in (404, 409):
                raise

    async def expire_job(self, namespace: str, name: str, uid: str, resource_version: str) -> None:
        path = f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{PLURAL}/{name}"
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": {"uid": uid, "resourceVersion": resource_version},
        }
        try:
            await self._request("DELETE", path, KIND, options)
        except ApiError as error:
            if error.status != 404:
                raise

    async def patch_status(
        self, namespace: str, name: str, resource_version: str, patch: Manifest
    ) -> Manifest:
        path = f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{PLURAL}/{name}/status"
        body = {"metadata": {"resourceVersion": resource_version}, "status": patch}
        return await self._request("PATCH", path, KIND, body, MERGE_PATCH)

    async def pages(
        self, selection: Selection, accept: str = "application/json"
    ) -> AsyncIterator[tuple[list[Manifest], str]]:
        # No resourceVersion: the server answers from its store, not from a cache of its own.
        path, query = _all_of(selection), {"limit": str(_CHUNK)} | _selector(selection)
        while True:
            page = await self._request(
                "GET", f"{path}?{urlencode(query)}", selection.kind, accept=accept, verb="list"
            )
            metadata = page.get("metadata")
            if "items" not in page or not isinstance(metadata, dict) or "resourceVersion" not in metadata:
                raise ApiError(0, "Unreadable", "the answer is no list of objects")
            yield page["items"] or [], metadata["resourceVersion"]  # null when there are none
            going_on = metadata.get("continue")
            if not going_on:
                return
            query["continue"] = going_on

    def changes(self, selection: Selection, resource_version: str) -> AsyncIterator[tuple[str, Manifest]]:
        asked = {
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(_WATCH_SECONDS),
        }
        return self._changes(_all_of(selection), selection.kind, _selector(selection) | asked, _WATCH_TIMEOUT)

    async def _changes(
        self, path: str, kind: str, query: Mapping[str, str], timeout: aiohttp.ClientTimeout
    ) -> AsyncIterator[tuple[str, Manifest]]:
        async for line in self._lines(path, kind, {**query, "watch": "true"}, timeout, "watch"):
            try:
                event = await decoded(line)
            except ValueError:
                raise ApiError(0, "Cut", "the watch was cut in the middle of a change") from None
            if not isinstance(event, dict) or not isinstance(event.get("object"), dict):
                raise ApiError(0, "Unreadable", "the watch told of no object")
            what, about = str(event.get("type")), event["object"]
            if what == "ERROR":
                raise ApiError(
                    about.get("code") or 500, about.get("reason") or "", about.get("message") or ""
                )
            yield what, about

    async def _lines(
        self,
        path: str,
        kind: str,
        query: Mapping[str, str],
        timeout: aiohttp.ClientTimeout,
        verb: str = "get",
    ) -> AsyncIterator[bytes]:
        address = f"{path}?{urlencode(query)}"
        async with self._answer("GET", address, kind, timeout=timeout, verb=verb) as answer:
            # Not by the reader's own lines: those have a longest length.
            rest = b""
            async for block in answer.content.iter_any():
                *lines, rest = (rest + block).split(b"\n")
                for line in lines:
                    yield line
            if rest:
                yield rest

    async def _request(
        self,
        method: str,
        path: str,
        kind: str,
        body: Manifest | list[Manifest] | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        verb: str | None = None,
    ) -> Manifest:
        async with self._answer(method, path, kind, body, content_type, accept=accept, verb=verb) as answer:
            return await _object(await answer.read())

    @asynccontextmanager
    async def _answer(
        self,
        method: str,
        path: str,
        kind: str,
        body: Manifest | list[Manifest] | None = None,
        content_type: str = "application/json",
        timeout: aiohttp.ClientTimeout = _TIMEOUT,
        accept: str = "application/json",
        verb: str | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer to a request, to be read in the block: what goes wrong there is an ApiError too. verb: as a role
        names it, where the method does not say.
        """
        headers = {"Accept": accept, "Content-Type": content_type}
        verb = verb or _VERBS[method]
        # The body is JSON already: to look for objects of the client's own in it takes a fifth of a request's time.
        _, url, headers, *_ = await self._api.param_serialize(
            method, path, header_params=headers, auth_settings=["BearerToken"]
        )
        if method != "GET" and not self._may_write():
            raise ApiError(0, "NotLeading", "another operator may lead now")
        told = False

        def tell(status: int) -> None:
            nonlocal told
            if self._on_answer is not None and not told:
                self._on_answer(verb, kind, status)
            told = True

        sent = self._clock.seconds() if self._clock else 0.0
        try:
            response = await self._api.call_api(method, url, headers, body, _request_timeout=timeout)
            async with response.response as answer:
                if self._clock and answer.status < 400:
                    self._clock.see(answer.headers.get("Date"), sent)
                if answer.status >= 400:
                    content = await answer.read()
                    tell(answer.status)
                    raise _api_error(answer.status, content, answer.headers.get("Retry-After"))
                if verb == "watch":  # It lasts, and its end is no failure however it comes.
                    tell(answer.status)
                yield answer
                tell(answer.status)
        except client.ApiException as error:
            tell(error.status or 0)
            raise _api_error(error.status or 0, error.body or "") from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            tell(0)
            raise ApiError(0, "Unreachable", _no_answer(error)) from None


async def connect(
    on_answer: Callable[[str, str, int], None] | None = None,
    may_write: Callable[[], bool] = lambda: True,
    clock: ServerClock | None = None,
) -> KubernetesApi:
    """Connect as the pod's service account, or by KUBECONFIG where there is none. Arguments: as KubernetesApi's."""
    settings = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=settings)
    except config.ConfigException:
        await config.load_kube_config(client_configuration=settings)
    # No bound: each watch keeps a connection, and requests would wait for one behind those of many namespaces.
    settings.connection_pool_maxsize = 0
    # Else each request asks a thread for ~/.netrc, and another one for a proxy.
    settings.client_session_kwargs = {"trust_env": _has_proxy(settings.host)}
    return KubernetesApi(api_client(settings, user_agent.OPERATOR), on_answer, may_write, clock)


def _has_proxy(url: str) -> bool:
    """Whether the environment names a proxy by which this host is reached."""
    parts = urlsplit(url)
    return parts.scheme in getproxies() and not proxy_bypass(parts.hostname or "")


def own_namespace() -> str | None:
    """The namespace of the pod that this process runs in; None outside a cluster."""
    try:
        return _NAMESPACE_FILE.read_text().strip()
    except FileNotFoundError:
        return None


def _no_answer(error: Exception) -> str:
    """Why no answer came, in words."""
    match error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error:
        case ConnectionRefusedError():
            return "the connection is refused"
        case socket.gaierror():
            return "its name does not resolve"
        case TimeoutError():
            return "no answer in time"
        case cause:
            return f"{type(cause).__name__}: {cause}"


def _collection(manifest: Manifest) -> str:
    version = manifest["apiVersion"]
    root = f"/api/{version}" if "/" not in version else f"/apis/{version}"
    plural = _PLURALS[version, manifest["kind"]]
    namespace = manifest["metadata"].get("namespace")
    return f"{root}/{plural}" if namespace is None else f"{root}/namespaces/{namespace}/{plural}"


def _all_of(selection: Selection) -> str:
    metadata = {"namespace": selection.namespace}
    return _collection({"apiVersion": selection.api_version, "kind": selection.kind, "metadata": metadata})


def _selector(selection: Selection) -> dict[str, str]:
    return {"labelSelector": selection.labels} if selection.labels else {}


def _path(manifest: Manifest) -> str:
    return f"{_collection(manifest)}/{manifest['metadata']['name']}"


async def _object(body: bytes) -> Manifest:
    """What an answer of success says. Raises ApiError: a proxy on the way may have written the answer."""
    try:
        said = await decoded(body)
    except ValueError:
        said = None
    if not isinstance(said, dict):
        begin = body[:100].decode(errors="replace")
        raise ApiError(0, "Unreadable", f"the answer is no JSON of an object: {begin!r}")
    return said


def _api_error(status: int, body: Any, retry_after: str | None = None) -> ApiError:
    text = body.decode(errors="replace") if isinstance(body, bytes) else str(body)
    try:
        said = read_json(text)
    except ValueError:
        said = None
    if not isinstance(said, dict):
        said = {}
    wait = (said.get("details") or {}).get("retryAfterSeconds") or retry_after
    return ApiError(
        status,
        said.get("reason") or "Error",
        said.get("message") or text[:500],
        float(wait) if wait and str(wait).isdigit() else None,
    )
