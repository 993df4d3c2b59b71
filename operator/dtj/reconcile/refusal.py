"""Objects that the API server refuses, as opposed to errors that a repeated pass resolves."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dtj.api.identity import KIND
from dtj.api.job import Fault, Manifest
from dtj.api.reasons import Reason
from dtj.api.unreadable import AnyJob
from dtj.cluster.port import ApiError, Cluster
from dtj.reconcile.actions import CREATIONS, Action
from dtj.reconcile.retry import Tries
from dtj.reconcile.view import controller_uid

_INVALID = re.compile(r'[\w.]+ "[^"]*" is invalid: ')
_PASSES_WITHOUT_ACCOUNT, _ACCOUNT_SECONDS = 4, 2.0
"""The service account of a new namespace is created soon: within this many passes, so many seconds apart at least."""
_WORDS_SECONDS = 3600.0
_CONFLICT, _TOO_LARGE, _SERVER_ERROR = 409, 413, 500


class Refused(Exception):
    """The API server refuses an object of the plan. The refusal may end, for example that of a quota."""

    def __init__(self, error: ApiError, manifest: Manifest) -> None:
        super().__init__(str(error))
        self.error = error
        name = manifest["metadata"]["name"]
        self.what = f"{manifest['kind']} {name}"
        # The beginning of the message repeats `what`: `Pod "x" is invalid: `, `pods "x" is forbidden: `.
        self.why = re.sub(rf'^\w+ "{re.escape(name)}" is (invalid|forbidden): ', "", error.message)

    @property
    def invalid(self) -> bool:
        """Whether the API server's own validation finds the object invalid, so that no later try can succeed.

        Policies and webhooks of the cluster answer 422 too, in other words: `pods "x" is forbidden: …`.
        """
        if self.error.status == 422:
            return _INVALID.match(self.error.message) is not None
        return self.error.status == 400 and self.error.reason == "BadRequest"

    @property
    def obstacle(self) -> tuple[str, str]:
        """Reason and message for the status."""
        message = f"{self.what} can't be made: {self.why}"
        if self.error.status in (403, 422):
            # Only the message distinguishes a quota from other refusals.
            over_quota = "exceeded quota" in self.error.message
            return (Reason.QUOTA_EXCEEDED if over_quota else Reason.FORBIDDEN), message
        return self.error.reason if self.error.status else Reason.API_UNREACHABLE, message


class Unmade(ApiError):
    """The API server could not create an object of the plan, and the pass is repeated.

    When the repeated pass fails in the same way, the error counts as a refusal: a webhook of the cluster, for
    example, may not answer for a long time.
    """

    def __init__(self, error: ApiError, manifest: Manifest, after: float | None = None) -> None:
        super().__init__(error.status, error.reason, error.message, error.retry_after or after)
        what = f"{manifest['kind']} {manifest['metadata']['name']}"
        reason = Reason.FORBIDDEN if error.status == 403 else Reason.API_SERVER_ERROR
        self.obstacle = reason, f"{what} can't be made, the API server answers {error}"


@dataclass
class Refusals:
    """The objects of one job that the API server refused in the last try, and when the next try is due."""

    tries: Tries
    elapsed: Callable[[], float]
    """Returns seconds of a monotonic clock."""
    obstacle: tuple[str, str] | None = None
    """Reason and message for the status."""
    invalid: tuple[Fault, ...] = ()
    """Faults of an object of the plan that the API server calls invalid."""
    _unmade: int = 0
    _unmade_before: int = 0
    _worded_at: float = 0.0
    """When the message of the obstacle was new."""

    def without(self, todo: Sequence[Action], tried: object) -> list[Action]:
        """Return the actions without creations, while a try of the same was refused and the next is not due.

        tried: the generation of the job, and the attempt.
        """
        self.tries.of(tried)
        if not self.tries.due_in():
            return list(todo)
        return [action for action in todo if not isinstance(action, CREATIONS)]

    def begin(self) -> tuple[tuple[str, str] | None, tuple[Fault, ...]]:
        """Reset the refusals at the beginning of a try. Returns the obstacle and the faults of the last one."""
        before = self.obstacle, self.invalid
        self.obstacle, self.invalid = None, ()
        self._unmade, self._unmade_before = 0, self._unmade
        return before

    def refused(self, refused: Refused, before: tuple[str, str] | None) -> None:
        """Note a refusal. before: the obstacle of the last try.

        Some refusals have other words each time, such as the figures of a quota or the number of a request: the
        status shows new words of the same reason seldom.
        """
        self.tries.fail()
        if refused.invalid:
            self.invalid = (Fault(refused.what, refused.why),)
            return
        self.obstacle = refused.obstacle
        if before and before[0] == self.obstacle[0] and self.elapsed() - self._worded_at < _WORDS_SECONDS:
            self.obstacle = before
        elif before != self.obstacle:
            self._worded_at = self.elapsed()

    def unmade(self, error: Unmade) -> None:
        """Note that the API server could not create an object.

        What lasts for some passes is an obstacle: the status shows it, and the tries become as rare as others.
        """
        self._unmade = self._unmade_before + 1
        if self._unmade >= (_PASSES_WITHOUT_ACCOUNT if error.status == 403 else 2):
            self.obstacle = error.obstacle
            self.tries.fail()


def refuse(error: ApiError, manifest: Manifest) -> None:
    """Raise the exception for an error of a creation: Refused for a refusal, Unmade or `error` to repeat the pass.

    Return when the namespace is being deleted.
    """
    if error.status == 403 and "not found" in error.message and "serviceaccount" in error.message:
        raise Unmade(error, manifest, _ACCOUNT_SECONDS) from None
    if error.status == 403 and "being terminated" in error.message:
        return  # The job is deleted with its namespace.
    if error.status in (400, 403, 422):
        raise Refused(error, manifest) from None
    if error.status == _TOO_LARGE or error.status >= _SERVER_ERROR:
        raise Unmade(error, manifest) from None
    raise error


async def make(cluster: Cluster, job: AnyJob, manifest: Manifest) -> Manifest | None:
    """Create an object of the job. Returns the object, or None when the job has the object already.

    Raises Refused when the API server refuses the object, and ApiError when the caller must repeat the pass.
    """
    try:
        return await cluster.create(manifest)
    except ApiError as error:
        if error.status == 409 and error.reason == "AlreadyExists":
            existing = await cluster.get(manifest)
            if existing is None or controller_uid(existing) == job.uid:
                return None  # An earlier pass created the object, or it was just deleted. The cache will show which.
            raise Refused(ApiError(409, Reason.NAME_TAKEN, holder(existing, job)), manifest) from None
        refuse(error, manifest)
        return None


async def create_own(cluster: Cluster, manifest: Manifest) -> None:
    """Create an object whose name contains the job's uid, unless the object exists. Only this job has such a name.

    Raises the exceptions of `make`.
    """
    try:
        await cluster.create(manifest)
    except ApiError as error:
        if error.status != _CONFLICT or error.reason != "AlreadyExists":
            refuse(error, manifest)


def holder(existing: Manifest, job: AnyJob) -> str:
    """Describe the existing object that has a name that the job needs."""
    metadata = existing["metadata"]
    owners = metadata.get("ownerReferences") or []
    if any(owner.get("kind") == KIND and owner.get("name") == job.name for owner in owners):
        return "the one of an earlier job of this name still exists"
    if metadata.get("deletionTimestamp"):
        return "another one of this name is still being deleted"
    return "another one of this name exists, which is not the job's"
