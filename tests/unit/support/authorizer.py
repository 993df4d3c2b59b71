"""RBAC for one user, as the API server checks it, with a record of the user's requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from aiohttp import web

from dtj.api.identity import GROUP, KIND, PLURAL
from dtj.api.job import Manifest
from tests.unit.support.api_answers import refused
from tests.unit.support.http_cluster import Answer

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass(frozen=True, order=True)
class Right:
    """One verb on one resource, which a rule allows or a request needs."""

    verb: str
    resource: str
    """The resource with its subresource, for example distributedtrainingjobs/status."""
    group: str
    namespace: str = ""
    """Empty: every namespace."""
    name: str = ""
    """The object's name; empty: any object. A rule with a name does not allow requests without one, as create."""

    def allows(self, asked: Right) -> bool:
        """Return whether the rule allows a request."""
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
    """Return the right that a request needs; None for discovery, which all authenticated users may read."""
    words = request.path.strip("/").split("/")
    root = 3 if words[0] == "apis" else 2
    if words[0] not in ("api", "apis") or len(words) <= root:
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
    """Return further rights that a request needs: for each owner whose deletion waits for the new object, the right
    to set that owner's finalizers, as the admission plugin OwnerReferencesPermissionEnforcement of OpenShift checks.
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
    """Refuses requests that no right allows."""

    rights: frozenset[Right]
    denied: frozenset[Right] = frozenset()
    """Requests that are refused whatever the rights, for example in one namespace."""
    asked: set[Right] = field(default_factory=set)
    forbidden: set[Right] = field(default_factory=set)

    async def __call__(self, request: web.Request, answer: Answer) -> web.StreamResponse:
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
        """Return the rights that no request needed."""
        return {
            right
            for right in self.rights
            if not any(
                right.allows(asked) and not any(own.allows(asked) for own in self.rights - {right})
                for asked in self.asked
            )
        }
