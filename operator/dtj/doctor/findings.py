"""The data that the checks evaluate, and the result of a check. `examine` reads the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from dtj.api.identity import GROUP, PLURAL
from dtj.api.job import Manifest


@dataclass(frozen=True)
class Unread:
    """Data that the user may not read, with the API server's reason."""

    reason: str


@dataclass(frozen=True)
class Permission:
    """A request that the `dtj` command makes with the user's rights."""

    verb: str
    resource: str
    group: str
    purpose: str
    """The command that needs the permission."""
    required: bool = True
    """Whether every job needs the permission."""

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}"


CREATE_JOBS = Permission("create", PLURAL, GROUP, "`dtj submit`")
PERMISSIONS = (
    CREATE_JOBS,
    *(Permission(verb, PLURAL, GROUP, "`dtj submit`") for verb in ("get", "list", "watch")),
    Permission("delete", PLURAL, GROUP, "`dtj delete`", required=False),
    Permission("patch", PLURAL, GROUP, "`dtj suspend`, `dtj resume` and `dtj scale`", required=False),
    *(
        Permission(verb, "configmaps", "", "`dtj submit FOLDER`", required=False)
        for verb in ("get", "create", "patch", "delete")
    ),
    Permission("list", "pods", "", "`dtj status`", required=False),
    Permission("get", "pods", "", "`dtj logs`", required=False),
    Permission("get", "pods/log", "", "`dtj logs`", required=False),
    Permission("list", "events", "", "`dtj status`", required=False),
    Permission("get", "secrets", "", "reading a job's bucket with its Secret", required=False),
)


@dataclass(frozen=True)
class Taken:
    """The API server accepted an object in a dry run."""


@dataclass(frozen=True)
class ClusterFindings:
    """The data of the cluster and of the installation of dtj that the user may read."""

    server: str
    version: Manifest
    """The version of the API server: major, minor, gitVersion."""
    namespace: str
    served: bool
    """Whether the API server serves DistributedTrainingJobs."""
    crd: Manifest | Unread | None
    operators: Sequence[Manifest] | Unread
    """Deployments of the operator in all namespaces."""
    allowed: Mapping[Permission, bool]
    """The permissions of the user in the namespace."""
    faulty_job: Taken | str | None = None
    """The answer of the API server to a job with a fault: Taken, or the message of the refusal; None: not tested."""
    left_code: Sequence[str] | Unread = ()
    """ConfigMaps of the namespace with code that no job uses."""


@dataclass(frozen=True)
class SecretKeys:
    """A Secret without its values."""

    keys: frozenset[str]
    padded: frozenset[str]
    """Keys whose value begins or ends with white space, for example after `echo secret | base64`."""


@dataclass(frozen=True)
class JobFindings:
    """The data of the namespace and of the nodes on which a job depends."""

    nodes: Sequence[Manifest] | Unread
    pods: Sequence[Manifest] | Unread
    """Scheduled pods of all namespaces."""
    quotas: Sequence[Manifest] | Unread
    secret: SecretKeys | Unread | None
    """The Secret that the job names; None if the Secret does not exist."""


class Verdict(StrEnum):
    """The verdict of a check."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True)
class Check:
    """The result of one check: a message, and a remedy if there is one."""

    name: str
    verdict: Verdict
    message: str
    remedy: str | None = None


def ok(name: str, message: str) -> Check:
    """Return the result of a check that found no fault."""
    return Check(name, Verdict.OK, message)


def warning(name: str, message: str, remedy: str | None = None) -> Check:
    """Return the result of a check that found a risk, or that was not possible."""
    return Check(name, Verdict.WARNING, message, remedy)


def failed(name: str, message: str, remedy: str | None = None) -> Check:
    """Return the result of a check that found why a job cannot run."""
    return Check(name, Verdict.FAILED, message, remedy)
