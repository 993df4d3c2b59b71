"""Objects that the API server refuses to create, in contrast to errors that the next pass resolves."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from zlib import crc32

from dtj.api.identity import KIND
from dtj.api.job import Fault, Manifest
from dtj.api.reasons import Reason
from dtj.api.stored_job import AnyJob
from dtj.cluster.interface import ApiError, Cluster
from dtj.reconcile.actions import CREATIONS, Action
from dtj.reconcile.view import controller_uid

# The operator repeats a refused request after 10 s, then after longer and longer pauses of up to 5 to 7 minutes.

FIRST_SECONDS, LONGEST_SECONDS = 10.0, 300.0
_GROWTH = 4.0
_MOST_GROWTHS = 8
_JITTER = 0.4
_ROUNDING_SECONDS = 0.01


def pause(failed: int, uid: str, growth: float = _GROWTH) -> float:
    """Return the seconds until the next try. failed: the number of tries in a row that failed.

    Jobs that are refused at the same time, for example by one quota, are not all tried at the same time: the uid of
    the job lengthens each of its pauses by a share of up to 0.4. So an hour costs a job at most 13 tries.
    """
    share = 1 + _JITTER * crc32(f"{uid} {failed}".encode()) / 2**32
    return share * min(LONGEST_SECONDS, FIRST_SECONDS * growth ** min(failed - 1, _MOST_GROWTHS))


class Tries:
    """The failed tries of a request for one job, and the pause before the next try."""

    def __init__(self, uid: str, elapsed: Callable[[], float], growth: float = _GROWTH) -> None:
        """elapsed: returns seconds of a monotonic clock. growth: the factor from a pause to the next."""
        self._uid = uid
        self._elapsed = elapsed
        self._growth = growth
        self._what: object = None
        self._next = 0.0
        self.failed = 0
        """The number of tries in a row that failed."""

    def fail(self) -> None:
        """Note that a try failed just now."""
        self.failed += 1
        self._next = self._elapsed() + pause(self.failed, self._uid, self._growth)

    def of(self, what: object) -> None:
        """Reset the count if `what` is new: the refusal of an earlier request says nothing about another request."""
        if self._what != what:
            self._what = what
            self.reset()

    def reset(self) -> None:
        """Forget the failed tries: a try succeeded, or the next try is of another request."""
        self.failed, self._next = 0, 0.0

    def due_in(self) -> float:
        """Return the seconds until the next try is due; 0: now."""
        left = self._next - self._elapsed()
        return left if left > _ROUNDING_SECONDS else 0.0


_INVALID = re.compile(r'[\w.]+ "[^"]*" is invalid: ')
_PASSES_WITHOUT_ACCOUNT, _ACCOUNT_SECONDS = 4, 2.0
"""In a new namespace, the default service account may not exist yet, and pods are refused. This many passes, at least
this many seconds apart, try again before the refusal counts."""
_WORDS_SECONDS = 3600.0
_CONFLICT, _TOO_LARGE, _SERVER_ERROR = 409, 413, 500


class CreationRefused(Exception):
    """The API server refuses an object of the plan. The refusal may end, for example that of a quota."""

    def __init__(self, error: ApiError, manifest: Manifest) -> None:
        super().__init__(str(error))
        self.error = error
        name = manifest["metadata"]["name"]
        self.what = f"{manifest['kind']} {name}"
        # Remove the beginning of the message, such as `Pod "x" is invalid: `, which only repeats `what`.
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
            # The API server refuses a pod above a quota with 403, too. Only the message distinguishes this case.
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
        self.obstacle = reason, f"{what} can't be made: the API server answers {error}"


@dataclass
class Refusals:
    """The objects of one job that the API server refused in the last try, and when the next try is due."""

    tries: Tries
    elapsed: Callable[[], float]
    """Returns seconds of a monotonic clock."""
    obstacle: tuple[str, str] | None = None
    """Reason and message of the last refusal, for the status; None if nothing is refused."""
    invalid: tuple[Fault, ...] = ()
    """Faults of an object of the plan that the API server calls invalid."""
    _unmade: int = 0
    _unmade_before: int = 0
    _worded_at: float = 0.0
    """When the message of the obstacle last changed, in seconds of the clock."""

    def without(self, todo: Sequence[Action], tried: object) -> list[Action]:
        """Return the actions. Leave out creations while the last try was refused and the next try is not due.

        tried: the generation of the job, and the attempt.
        """
        self.tries.of(tried)
        if not self.tries.due_in():
            return list(todo)
        return [action for action in todo if not isinstance(action, CREATIONS)]

    def begin(self) -> tuple[tuple[str, str] | None, tuple[Fault, ...]]:
        """Reset the refusals at the beginning of a try. Returns the obstacle and the faults of the last try."""
        before = self.obstacle, self.invalid
        self.obstacle, self.invalid = None, ()
        self._unmade, self._unmade_before = 0, self._unmade
        return before

    def refused(self, refused: CreationRefused, before: tuple[str, str] | None) -> None:
        """Note a refusal. before: the obstacle of the last try.

        Some refusals have another message each time, for example with the figures of a quota or the number of a
        request. While the reason stays the same, the status shows a new message once an hour at most.
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

        An error that lasts for several passes becomes an obstacle: the status shows the error, and the pause before
        the next try grows as after a refusal.
        """
        self._unmade = self._unmade_before + 1
        if self._unmade >= (_PASSES_WITHOUT_ACCOUNT if error.status == 403 else 2):
            self.obstacle = error.obstacle
            self.tries.fail()


def refuse(error: ApiError, manifest: Manifest) -> None:
    """Raise the exception for a failed creation: CreationRefused, or Unmade or `error` to repeat the pass.

    Return when the namespace is being deleted.
    """
    if error.status == 403 and "not found" in error.message and "serviceaccount" in error.message:
        raise Unmade(error, manifest, _ACCOUNT_SECONDS) from None
    if error.status == 403 and "being terminated" in error.message:
        return  # The job is deleted with its namespace.
    if error.status in (400, 403, 422):
        raise CreationRefused(error, manifest) from None
    if error.status == _TOO_LARGE or error.status >= _SERVER_ERROR:
        raise Unmade(error, manifest) from None
    raise error


async def make(cluster: Cluster, job: AnyJob, manifest: Manifest) -> Manifest | None:
    """Create an object of the job. Returns the object, or None when the job has the object already.

    Raises CreationRefused when the API server refuses the object, and ApiError when the caller must repeat the pass.
    """
    try:
        return await cluster.create(manifest)
    except ApiError as error:
        if error.status == 409 and error.reason == "AlreadyExists":
            existing = await cluster.get(manifest)
            if existing is None or controller_uid(existing) == job.uid:
                return None  # An earlier pass created the object, or a user just deleted it. The cache will show it.
            raise CreationRefused(ApiError(409, Reason.NAME_TAKEN, holder(existing, job)), manifest) from None
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
        return "the object of an earlier job of this name still exists"
    if metadata.get("deletionTimestamp"):
        return "another object of this name is still being deleted"
    return "another object of this name exists, and the job does not own it"
