"""One pass over a job: read, plan, evaluate, write the status, act.

The status is written before anything is done that follows from it. A pass that dies anywhere is repaired by the
next one: what counts (attempt, restarts, the end) is stored first, and every action is idempotent.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from dtj.api.checking import check
from dtj.api.identity import KIND, LABEL_ROLE
from dtj.api.job import Fault, Job, Manifest, read_status
from dtj.api.managed_by import other_manager_of
from dtj.api.spec import JobSpec, ParameterServer, ReplicaSpecs, Strategy
from dtj.api.status import JobStatus, Phase
from dtj.cluster.port import ApiError, Cluster
from dtj.plan.horovod import ssh_secret
from dtj.plan.job import plan_job
from dtj.plan.model import Plan
from dtj.plan.pods import artifacts_uri
from dtj.reconcile.actions import (
    Action,
    Create,
    CreateSshSecret,
    DeletePod,
    ExpireJob,
    ForceDeletePod,
    ReplaceData,
    actions,
)
from dtj.reconcile.metrics import Metrics
from dtj.reconcile.patch import merge_patch
from dtj.reconcile.progress import ProgressPoller
from dtj.reconcile.ssh_keys import new_key_pair
from dtj.reconcile.view import Key, View, controller_uid
from dtj.status.draft import Evaluation
from dtj.status.evaluate import evaluate
from dtj.status.events import Happening, event, happenings
from dtj.status.observed import Expected, Observed
from dtj.status.overdue import next_due, overdue, told_overdue
from dtj.status.pods import PodView
from dtj.status.times import written_time

_log = logging.getLogger(__name__)
# How often an object that the API server refuses for now (quota, a policy, a name that is taken) is tried again.
_REFUSED_SECONDS = 10.0
# How soon a cache that is behind is looked at again, should no event come.
_BEHIND_SECONDS = 1.0


@dataclass
class _Memory:
    """What the operator remembers of a job; it is right without it too, only slower to say why."""

    uid: str = ""
    refusal: tuple[str, str] | None = None
    invalid: list[Fault] = field(default_factory=list)
    version: str = ""
    """The job's resource version as this pass knows it."""
    written: Manifest | None = None
    """The job as our last write left it, while the cache may not have seen that."""
    overtaken: set[str] = field(default_factory=set)
    """Resource versions that our own writes have replaced since the cache last caught up."""


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
        if self.error.status == 403:
            reason = "QuotaExceeded" if "exceeded quota" in self.error.message else "Forbidden"
        else:
            reason = self.error.reason if self.error.status else "ApiUnreachable"
        return reason, f"{self.what} can't be made: {self.why}"


class Reconciler:
    """Brings jobs to what their specs say, one pass at a time."""

    def __init__(
        self,
        cluster: Cluster,
        view: View,
        progress: ProgressPoller,
        metrics: Metrics,
        clock: Callable[[], datetime],
        plan: Callable[[Job], Plan] = plan_job,
    ) -> None:
        """plan: what a job without faults needs; another place than a cluster plans otherwise."""
        self._plan = plan
        self._cluster = cluster
        self._view = view
        self._progress = progress
        self._metrics = metrics
        self._clock = clock
        self._memory: dict[Key, _Memory] = {}

    async def reconcile(self, key: Key) -> float | None:
        """One pass. Returns seconds until the next one is due although nothing happens, or None.

        Raises ApiError when the API server did not do as it was asked: the pass is to be repeated.
        """
        manifest = self._view.job(key)
        if manifest is None or manifest["metadata"].get("deletionTimestamp"):
            # The API server's garbage collector ends what the job owned.
            self._forget(key)
            return await self._end_strays(key, None)
        strays = await self._end_strays(key, manifest["metadata"]["uid"])
        if other_manager_of(manifest):
            self._forget(key)
            return strays
        again = await self._reconcile(key, manifest)
        return min((seconds for seconds in (strays, again) if seconds is not None), default=None)

    async def _end_strays(self, key: Key, uid: str | None) -> float | None:
        """Take away by force what is overdue of jobs of this name that are gone; seconds until more is.

        uid: of the job that has the name now.
        """
        pods = [pod.view for pod in self._view.pods(key) if pod.owner and pod.owner != uid]
        now = self._clock()
        for pod in overdue(pods, now):
            _log.info("%s/%s: %s", *key, told_overdue(pod))
            await self._cluster.delete_pod(key[0], pod.name, pod.uid, force=True)
        return next_due(pods, now)

    async def _reconcile(self, key: Key, manifest: Mapping[str, Any]) -> float | None:
        memory = self._memory.setdefault(key, _Memory())
        if memory.uid != manifest["metadata"]["uid"]:
            memory = self._memory[key] = _Memory(uid=manifest["metadata"]["uid"])
            self._progress.leave(key)  # what an earlier job of that name reported
        if memory.written and manifest["metadata"]["resourceVersion"] in memory.overtaken:
            manifest = memory.written  # the cache has not seen our own last write yet
        else:
            memory.overtaken.clear()
        memory.version = manifest["metadata"]["resourceVersion"]
        job, wrong = _read(dict(manifest))
        plan = None if wrong else self._plan(job)
        now = self._clock()
        pods = [pod.view for pod in self._view.pods(key) if pod.owner == job.uid]
        report = self._progress.report(key, plan.reporter) if plan else None
        evaluation_report = self._progress.report(key, plan.evaluator) if plan and plan.evaluator else None
        observed = Observed(
            pods=pods,
            refusal=memory.refusal,
            invalid=memory.invalid,
            progress=report.progress if report else None,
            artifacts=report.artifacts if report else None,
            bottleneck=report.bottleneck if report else None,
            evaluation=evaluation_report.progress if evaluation_report else None,
        )
        expected = _expected(job, plan) if plan else None
        evaluation = evaluate(job, expected, wrong, observed, now)
        if (
            plan
            and evaluation.status.attempt > max(job.status.attempt, 1)
            and await self._unseen(job, plan, pods)
        ):
            return _BEHIND_SECONDS
        await self._write(key, job, manifest, memory, evaluation.status, now)
        self._follow(key, plan, observed, evaluation.status)
        if evaluation.status.attempt != max(job.status.attempt, 1):
            return 0.0  # the plan of the new attempt is made in a pass of its own
        todo = actions(
            job,
            plan,
            evaluation,
            pods,
            [s for s in self._view.services(key) if s.owner == job.uid],
            [c for c in self._view.configs(key) if c.owner == job.uid],
        )
        return await self._act(job, memory, todo, evaluation)

    async def _unseen(self, job: Job, plan: Plan, pods: Sequence[PodView]) -> bool:
        """Whether a pod that the cache misses is there: no attempt is given up for what only looks lost.

        So after another operator's status was seen before its pods were.
        """
        seen = {pod.name for pod in pods}
        for manifest in plan.pods:
            if manifest["metadata"]["name"] in seen:
                continue
            there = await self._cluster.get(manifest)
            if there and controller_uid(there) == job.uid and not there["metadata"].get("deletionTimestamp"):
                return True
        return False

    async def _act(
        self, job: Job, memory: _Memory, todo: list[Action], evaluation: Evaluation
    ) -> float | None:
        before = memory.refusal, list(memory.invalid)
        memory.refusal, memory.invalid = None, []
        try:
            for action in todo:
                await self._carry_out(job, memory.version, action)
        except Refused as refused:
            _log.info("%s/%s: %s", job.namespace, job.name, refused)
            if refused.invalid:
                memory.invalid = [Fault(refused.what, refused.why)]
            else:
                memory.refusal = refused.obstacle
        if before != (memory.refusal, memory.invalid):
            # To say so in the status; not at once, for a message that is another one each time.
            return 0.0 if memory.refusal is None or before[0] is None else 1.0
        if memory.refusal is not None:
            return min(_REFUSED_SECONDS, evaluation.look_again or _REFUSED_SECONDS)
        return evaluation.look_again

    async def _carry_out(self, job: Job, version: str, action: Action) -> None:
        match action:
            case ExpireJob():
                # At this version only: somebody may just have asked for it to stay.
                await self._cluster.expire_job(job.namespace, job.name, job.uid, version)
                _log.info("%s/%s: deleted by runPolicy.ttlSecondsAfterFinished", job.namespace, job.name)
            case DeletePod(name, uid):
                await self._cluster.delete_pod(job.namespace, name, uid)
            case ForceDeletePod(name, uid, why):
                await self._post(job, Happening("Warning", "PodForceDeleted", why), self._clock())
                await self._cluster.delete_pod(job.namespace, name, uid, force=True)
            case Create(manifest):
                await self._create(job, manifest)
            case CreateSshSecret():
                secret = ssh_secret(job, *new_key_pair())
                try:
                    await self._cluster.create(secret)
                except ApiError as error:
                    # Its name carries the job's uid: the one that is there is this job's.
                    if error.status != 409 or error.reason != "AlreadyExists":
                        _refuse(error, secret)
            case ReplaceData(manifest):
                await self._cluster.replace_data(manifest)

    async def _create(self, job: Job, manifest: Manifest) -> None:
        try:
            await self._cluster.create(manifest)
        except ApiError as error:
            if error.status == 409 and error.reason == "AlreadyExists":
                there = await self._cluster.get(manifest)
                if there is None or controller_uid(there) == job.uid:
                    return  # made by a pass before, or gone in between: the cache will tell
                raise Refused(ApiError(409, "NameTaken", _holder(there, job)), manifest) from None
            _refuse(error, manifest)

    async def _write(
        self, key: Key, job: Job, manifest: Any, memory: _Memory, status: JobStatus, now: datetime
    ) -> None:
        new = status.model_dump(by_alias=True, mode="json", exclude_none=True)
        patch = merge_patch(manifest.get("status") or {}, new)
        if not patch:
            return
        version = manifest["metadata"]["resourceVersion"]
        # The cache's version too, besides that of our copy: it is what the cache may still show.
        shown = self._view.job(key)
        memory.written = await self._cluster.patch_status(job.namespace, job.name, version, patch)
        memory.overtaken |= {version, *([shown["metadata"]["resourceVersion"]] if shown else [])}
        memory.version = memory.written["metadata"]["resourceVersion"]
        memory.overtaken.discard(memory.version)
        await self._tell(job, status, now)

    async def _tell(self, job: Job, status: JobStatus, now: datetime) -> None:
        """Events and metrics of what was just stored."""
        if status.finished and not job.status.finished:
            ended = next(c for c in status.conditions if c.type.value == (status.phase or ""))
            self._metrics.finished.labels((status.phase or "").lower(), ended.reason).inc()
        for cause in ("application", "infrastructure"):
            self._metrics.restarts.labels(cause).inc(
                max(0, getattr(status.restarts, cause) - getattr(job.status.restarts, cause))
            )
        for happening in happenings(job.status, status):
            await self._post(job, happening, now)

    async def _post(self, job: Job, happening: Happening, now: datetime) -> None:
        _log.info("%s/%s: %s: %s", job.namespace, job.name, happening.reason, happening.message)
        try:
            await self._cluster.create(event(job, happening, written_time(now)))
        except ApiError as error:
            if error.status != 409:
                _log.warning("%s/%s: event %s: %s", job.namespace, job.name, happening.reason, error)

    def _follow(self, key: Key, plan: Plan | None, observed: Observed, status: JobStatus) -> None:
        trains = status.phase is Phase.RUNNING or (plan and plan.restarts_with and not status.finished)
        if plan is None or not trains:
            self._progress.leave(key)
            return
        asked = (plan.reporter, plan.evaluator)
        self._progress.follow(
            key, {p.name: p.ip for p in observed.pods if p.name in asked and p.running and p.ip}
        )

    def _forget(self, key: Key) -> None:
        self._memory.pop(key, None)
        self._progress.leave(key)


def _refuse(error: ApiError, manifest: Manifest) -> None:
    """Tell a refusal, which the status shows, from trouble that a repeated pass gets over."""
    if error.status == 403 and "not found" in error.message and "serviceaccount" in error.message:
        raise error  # a new namespace gets its service account in a moment
    if error.status == 403 and "being terminated" in error.message:
        return  # the namespace goes, and the job with it
    if error.status in (400, 403, 422):
        raise Refused(error, manifest) from None
    raise error


def _holder(there: Manifest, job: Job) -> str:
    """Who has a name that the job needs."""
    metadata = there["metadata"]
    owners = metadata.get("ownerReferences") or []
    if any(owner.get("kind") == KIND and owner.get("name") == job.name for owner in owners):
        return "the one of an earlier job of this name is still there"
    if metadata.get("deletionTimestamp"):
        return "another one of this name is still being deleted"
    return "another one of this name is there, which is not the job's"


def _expected(job: Job, plan: Plan) -> Expected:
    return Expected(
        replicas=Counter(pod["metadata"]["labels"][LABEL_ROLE] for pod in plan.pods),
        stages=[[pod["metadata"]["name"] for pod in stage] for stage in plan.stages],
        decisive=plan.decisive,
        artifacts_uri=artifacts_uri(job),
        attempts=plan.attempts,
        restarts_with=plan.restarts_with,
        evaluator=plan.evaluator,
        evaluator_timeout=(job.spec.parameter_server or ParameterServer()).evaluator_timeout_seconds,
    )


def _read(manifest: Manifest) -> tuple[Job, list[Fault]]:
    """The job and its faults; one that has not even the resource's form is read without its spec."""
    job, wrong = check(manifest)
    if job is None:
        metadata = manifest["metadata"]
        status = read_status(manifest.get("status") or {})
        empty = JobSpec(strategy=Strategy.HOROVOD, image="unknown", replica_specs=ReplicaSpecs())
        job = Job(
            metadata["name"], metadata["namespace"], metadata["uid"], metadata["generation"], empty, status
        )
    return job, wrong
