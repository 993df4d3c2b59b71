"""The operator's memory of one job from one pass to the next: requests sent and refused, events, and the job as read.

`reconciler` holds one memory for each job. A pass with an empty memory comes to the same decisions, but sends more
requests.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from secrets import token_hex
from typing import Any, TypeVar

from dtj.api.job import NO_STATUS, Fault, Job, Manifest, read_status
from dtj.api.names import ssh_secret_name
from dtj.api.stored_job import NOT_KEPT, AnyJob, read_stored_job
from dtj.cluster.interface import ApiError, Cluster
from dtj.plan.horovod import ssh_secret
from dtj.reconcile.actions import (
    Action,
    AwaitEarlier,
    Create,
    CreateOwn,
    CreatePod,
    CreateSshSecret,
    DeletePod,
)
from dtj.reconcile.boot_clock import BootClock
from dtj.reconcile.kept_job import KeptJob
from dtj.reconcile.refusal import CreationRefused, Refusals, Tries, Unmade, create_own, refuse
from dtj.reconcile.stored_status import StoredStatus
from dtj.reconcile.view import OwnedPod
from dtj.status.events import Happening, event
from dtj.status.pods import PodSet
from dtj.status.record import Refusal
from dtj.status.times import written_time

# Expectations: a pass does not repeat a request whose effect the cache may not show yet.

# An expectation expires after this many seconds. If the cache is further behind, the operator repeats the request,
# which then changes nothing. An object that was deleted before the cache showed it is created again after this time.
_SECONDS = 3.0
_UNSEEN_SECONDS = 3600.0
"""As _SECONDS, for objects that the operator has no permission to read. The operator may repeat their creation after
this time, in case a user has deleted them."""
_UNSEEN = (CreateOwn, CreateSshSecret)
_Key = tuple[str, ...]


class Expectations:
    """The requests that the API server has accepted for one job and whose effect the cache has not shown yet."""

    def __init__(self, elapsed: Callable[[], float]) -> None:
        """elapsed: returns seconds of a monotonic clock."""
        self._elapsed = elapsed
        self._until: dict[_Key, float] = {}
        self._attempt = 0

    def add(self, action: Action) -> None:
        """Expect the effect of an action that was carried out."""
        key = _key(action)
        if key is not None:
            unseen = isinstance(action, _UNSEEN)
            self._until[key] = self._elapsed() + (_UNSEEN_SECONDS if unseen else _SECONDS)

    def without(self, todo: Sequence[Action], attempt: int) -> list[Action]:
        """Return the actions that are not expected. Drop expectations that `todo` lacks: the cache shows them.

        attempt: the attempt for which the actions are. A new attempt creates all its objects again.
        """
        if attempt != self._attempt:
            self._attempt, self._until = attempt, {}
        wanted, now = {_key(action) for action in todo}, self._elapsed()
        self._until = {key: time for key, time in self._until.items() if key in wanted and time > now}
        return [action for action in todo if _key(action) not in self._until]

    def due_in(self) -> float | None:
        """Return the seconds until the first expectation expires, or None without expectations."""
        soonest = min(self._until.values(), default=None)
        return None if soonest is None else soonest - self._elapsed()


def _key(action: Action) -> _Key | None:
    match action:
        case CreatePod(replica):
            return "create", "Pod", replica.name
        case Create(manifest) | CreateOwn(manifest):
            return "create", manifest["kind"], manifest["metadata"]["name"]
        case CreateSshSecret():
            return ("create", "ssh secret")
        case AwaitEarlier(attempt):
            return "await earlier", str(attempt)
        case DeletePod(_, uid):
            return "delete", uid
        case _:
            return None


# A job's ssh key, and the creation of the Secret with the key before the status has the name of the Secret.

_CONFLICT = 409


def new_key_pair() -> tuple[str, str]:
    """Create an ed25519 key. Returns the private key and the public key in the formats of OpenSSH."""
    # Import here: only the operator has the package cryptography. `dtj run` reconciles without the package and a key.
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return private.decode(), public.decode()


class SshSecret:
    """Chooses the Secret's name, and creates it."""

    def __init__(self) -> None:
        self._name: str | None = None
        self.made = False
        """Whether this process has created the Secret, or seen that it exists."""

    def name(self, job: AnyJob) -> str:
        """Return the Secret's name for a job whose status has no name. Nobody can guess the name, which is random."""
        self._name = self._name or ssh_secret_name(job.name, token_hex(4))
        return self._name

    async def make_first(self, cluster: Cluster, job: AnyJob) -> bool:
        """Create the Secret before the status names the Secret. Returns whether that succeeded; raises ApiError."""
        manifest = _manifest(job)
        try:
            await cluster.create(manifest)
        except ApiError as error:
            if error.status == _CONFLICT:
                self._name = None  # The name is in use. The next pass chooses another name.
                raise
            # Report nothing: the later action CreateSshSecret gets the same refusal and reports it.
            with suppress(CreationRefused, Unmade):
                refuse(error, manifest)
            return False
        self.made = True
        return True

    async def make(self, cluster: Cluster, job: AnyJob) -> None:
        """Create the Secret that the status names, unless it exists. Raises CreationRefused and ApiError."""
        await create_own(cluster, _manifest(job))
        self.made = True


def _manifest(job: AnyJob) -> Manifest:
    assert isinstance(job, Job)  # Only a job with a plan gets here, and only a Job has a plan.
    return ssh_secret(job, *new_key_pair())


# Events of a job: each event is created once and in order. A request that fails is repeated.

_log = logging.getLogger(__name__)
_MOST_WAITING = 20
# The limits of client-go's EventSourceObjectSpamFilter: a job may have _BURST events at once, and one more event
# every _REFILL_SECONDS. Without the limits, a program that reports another state each time would fill etcd.
_BURST, _REFILL_SECONDS = 25, 300.0
_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 300.0
# Repeat a request after status 0 (no answer), 401 (expired token), 429 (too many requests), and from 500 on.
_PASSING = (0, 401, 429)


class EventRecorder:
    """The events of one job that are not created yet, oldest first.

    The events are in memory only: an event may get lost when the operator dies. A request that fails loses no event.
    """

    def __init__(self, clock: BootClock) -> None:
        self._clock = clock
        # A list, not a deque: an empty deque takes 600 bytes, and each ended job also has a recorder.
        self._waiting: list[Manifest] = []
        self._pause = 0.0
        self._not_before: float | None = None
        self._tokens = float(_BURST)
        self._refilled: float | None = None
        self._recorded: list[str] = []
        """Names of the last events of the job."""

    def record(self, job: AnyJob, happening: Happening) -> None:
        """Queue an event behind those that wait, unless the job has no token left. A final event needs no token."""
        manifest = event(job, happening, written_time(self._clock.now()))
        name = manifest["metadata"]["name"]
        if name in self._recorded:
            return
        if not happening.final and not self._take():
            _log.debug(
                "%s/%s: the event %s is not created, because the job has had too many events",
                job.namespace,
                job.name,
                happening.reason,
            )
            return
        self._recorded = [*self._recorded, name][-_BURST:]
        _log.info("%s/%s: %s: %s", job.namespace, job.name, happening.reason, happening.message)
        self._waiting = [*self._waiting, manifest][-_MOST_WAITING:]

    def _take(self) -> bool:
        """Take a token of the job, and return whether the job had a token."""
        now = self._clock.elapsed()
        if self._refilled is not None:
            gained = (now - self._refilled) / _REFILL_SECONDS
            self._tokens = min(self._tokens + gained, _BURST)
        self._refilled = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    async def flush(self, cluster: Cluster) -> None:
        """Create the events that wait. After a request that may succeed later, pause before the next request."""
        if self._not_before is not None and self._clock.elapsed() < self._not_before:
            return
        while self._waiting:
            manifest = self._waiting[0]
            try:
                await cluster.create(manifest)
            except ApiError as error:
                if error.status != 409:  # 409: the event exists. An earlier request created the event.
                    _log.warning("event %s was not created: %s", manifest["metadata"]["name"], error)
                if error.status in _PASSING or error.status >= 500:
                    self._pause = min(2 * self._pause or _FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
                    wait = max(self._pause, error.retry_after or 0.0)
                    self._not_before = self._clock.elapsed() + wait
                    return
            del self._waiting[0]
        self._pause, self._not_before = 0.0, None

    def due_in(self) -> float | None:
        """Return the seconds until `flush` may send requests again, or None when `flush` is not paused."""
        return None if self._not_before is None else max(self._not_before - self._clock.elapsed(), 0.0)


# A thread checks, plans and evaluates a job with more pods, or with a longer spec, so that the event loop is not
# blocked.
_LARGE = 200
_LONG = 16_384
T = TypeVar("T")


class Cost:
    """The processor time of a job's last pass."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.long = False
        """Whether the spec of the job is long."""

    def begin(self) -> None:
        """Begin to count the processor time of a pass."""
        self.seconds = 0.0

    async def count(self, do: Callable[[], T], pods: int = 0) -> T:
        """Run a part of a pass and count its processor time.

        do: runs in a thread for a large job, so nothing may change the data that `do` reads.
        pods: the number of pods of the job.
        """

        def timed() -> list[T]:
            begun = time.thread_time()
            results = [do()]
            self.seconds += time.thread_time() - begun
            return results

        # The futures of a call in a thread reference each other. They would keep the result, a large job, until the
        # garbage collector runs: return the result in a list, and take it out.
        results = await asyncio.to_thread(timed) if self.long or pods > _LARGE else timed()
        return results.pop()


class Memory:
    """The memory of one job. A pass with an empty memory is correct, but sends more requests."""

    def __init__(
        self, uid: str, clock: BootClock, counts_after: float, host_paths: Sequence[str] | None = None
    ) -> None:
        """counts_after: see `StoredStatus`. host_paths: see `check`."""
        self.uid = uid
        self._host_paths = host_paths
        self.stored = StoredStatus(clock.elapsed, counts_after)
        self.recorder = EventRecorder(clock)
        self.expectations = Expectations(clock.elapsed)
        self.refusals = Refusals(Tries(uid, clock.elapsed), clock.elapsed)
        # Double the pauses between tries, where other tries have a growth of 4: the operator gives up on a record pod
        # after five minutes, and several tries must fit into this time.
        self.record_tries = Tries(uid, clock.elapsed, growth=2.0)
        """Counts the record pods that the cluster took away or refused, with the pause before the next one."""
        self.board_tries = Tries(uid, clock.elapsed)
        """Counts the refusals of the job's TensorBoard, with the pause before the next try."""
        self.ssh_secret = SshSecret()
        self.cost = Cost()
        self.over = False
        """Whether the job has ended."""
        self.stacks_of: str | None = None
        """The `stalledSince` of the job when the operator last asked its ranks for their stacks."""
        self.ungrouped = False
        """Whether the job's PodGroup was deleted."""
        self.no_tensorboard: str | None = None
        """Why the API server refused the job's TensorBoard."""
        self.no_record: Refusal | None = None
        """Why the API server refused the job's record pod."""
        self.held = 0
        """The bytes of the decoded spec that the memory keeps from one pass to the next."""
        self._read: tuple[object, AnyJob, list[Fault]] | None = None
        """The result of the last read: the manifest's fields except the status, the job from them, and its faults."""
        self._own: tuple[Sequence[OwnedPod], bool, PodSet] | None = None
        """The arguments and the result of the last call of `own`."""

    async def read(self, manifest: Mapping[str, Any]) -> tuple[AnyJob, list[Fault]]:
        """Return the job and its faults. Read the spec again only if generation, labels, or annotations differ."""
        metadata = manifest["metadata"]
        known = ("labels", "annotations")
        source = metadata["generation"], *map(metadata.get, known), manifest.get(NOT_KEPT)
        if self._read is None or self._read[0] != source:
            self.held = manifest.held if isinstance(manifest, KeptJob) else 0
            self.cost.long = isinstance(manifest, KeptJob) and len(manifest.spec) > _LONG
            job, faults = await self.cost.count(partial(read_stored_job, manifest, self._host_paths))
            # Keep the job without its status, which each pass reads again.
            self._read = source, replace(job, status=NO_STATUS), faults
        _, job, faults = self._read
        return replace(job, status=read_status(manifest.get("status") or {})), faults

    def own(self, pods: Sequence[OwnedPod], *, delegated: bool) -> PodSet:
        """Return those of the pods that belong to the job: the same set for the same `pods`.

        delegated: whether mpi-operator creates pods of the job.
        """
        if self._own is None or self._own[0] is not pods or self._own[1] != delegated:
            own = PodSet(
                pod.view for pod in pods if pod.owner == self.uid and (delegated or not pod.delegated)
            )
            self._own = pods, delegated, own
        return self._own[2]

    def shed(self) -> None:
        """Forget the spec of the job. The next pass reads it again."""
        self._read = None
        self.held = 0
