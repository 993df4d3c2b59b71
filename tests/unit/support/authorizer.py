"""RBAC as the API server does it, for one user, and a book of what that user asked for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field

from aiohttp import web

from dtj.api.identity import GROUP, KIND, PLURAL
from dtj.api.job import Manifest
from tests.unit.support.api_answers import refused

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass(frozen=True, order=True)
class Right:
    """What a rule allows, or a request needs: one verb on one resource."""

    verb: str
    resource: str
    """With its subresource, as distributedtrainingjobs/status."""
    group: str
    namespace: str = ""
    """Empty: in every one."""
    name: str = ""
    """Of the object; empty: of any. A rule's name allows no request that has none, as one that creates."""

    def allows(self, asked: Right) -> bool:
        """Whether it lets a request through."""
        same = (self.verb, self.resource, self.group) == (asked.verb, asked.resource, asked.group)
        return same and self.namespace in ("", asked.namespace) and self.name in ("", asked.name)

    @property
    def short(self) -> tuple[str, str]:
        """Resource and verb."""
        return self.resource, self.verb


def rights_of(account: str, objects: Iterable[Manifest]) -> Iterator[Right]:
    """What a ServiceAccount, `namespace/name`, is given by these roles and bindings, each verb for itself."""
    there = list(objects)
    roles = {
        (made["kind"], made["metadata"].get("namespace"), made["metadata"]["name"]): made["rules"]
        for made in there
        if made["kind"] in ("Role", "ClusterRole")
    }
    for binding in there:
        if not binding["kind"].endswith("RoleBinding"):
            continue
        if account not in [f"{one['namespace']}/{one['name']}" for one in binding["subjects"]]:
            continue
        namespace, ref = binding["metadata"].get("namespace"), binding["roleRef"]
        for rule in roles[ref["kind"], namespace if ref["kind"] == "Role" else None, ref["name"]]:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    for verb in rule["verbs"]:
                        for name in rule.get("resourceNames", [""]):
                            yield Right(verb, resource, group, namespace or "", name)


def asked_by(request: web.Request) -> Right | None:
    """What a request needs; None for discovery, which Kubernetes allows to everyone that it knows."""
    words = request.path.strip("/").split("/")
    root = 3 if words[0] == "apis" else 2
    if len(words) <= root:
        return None
    group, rest = (words[1] if root == 3 else ""), words[root:]
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    name = rest[1] if len(rest) > 1 else ""
    verb = _VERBS.get(request.method, "get" if name else "list")
    if verb == "list" and request.query.get("watch"):
        verb = "watch"
    if verb == "delete" and not name:
        verb = "deletecollection"
    return Right(verb, "/".join([rest[0], *rest[2:]]), group, namespace, name)


async def owners_of(request: web.Request) -> list[Right]:
    """What a request needs besides: for each job whose deletion is to wait for the new object, the right to set that
    job's finalizers. By the admission plugin OwnerReferencesPermissionEnforcement, as OpenShift has it.
    """
    if request.method != "POST":
        return []
    metadata = (await request.json()).get("metadata") or {}
    return [
        Right("update", f"{PLURAL}/finalizers", GROUP, metadata["namespace"], owner["name"])
        for owner in metadata.get("ownerReferences") or []
        if owner["kind"] == KIND and owner.get("blockOwnerDeletion")
    ]


@dataclass
class Authorizer:
    """Answers in the server's place what is not allowed."""

    rights: frozenset[Right]
    denied: frozenset[Right] = frozenset()
    """What no right allows, in one namespace for instance."""
    asked: set[Right] = field(default_factory=set)
    forbidden: set[Right] = field(default_factory=set)

    async def __call__(
        self, request: web.Request, answer: Callable[[], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        right = asked_by(request)
        if right is None:
            return await answer()
        for needed in (right, *await owners_of(request)):
            self.asked.add(needed)
            denied = any(one.allows(needed) for one in self.denied)
            if denied or not any(own.allows(needed) for own in self.rights):
                self.forbidden.add(needed)
                return refused(403, "Forbidden", f"{needed.resource} is forbidden: cannot {needed.verb}")
        return await answer()

    def unused(self) -> set[Right]:
        """Rights without each of which all that was asked would have been allowed."""
        return {
            right
            for right in self.rights
            if not any(
                right.allows(asked) and not any(own.allows(asked) for own in self.rights - {right})
                for asked in self.asked
            )
        }
