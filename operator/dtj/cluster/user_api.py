"""The requests of a user: jobs, their pods, logs and events."""

from __future__ import annotations

import os
from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import aiohttp
import yaml

from dtj.api.errors import Unreachable, Unusable
from dtj.api.identity import GROUP, KIND, LABEL_JOB, PLURAL, VERSION
from dtj.api.job import Manifest
from dtj.cluster import kubernetes_client
from dtj.cluster.api import KubernetesApi, own_namespace
from dtj.cluster.interface import ApiError
from dtj.cluster.kubernetes_client import api_client, client, config
from dtj.cluster.paths import object_path, segment
from dtj.cluster.rest_client import MERGE_PATCH

_PAGE = 500
_WATCH_SECONDS = 240
# Timeouts without a total, because watches and logs last arbitrarily long. The server ends a watch after
# _WATCH_SECONDS, so a watch that is silent for longer is dead.
_WATCH_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=_WATCH_SECONDS + 30)
_LOG_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=30)


class UserApi(KubernetesApi):
    """The requests of a user, with the user's own credentials. Every method raises ApiError. Close it after use."""

    def __init__(
        self, api: client.ApiClient, namespace: str | None, renew: Callable[[], Awaitable[None]]
    ) -> None:
        """namespace: of the kubeconfig's context. renew: fetches new credentials; some expire after minutes."""
        super().__init__(api)
        self.namespace = namespace
        self._renew = renew

    @property
    def host(self) -> str:
        """Return the URL of the API server."""
        return str(self._api.configuration.host)

    async def list_jobs(self, namespace: str | None, name: str | None = None) -> tuple[list[Manifest], str]:
        """List the jobs of a namespace (None: all), or the job of that name, with the version from which to watch."""
        query = {"fieldSelector": f"metadata.name={name}"} if name else {}
        return await self._list(_jobs(namespace), KIND, query)

    async def watch_job(
        self, namespace: str, name: str, resource_version: str
    ) -> AsyncIterator[tuple[str, Manifest]]:
        """Yield the changes of a job since a version: ADDED, MODIFIED or DELETED, and the job. Ends after some
        minutes.

        Raises ApiError, also in the middle of the iteration; 410 for a version that is too old.
        """
        query = {
            "fieldSelector": f"metadata.name={name}",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(_WATCH_SECONDS),
        }
        async for change in self._watch(_jobs(namespace), KIND, query, _WATCH_TIMEOUT):
            yield change

    async def config_map(self, namespace: str, name: str) -> Manifest | None:
        """Return a ConfigMap; None if it does not exist."""
        return await self.get(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}}
        )

    async def patch_job(self, namespace: str, name: str, patch: Manifest) -> Manifest:
        """Merge a patch into a job."""
        return await self._request("PATCH", f"{_jobs(namespace)}/{segment(name)}", KIND, patch, MERGE_PATCH)

    async def delete_job(self, namespace: str, name: str, uid: str | None = None) -> None:
        """Delete a job. Kubernetes then deletes the objects that the job owns.

        uid: raise ApiError (409) if the job of this name has another uid; None: delete any job of this name.
        """
        options: Manifest = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        options |= {} if uid is None else {"preconditions": {"uid": uid}}
        await self._request("DELETE", f"{_jobs(namespace)}/{segment(name)}", KIND, options)

    async def add_owner(self, manifest: Manifest, owner: Manifest) -> None:
        """Make an object belong to another one. Kubernetes deletes the object with the last of its owners.

        manifest: the object as it was read, with its present owners, or as it was made. owner: an ownerReference.
        Raises ApiError (409) if the object has changed since it was read.
        """
        metadata = manifest["metadata"]
        patch = {"metadata": {"ownerReferences": [*(metadata.get("ownerReferences") or []), owner]}}
        if version := metadata.get("resourceVersion"):
            patch["metadata"]["resourceVersion"] = version
        await self._request("PATCH", object_path(manifest), manifest["kind"], patch, MERGE_PATCH)

    async def list_pods(self, namespace: str, job: str) -> list[Manifest]:
        """List the pods of a job."""
        query = {"labelSelector": f"{LABEL_JOB}={job}"}
        return (await self._list(f"/api/v1/namespaces/{segment(namespace)}/pods", "Pod", query))[0]

    async def list_pod_metrics(self, namespace: str, job: str) -> list[Manifest] | None:
        """List what the pods of a job use now; None where the cluster has no metrics-server."""
        query = {"labelSelector": f"{LABEL_JOB}={job}"}
        path = f"/apis/metrics.k8s.io/v1beta1/namespaces/{segment(namespace)}/pods"
        try:
            return (await self._list(path, "PodMetrics", query))[0]
        except ApiError as error:
            if error.status in (404, 503):
                return None
            raise

    async def list_events(self, namespace: str) -> list[Manifest]:
        """List all events of a namespace."""
        return (await self._list(f"/api/v1/namespaces/{segment(namespace)}/events", "Event", {}))[0]

    async def pod_log(
        self,
        namespace: str,
        pod: str,
        container: str,
        *,
        follow: bool = False,
        tail: int | None = None,
        since: str | None = None,
    ) -> AsyncIterator[str]:
        """Yield lines of a container, each after the kubelet's timestamp. since: RFC 3339 with whole seconds."""
        query = {"container": container, "timestamps": "true"}
        query |= {"follow": "true"} if follow else {}
        query |= {} if tail is None else {"tailLines": str(tail)}
        query |= {} if since is None else {"sinceTime": since}
        path = f"/api/v1/namespaces/{segment(namespace)}/pods/{segment(pod)}/log"
        async for line in self._lines(path, "Pod", query, _LOG_TIMEOUT):
            yield line.decode(errors="replace")

    async def secret(self, namespace: str, name: str) -> dict[str, str]:
        """Read the data of a Secret."""
        path = f"/api/v1/namespaces/{segment(namespace)}/secrets/{segment(name)}"
        data = (await self._request("GET", path, "Secret")).get("data") or {}
        return {key: b64decode(value).decode(errors="replace") for key, value in data.items()}

    async def _list(self, path: str, kind: str, query: Mapping[str, str]) -> tuple[list[Manifest], str]:
        items: list[Manifest] = []
        more: Mapping[str, str] = {}
        while True:
            page = await self._request("GET", f"{path}?{urlencode({**query, 'limit': _PAGE, **more})}", kind)
            items += page.get("items") or []
            metadata = page.get("metadata") or {}
            if not metadata.get("continue"):
                return items, str(metadata.get("resourceVersion") or "")
            more = {"continue": metadata["continue"]}

    @asynccontextmanager
    async def _answer(self, *request: Any, **options: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request as the base class does. After a 401, fetch new credentials and try once more."""
        async with AsyncExitStack() as stack:
            try:
                answer = await stack.enter_async_context(super()._answer(*request, **options))
            except ApiError as error:
                if error.status != 401:
                    raise
                await self._renew()
                answer = await stack.enter_async_context(super()._answer(*request, **options))
            yield answer


async def connect(context: str | None = None, kubeconfig: str | None = None) -> UserApi:
    """Connect as kubectl does: with the kubeconfig (KUBECONFIG, ~/.kube/config), else as the pod's service account.

    Raises Unusable for a missing context or file, Unreachable without a kubeconfig and a service account.
    """
    settings = client.Configuration()
    namespace = await _load(settings, context, kubeconfig)

    async def renew() -> None:
        await _load(settings, context, kubeconfig)

    try:
        return UserApi(api_client(settings, kubernetes_client.USER), namespace, renew)
    except OSError as error:
        raise Unusable(f"the certificates of the kubeconfig can't be used: {error}") from None


async def _load(settings: client.Configuration, context: str | None, kubeconfig: str | None) -> str | None:
    """Set address and credentials in the settings; return the namespace that belongs to them."""
    files = kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
    if any(Path(file).expanduser().is_file() for file in files.split(os.pathsep)):
        try:
            loader = await config.load_kube_config(
                config_file=files, context=context, client_configuration=settings, persist_config=False
            )
        except (config.ConfigException, OSError, yaml.YAMLError, TypeError, ValueError) as error:
            raise Unusable(
                f"the kubeconfig {files} can't be used: {' '.join(str(error).split())}",
                "`kubectl config get-contexts` lists its contexts",
            ) from None
        namespace: str | None = loader.current_context["context"].get("namespace")
        return namespace
    if kubeconfig:
        raise Unusable(f"the kubeconfig {kubeconfig} does not exist")
    try:
        config.load_incluster_config(client_configuration=settings)
    except config.ConfigException:
        raise Unreachable(
            f"no cluster is configured: {files} does not exist, and this process does not run in a pod",
            "set KUBECONFIG or give --kubeconfig; `dtj run` needs no cluster",
        ) from None
    return own_namespace()


def _jobs(namespace: str | None) -> str:
    below = f"/namespaces/{segment(namespace)}" if namespace else ""
    return f"/apis/{GROUP}/{VERSION}{below}/{PLURAL}"
