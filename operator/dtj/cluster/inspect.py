"""The requests of `dtj doctor`, including those for its probe pod."""

from __future__ import annotations

from dtj.api.identity import GROUP, LABEL_CODE, PLURAL
from dtj.api.job import Manifest
from dtj.cluster.api import METADATA_ONLY
from dtj.cluster.interface import ApiError, Selection
from dtj.cluster.paths import collection_path, segment
from dtj.cluster.user_api import UserApi

_OPERATORS = "/apis/apps/v1/deployments"
_OPERATOR_LABEL = "app.kubernetes.io/name=dtj-operator"
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class Inspector(UserApi):
    """Reads objects that belong to no job. Every method raises ApiError."""

    @classmethod
    def of(cls, api: UserApi) -> Inspector:
        """Share the connection of another UserApi. Closing either object closes the connection."""
        return cls(api._api, api.namespace, api._renew)  # noqa: SLF001 - its own base

    async def version(self) -> Manifest:
        """Return the API server's version: major, minor, gitVersion."""
        return await self._request("GET", "/version", "Version")

    async def crd(self) -> Manifest | None:
        """Return the CustomResourceDefinition of jobs; None when it does not exist."""
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{PLURAL}.{GROUP}"
        try:
            return await self._request("GET", path, "CustomResourceDefinition")
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def operators(self) -> list[Manifest]:
        """List the operator's Deployments in all namespaces."""
        return (await self._list(_OPERATORS, "Deployment", {"labelSelector": _OPERATOR_LABEL}))[0]

    async def would_create(self, manifest: Manifest) -> None:
        """Send an object as a dry run, through all webhooks. The API server does not store the object."""
        await self._request("POST", f"{collection_path(manifest)}?dryRun=All", manifest["kind"], manifest)

    async def allows(self, namespace: str, verb: str, resource: str, group: str) -> bool:
        """Return whether this user may use a verb on a resource, such as `pods` or `pods/log`, in the namespace."""
        name, _, subresource = resource.partition("/")
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {
                "resourceAttributes": {
                    "namespace": namespace,
                    "verb": verb,
                    "group": group,
                    "resource": name,
                    "subresource": subresource,
                }
            },
        }
        answer = await self._request("POST", _REVIEWS, "SelfSubjectAccessReview", review)
        return bool((answer.get("status") or {}).get("allowed"))

    async def nodes(self) -> list[Manifest]:
        """List all nodes."""
        return (await self._list("/api/v1/nodes", "Node", {}))[0]

    async def scheduled_pods(self) -> list[Manifest]:
        """List the pods of all namespaces that have not ended."""
        query = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
        return (await self._list("/api/v1/pods", "Pod", query))[0]

    async def quotas(self, namespace: str) -> list[Manifest]:
        """List the ResourceQuotas of a namespace."""
        return (
            await self._list(f"/api/v1/namespaces/{segment(namespace)}/resourcequotas", "ResourceQuota", {})
        )[0]

    async def config_maps_with_code(self, namespace: str) -> list[Manifest]:
        """List the metadata of the ConfigMaps that have the archive of a job."""
        selection, found = Selection("v1", "ConfigMap", LABEL_CODE, namespace), list[Manifest]()
        async for items, _ in self.pages(selection, METADATA_ONLY):
            found += [{"metadata": item["metadata"]} for item in items]
        return found

    async def remove_pod(self, pod: Manifest) -> None:
        """Delete a pod without a grace period. A pod that does not exist is not an error."""
        path = f"/api/v1/namespaces/{segment(pod['metadata']['namespace'])}/pods/{segment(pod['metadata']['name'])}"
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
        try:
            await self._request("DELETE", path, "Pod", options)
        except ApiError as error:
            if error.status != 404:
                raise
