"""What the API server does not take, as opposed to trouble that a repeated pass gets over."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dtj.api.identity import KIND
from dtj.api.job import Fault, Manifest
from dtj.api.reasons import Reason
from dtj.api.unreadable import AnyJob
from dtj.cluster.port import ApiError, Cluster
from dtj.reconcile.view import controller_uid

_CONFLICT, _TOO_LARGE, _SERVER_ERROR = 409, 413, 500


class Refused(Exception):
    """The API server does not take an object of the plan, for now or for ever."""

    def __init__(self, error: ApiError, manifest: Manifest) -> None:
        super().__init__(str(error))
        self.error = error
        name = manifest["metadata"]["name"]
        self.what = f"{manifest['kind']} {name}"
        # The server begins with what `what` says already: `Pod "x" is invalid: `, `pods "x" is forbidden: `.
        self.why = re.sub(rf'^\w+ "{re.escape(name)}" is (invalid|forbidden): ', "", error.message)

    @property
    def invalid(self) -> bool:
        """Whether the object itself is wrong."""
        return self.error.status == 422 or (self.error.status == 400 and self.error.reason == "BadRequest")

    @property
    def obstacle(self) -> tuple[str, str]:
        """Reason and message for the status."""
        message = f"{self.what} can't be made: {self.why}"
        if self.error.status == 403:
            # Only the API server's message tells its quotas from its other refusals.
            over_quota = "exceeded quota" in self.error.message
            return (Reason.QUOTA_EXCEEDED if over_quota else Reason.FORBIDDEN), message
        return self.error.reason if self.error.status else Reason.API_UNREACHABLE, message


class Unmade(ApiError):
    """The API server could not make an object of the plan. The pass is repeated; when it meets the same again, the
    status tells: a webhook of the cluster that does not answer may stay so for ever.
    """

    def __init__(self, error: ApiError, manifest: Manifest) -> None:
        super().__init__(error.status, error.reason, error.message, error.retry_after)
        what = f"{manifest['kind']} {manifest['metadata']['name']}"
        self.obstacle = Reason.API_SERVER_ERROR, f"{what} can't be made, the API server answers {error}"


@dataclass
class Refusals:
    """What the API server does not take of one job, as the last pass met it."""

    obstacle: tuple[str, str] | None = None
    """Reason and message for the status."""
    invalid: tuple[Fault, ...] = ()
    """What is wrong with an object of the plan."""
    _unmade: bool = False
    _unmade_before: bool = False

    def begin(self) -> tuple[tuple[str, str] | None, tuple[Fault, ...]]:
        """Forget the last pass. Returns its obstacle and what was invalid."""
        before = self.obstacle, self.invalid
        self.obstacle, self.invalid = None, ()
        self._unmade, self._unmade_before = False, self._unmade
        return before

    def refused(self, refused: Refused) -> None:
        """Note a refusal."""
        if refused.invalid:
            self.invalid = (Fault(refused.what, refused.why),)
        else:
            self.obstacle = refused.obstacle

    def unmade(self, error: Unmade) -> None:
        """Note that the API server could not make an object, for the status only when it is so again."""
        self._unmade = True
        self.obstacle = error.obstacle if self._unmade_before else None


def refuse(error: ApiError, manifest: Manifest) -> None:
    """Tell a refusal, which the status shows, from trouble that a repeated pass gets over."""
    if error.status == 403 and "not found" in error.message and "serviceaccount" in error.message:
        raise error  # a new namespace gets its service account in a moment
    if error.status == 403 and "being terminated" in error.message:
        return  # the namespace goes, and the job with it
    if error.status in (400, 403, 422):
        raise Refused(error, manifest) from None
    if error.status == _TOO_LARGE or error.status >= _SERVER_ERROR:
        raise Unmade(error, manifest) from None
    raise error


async def make(cluster: Cluster, job: AnyJob, manifest: Manifest) -> Manifest | None:
    """Create an object of the job; it, where it was not there. Raises Refused, or ApiError for a repeated pass."""
    try:
        return await cluster.create(manifest)
    except ApiError as error:
        if error.status == 409 and error.reason == "AlreadyExists":
            there = await cluster.get(manifest)
            if there is None or controller_uid(there) == job.uid:
                return None  # made by a pass before, or gone in between: the cache will tell
            raise Refused(ApiError(409, Reason.NAME_TAKEN, holder(there, job)), manifest) from None
        refuse(error, manifest)
        return None


async def create_own(cluster: Cluster, manifest: Manifest) -> None:
    """Create an object whose name carries the job's uid, unless it exists: then it is this job's.

    Raises as `make`.
    """
    try:
        await cluster.create(manifest)
    except ApiError as error:
        if error.status != _CONFLICT or error.reason != "AlreadyExists":
            refuse(error, manifest)


def holder(there: Manifest, job: AnyJob) -> str:
    """Who has a name that the job needs."""
    metadata = there["metadata"]
    owners = metadata.get("ownerReferences") or []
    if any(owner.get("kind") == KIND and owner.get("name") == job.name for owner in owners):
        return "the one of an earlier job of this name is still there"
    if metadata.get("deletionTimestamp"):
        return "another one of this name is still being deleted"
    return "another one of this name is there, which is not the job's"
