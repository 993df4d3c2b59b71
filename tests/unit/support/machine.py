"""One job for a state machine: the actions on the job, and the invariants that must always hold."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Coroutine, Mapping
from datetime import timedelta
from typing import Any

from dtj.api.identity import KIND, LABEL_ATTEMPT, other_manager_of
from dtj.api.job import Manifest
from dtj.api.strategies import RULES
from dtj.cluster.interface import ApiError
from dtj.reconcile.view import controller_uid
from tests.unit.support.fake_cluster import Call, Name, OperatorDied
from tests.unit.support.kubelet import Kubelet
from tests.unit.support.world import KEY, World

JOB = (KIND, *KEY)
PASSES = 80
"""Without further actions, a job is at rest after at most this many passes."""
DISRUPTED = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}


def run(pass_: Coroutine[Any, Any, float | None]) -> float | None:
    """Run a pass to its end. In memory a pass never waits."""
    try:
        pass_.send(None)
    except StopIteration as end:
        result: float | None = end.value
        return result
    raise AssertionError("the pass waits for something")


class Trial(World):
    """A world that records actions on pods, and checks the operator's requests."""

    counts_after = 5.0
    at_once = 1
    """No pass waits, because a test may run another pass within it."""

    def __init__(self, spec: Manifest) -> None:
        self.harmed: dict[str, str] = {}
        """Pods that were ended by others than the operator: the job's uid by the pod's uid."""
        self.suspensions = 0
        self.stalls = 0
        self.followed = 0
        self.stuck: set[str] = set()
        """Pods on an unreachable node, which do not end after a delete."""
        self.foreign: dict[Name, Manifest] = {}
        self.made: dict[tuple[str, ...], str] = {}
        """The uid of the last pod by job, role, index and attempt."""
        self.successor: tuple[Mapping[str, int], int] | None = None
        self.checked = self.checked_changes = 0
        super().__init__(**spec)
        self.cluster.meanwhile = self.check_request

    # --- what happens -------------------------------------------------------------------------------

    def make_pass(self) -> None:
        """Run a pass. An operator that dies in the pass is restarted with an empty memory."""
        mine = self.reconciler
        try:
            self.again = run(mine.reconcile(KEY))
        except ApiError:
            self.again = 1.0
        except OperatorDied:
            self.deaths += 1
            if self.reconciler is mine:
                self.start_operator()
            self.again = 0.0
        self.cluster.die_at = self.cluster.fault = self.successor = None

    def _take_over(self, behind: Mapping[str, int], passes: int) -> None:
        """Let another operator take over, with its passes before the request that is in progress."""
        stopped, self.cluster.die_at = self.cluster.die_at, None
        self.successor = None
        self.start_operator(behind)
        for _ in range(passes):
            self.make_pass()
            self.view.deliver()
        self.cluster.die_at = stopped

    def pods(self, *, live: bool = False) -> list[Manifest]:
        """Return the pods of jobs of this name, by name. live: only pods that have not ended."""
        found = [
            pod for pod in self.cluster.of_kind("Pod") if pod["metadata"]["name"] not in self._foreign_names
        ]
        if live:
            found = [pod for pod in found if pod["status"]["phase"] not in ("Succeeded", "Failed")]
        return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))

    @property
    def _foreign_names(self) -> set[str]:
        return {name[2] for name in self.foreign if name[0] == "Pod"}

    def change(self, pod: Manifest, **status: Any) -> None:
        """Change a pod's status as the kubelet or a controller does."""
        name = "Pod", "ml", pod["metadata"]["name"]
        self.cluster.change(name, lambda p: p["status"].update(copy.deepcopy(status)))

    def harm(self, pod: Manifest) -> None:
        """Record that a pod ends for a reason other than the operator."""
        self.harmed.setdefault(pod["metadata"]["uid"], controller_uid(pod))

    def end_container(self, pod: Manifest, code: int, message: str, reason: str) -> None:
        """End the trainer container."""
        self.harm(pod)
        terminated = {
            "exitCode": code,
            "reason": reason or ("Error" if code else "Completed"),
            "message": message,
            "finishedAt": self.cluster.now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        self.change(
            pod,
            phase="Failed" if code else "Succeeded",
            conditions=[{"type": "PodScheduled", "status": "True"}],
            containerStatuses=[{"name": "trainer", "state": {"terminated": terminated}}],
        )

    # --- what must always hold -----------------------------------------------------------------------

    def check_request(self, call: Call, manifest: Manifest) -> None:
        """Check each request on arrival against the objects at that time."""
        if self.cluster.die_at == 0 and self.successor is not None:
            self._take_over(*self.successor)
        self._check_manager(call, manifest)
        if call.kind == "Pod" and call.verb == "create":
            self._check_create(manifest)
        if call.kind == "Pod" and call.verb == "delete":
            self._check_delete(manifest["metadata"]["uid"])
        if call.kind == KIND and call.verb == "delete":
            self._check_expiry()

    def _check_manager(self, call: Call, manifest: Manifest) -> None:
        """Check that nothing is created for a job of another controller."""
        job = self.cluster.objects.get(JOB)
        if job is None or call.verb in ("get", "list") or not other_manager_of(job):
            return
        about = manifest.get("involvedObject", {}).get("uid") or controller_uid(manifest)
        assert about != job["metadata"]["uid"], f"{call} is for a job of another controller"

    def _check_create(self, manifest: Manifest) -> None:
        owner, attempt = controller_uid(manifest), int(manifest["metadata"]["labels"][LABEL_ATTEMPT])
        job = self.cluster.objects.get(JOB)
        if job is None or job["metadata"]["uid"] != owner:
            return
        self._check_affinity(job, manifest)
        if RULES[job["spec"]["strategy"]].restarts_alone:
            return
        status = job.get("status", {})
        assert attempt <= max(status.get("attempt", 0), 1), "a pod of an attempt that is not stored"
        alive = [
            pod["metadata"]["name"]
            for pod in self.pods(live=True)
            if controller_uid(pod) == owner
            and int(pod["metadata"]["labels"][LABEL_ATTEMPT]) < attempt
            # The API server refuses a create while a pod has this name.
            and ("Pod", "ml", manifest["metadata"]["name"]) not in self.cluster.objects
        ]
        assert not alive, (
            f"{manifest['metadata']['name']} of attempt {attempt} is made while {alive} still run"
        )

    def _check_affinity(self, job: Manifest, pod: Manifest) -> None:
        """Check that every pod of the current attempt avoids the bad nodes."""
        status, limit = job.get("status", {}), job["spec"]["runPolicy"]["avoidNodeAfterFailures"]
        if not limit or int(pod["metadata"]["labels"][LABEL_ATTEMPT]) != status.get("attempt"):
            return
        bad = {node for node, count in (status.get("nodeFailures") or {}).items() if count >= limit}
        affinity = json.dumps(pod["spec"].get("affinity", {}))
        assert all(json.dumps(node) in affinity for node in bad), f"{bad} are not avoided: {affinity}"

    def _check_delete(self, uid: str) -> None:
        pod = next((p for p in self.cluster.of_kind("Pod") if p["metadata"]["uid"] == uid), None)
        if pod is None:
            return
        name, owner = pod["metadata"]["name"], controller_uid(pod)
        job = self.cluster.objects.get(JOB)
        assert owner in self.job_uids, f"{name} is deleted, which is of another owner"
        if job is None or job["metadata"]["uid"] != owner or job["metadata"]["generation"] > 1:
            return
        status = job.get("status", {})
        running: Manifest = next((c for c in status.get("conditions", []) if c["type"] == "Running"), {})
        wanted = _attempt_of(job, name.removeprefix(f"{KEY[1]}-"))
        assert (
            status.get("completionTime")
            or running.get("reason") in ("Suspending", "Evaluating", "Evaluated")
            or int(pod["metadata"]["labels"][LABEL_ATTEMPT]) < wanted
            or ending(pod)
        ), f"{name} is deleted, which nothing in the status says"

    def _check_expiry(self) -> None:
        """Check that only ended jobs with a TTL are deleted. The fake checks the version."""
        job = self.cluster.objects.get(JOB, {})
        if job:
            assert "completionTime" in job["status"], "a job that has not ended is deleted"
            assert "ttlSecondsAfterFinished" in job["spec"]["runPolicy"]

    @property
    def job_uids(self) -> set[str]:
        """The uids of all jobs so far."""
        return {m["metadata"]["uid"] for name, m in self.cluster.log if name[0] == KIND and m is not None}

    def check(self) -> None:
        """Check all changes since the last call."""
        for name, manifest in self.foreign.items():
            assert self.cluster.objects.get(name) == manifest, f"{name} is another's, and was changed"
        self._check_names()
        self._check_pods()
        history = [m for name, m in self.cluster.log if name[0] == KIND]
        for old, new in list(itertools.pairwise([None, *history]))[self.checked :]:
            if new is not None:
                self._check_status(old, new)
        self.checked = len(history)

    def _check_pods(self) -> None:
        """Check that no pod is created twice in an attempt, unless the first was lost, or the spec changed.

        An operator with an old first list may create a pod of an earlier attempt. The next pass deletes the pod.
        """
        changes = [m for name, m in self.cluster.log[self.checked_changes :] if name[0] == "Pod" and m]
        self.checked_changes = len(self.cluster.log)
        job = self.cluster.objects.get(JOB)
        for pod in changes:
            uid, owner = pod["metadata"]["uid"], controller_uid(pod)
            labels = pod["metadata"].get("labels", {})
            if LABEL_ATTEMPT not in labels:
                continue
            place = owner, labels["dtj.dev/role"], labels["dtj.dev/index"], labels[LABEL_ATTEMPT]
            first = self.made.setdefault(place, uid)
            self.made[place] = uid
            if first == uid or first in self.harmed or job is None or job["metadata"]["uid"] != owner:
                continue
            over = int(labels[LABEL_ATTEMPT]) < _attempt_of(job, f"{place[1]}-{place[2]}")
            assert over or job["metadata"]["generation"] > 1, f"{place} is made twice"

    def _check_names(self) -> None:
        places = [
            (
                controller_uid(p),
                p["metadata"]["labels"]["dtj.dev/role"],
                p["metadata"]["labels"]["dtj.dev/index"],
            )
            for p in self.pods()
        ]
        assert len(places) == len(set(places)), f"two pods of one place: {places}"

    def _check_status(self, before: Manifest | None, job: Manifest) -> None:
        same = before is not None and before["metadata"]["uid"] == job["metadata"]["uid"]
        old = (before or {}).get("status", {}) if same else {}
        new = job.get("status", {})
        if new == old:
            return
        assert not other_manager_of(job), "a status for a job of another controller"
        assert before is None or not same or before["spec"] == job["spec"], "a status patch changed the spec"
        assert new["observedGeneration"] == job["metadata"]["generation"]
        done, done_before = _restarts(new), _restarts(old)
        for cause, count in done_before.items():
            assert done.get(cause, 0) >= count, f"restarts.{cause} shrank"
        assert sum(done.values()) - sum(done_before.values()) in (0, 1), "two restarts counted at once"
        lost, lost_before = new.get("nodeFailures") or {}, old.get("nodeFailures") or {}
        assert all(lost.get(node, 0) >= count for node, count in lost_before.items()), "nodeFailures shrank"
        ends = {c["type"] for c in new["conditions"] if c["status"] == "True"} & {"Succeeded", "Failed"}
        assert ends == ({new["phase"]} if "completionTime" in new else set())
        harmed = sum(uid == job["metadata"]["uid"] for uid in self.harmed.values())
        if _holds(new, "Stalled"):
            assert "stallTimeoutSeconds" in job["spec"]["runPolicy"]
            assert _holds(new, "Running"), "what does not run does not stall"
            self.stalls += not _holds(old, "Stalled")
        assert sum(done.values()) <= harmed + self.stalls, f"{done} restarts are counted for {harmed} losses"
        assert new["attempt"] >= old.get("attempt", 0)
        started, started_before = new.get("replicaAttempts") or {}, old.get("replicaAttempts") or {}
        assert all(started.get(short, was) >= was for short, was in started_before.items())
        own = new["attempt"] - 1 - sum(done.values())
        if own > old.get("attempt", 1) - 1 - sum(done_before.values()) and _followed(new):
            self.followed += 1
        assert 0 <= own <= self.suspensions + self.followed, f"attempt {new['attempt']} after {done}"
        if "completionTime" in old:
            kept = ("completionTime", "phase", "attempt", "restarts", "failure", "conditions")
            assert [new.get(key) for key in kept] == [old.get(key) for key in kept], "an end is for good"

    # --- when everything is over ------------------------------------------------------------------------

    def calm(self) -> None:
        """End all faults, and synchronize the cache."""
        self.cluster.die_at = self.cluster.fault = None
        self.cluster.refuse = lambda manifest: None
        for name in self.foreign:
            self.cluster.remove(name)
        self.foreign.clear()
        self.cluster.collect_garbage()
        for pod in self.pods():
            if ending(pod) and pod["metadata"]["uid"] not in self.stuck:
                self.cluster.remove(("Pod", "ml", pod["metadata"]["name"]))
        self.view.relist()

    def settle(self) -> None:
        """Run passes at the requested times until none is requested. Two further passes must send no request."""
        for _ in range(PASSES):
            before = len(self.cluster.log)
            self.make_pass()
            self.cluster.collect_garbage()
            self.view.deliver()
            if self.again is None and len(self.cluster.log) == before:
                break
            self.cluster.now += timedelta(seconds=self.again or 0.0)
        else:
            raise AssertionError(f"no rest after {PASSES} passes: asks for {self.again}; {self.status}")
        self.cluster.calls.clear()
        for _ in range(2):
            self.make_pass()
        assert self.cluster.calls == []

    def heal(self, *, kubelet: Kubelet) -> None:
        """Restore nodes and let all programs succeed, until the job ends."""
        self.stuck.clear()
        for _ in range(10 * PASSES):
            moved = len(self.cluster.log)
            kubelet.step()
            self.view.deliver()
            self.make_pass()
            self.view.deliver()
            self.check()
            if len(self.cluster.log) > moved or any(ending(pod) for pod in self.pods()):
                continue
            if self.again is None:
                return
            self.cluster.now += timedelta(seconds=self.again)
        raise AssertionError(f"no end: {self.status}, {self.again}")


def ending(pod: Manifest) -> bool:
    """Return whether a pod is being deleted."""
    return "deletionTimestamp" in pod["metadata"]


def _holds(status: Manifest, kind: str) -> bool:
    return any(c["type"] == kind and c["status"] == "True" for c in status.get("conditions", []))


def _followed(status: Manifest) -> bool:
    """Return whether the job restarts for a loss that follows from a counted one, or from a scale-down."""
    (restarting,) = [c for c in status["conditions"] if c["type"] == "Restarting"] or [{"status": "False"}]
    if restarting["status"] != "True":
        return False
    followed = restarting["reason"] in ("ConnectionLost", "PeersUnreachable", "Completed")
    return followed or "the job was scaled down" in restarting["message"]


def _attempt_of(job: Manifest, short: str) -> int:
    """Return the attempt of a replica according to the job's status."""
    status = job.get("status", {})
    alone = (status.get("replicaAttempts") or {}).get(short, 1)
    return int(alone if RULES[job["spec"]["strategy"]].restarts_alone else status.get("attempt", 1))


def _restarts(status: Manifest) -> dict[str, int]:
    return {cause: count for cause, count in (status.get("restarts") or {}).items() if count is not None}
