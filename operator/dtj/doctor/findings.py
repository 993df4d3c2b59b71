"""What was found in a cluster, as plain data; the checks judge it without asking the cluster again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dtj.api.identity import GROUP, PLURAL
from dtj.api.job import Manifest


@dataclass(frozen=True)
class Unread:
    """What could not be read, and the API server's reason."""

    reason: str


@dataclass(frozen=True)
class Permission:
    """Something that dtj does in a person's name."""

    verb: str
    resource: str
    group: str
    purpose: str
    """What needs it."""
    required: bool = True
    """Whether no job can be run without."""

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}"


PERMISSIONS = (
    *(Permission(verb, PLURAL, GROUP, "`dtj submit`") for verb in ("create", "get", "list", "watch")),
    Permission("delete", PLURAL, GROUP, "`dtj delete`", required=False),
    Permission("patch", PLURAL, GROUP, "`dtj suspend`, `dtj resume` and `dtj scale`", required=False),
    Permission("list", "pods", "", "`dtj describe`", required=False),
    Permission("get", "pods", "", "`dtj logs`", required=False),
    Permission("get", "pods/log", "", "`dtj logs`", required=False),
    Permission("list", "events", "", "`dtj describe`", required=False),
    Permission("get", "secrets", "", "reading a job's bucket with its Secret", required=False),
)


@dataclass(frozen=True)
class ClusterFindings:
    """The cluster and what of dtj is in it, as one person sees it."""

    server: str
    version: Manifest
    """Of the API server: major, minor, gitVersion."""
    namespace: str
    served: bool
    """Whether it knows the resource."""
    crd: Manifest | Unread | None
    operators: Sequence[Manifest] | Unread
    """Deployments of the operator in all namespaces."""
    allowed: Mapping[Permission, bool]
    """What this person may do in the namespace."""


@dataclass(frozen=True)
class SecretKeys:
    """A Secret without its values."""

    keys: frozenset[str]
    padded: frozenset[str]
    """Those whose value begins or ends with white space, as `echo secret | base64` makes it."""


@dataclass(frozen=True)
class JobFindings:
    """What a job meets in its namespace and on the nodes."""

    nodes: Sequence[Manifest] | Unread
    pods: Sequence[Manifest] | Unread
    """Of all namespaces."""
    quotas: Sequence[Manifest] | Unread
    secret: SecretKeys | Unread | None
    """The one that the job names; None where it is not there."""
