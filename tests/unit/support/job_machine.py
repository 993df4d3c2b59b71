"""A state machine of jobs: an operator that crashes at any call, a stale cache, and a faulty cluster.

From any state that a job can come to, repeated passes converge and then change nothing.
"""

from __future__ import annotations

import copy
import json
import os
from datetime import timedelta
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dtj.api.identity import KIND, LABEL_INDEX, LABEL_ROLE, other_manager_of
from dtj.api.job import Manifest, read_job
from dtj.api.status import ProgressStatus
from dtj.cluster.interface import ApiError
from dtj.reconcile.view import controller_uid
from dtj.status.observed import ProgressReport
from tests.unit.support.jobs import manifest
from tests.unit.support.kubelet import Kubelet
from tests.unit.support.machine import DISRUPTED, JOB, Trial, ending
from tests.unit.support.world import KEY

MORE_EXAMPLES = int(os.environ.get("DTJ_EXAMPLES", "0"))
KINDS = st.sampled_from([KIND, "Pod", "Service", "ConfigMap"])
WHICH = st.integers(0, 5)
WHEN = st.sampled_from(["before", "after"])
SELDOM = st.sampled_from([False, False, False, False, True])
RARELY = st.sampled_from([False] * 9 + [True])
SCALE = st.integers(1, 2)
PASSES = st.integers(0, 3)


def said(kind: str, **more: Any) -> str:
    """A termination message of dtj-launch."""
    return json.dumps({"class": kind, "message": "it broke", **more})


EXITS = st.sampled_from(
    [
        (0, "", ""),
        (0, json.dumps({"artifacts": {"uri": "s3://b/j", "checkpoint": {"step": 10}}}), ""),
        (1, "Traceback", ""),
        (1, said("ApplicationError", rank=0, host="mnist-worker-0.mnist"), ""),
        (1, said("ConnectionLost"), ""),
        (1, said("PeersUnreachable"), ""),
        (137, "", "OOMKilled"),
        (137, "", "Error"),
        (1, said("PortInUse"), ""),
        (143, said("Signal", signal=15), ""),
        (127, "", "ContainerCannotRun"),
    ]
)


@st.composite
def small_specs(draw: st.DrawFn) -> Manifest:
    """Small jobs of both strategies, those of ParameterServer in each form of a TFJob."""
    policy: Manifest = {
        "backoffLimit": draw(st.sampled_from([3, 2, 1, 0])),
        "cleanPodPolicy": draw(st.sampled_from(["Running", "All", "None"])),
        "suspend": draw(SELDOM),
    }
    if draw(st.booleans()):
        policy["avoidNodeAfterFailures"] = draw(st.integers(0, 2))
    if draw(RARELY):
        policy["managedBy"] = "example.com/queue"
    for limit in ("activeDeadlineSeconds", "startDeadlineSeconds", "ttlSecondsAfterFinished"):
        if draw(SELDOM):
            policy[limit] = draw(st.sampled_from([30, 3600]))
    if draw(st.booleans()):
        policy["stallTimeoutSeconds"] = 30
        policy["stallPolicy"] = draw(st.sampled_from(["Report", "Restart"]))
    spec: Manifest = {"runPolicy": policy, "replicaSpecs": {"worker": {"replicas": draw(SCALE)}}}
    if draw(st.booleans()):
        spec["artifacts"] = {"uri": "s3://bucket/jobs"}
    if draw(st.booleans()):
        spec["strategy"] = "ParameterServer"
        leader = draw(st.sampled_from([{}, {}, {"chief": {"replicas": 0}}, {"chief": {}}, {"master": {}}]))
        spec["replicaSpecs"] |= copy.deepcopy(leader)
        if not leader or draw(st.booleans()):
            spec["replicaSpecs"]["ps"] = {"replicas": draw(SCALE)}
        if draw(st.booleans()) and "artifacts" in spec:
            spec["replicaSpecs"]["evaluator"] = {}
    return spec


SPECS: st.SearchStrategy[Manifest] = st.runner().flatmap(lambda jobs: jobs.specs)


class Jobs(RuleBasedStateMachine):
    """One name, under which jobs come and go."""

    specs: st.SearchStrategy[Manifest] = small_specs()
    world: Trial

    @initialize(spec=SPECS, steps=st.sampled_from([12, 12, 5, 0]), failures=st.sampled_from([0, 0, 1, 2]))
    def begin(self, spec: Manifest, steps: int, failures: int) -> None:
        self.world = Trial(spec)
        self.kubelet = Kubelet(self.world.cluster, program=lambda pod, ran: None, end_steps=0)
        self.let_all_go_on(steps)
        for _ in range(failures):
            self.end_rank_0s_pod((1, "Traceback", ""))
            self.let_time_pass(61)
            self.let_all_go_on(steps)

    # --- the operator ---------------------------------------------------------------------------------

    @rule(passes=st.integers(1, 4))
    def make_passes_in_time(self, passes: int) -> None:
        for _ in range(passes):
            self.world.view.deliver()
            self.world.make_pass()

    @rule()
    def make_a_pass_with_what_the_cache_has(self) -> None:
        self.world.make_pass()

    @rule(call=st.integers(1, 7), when=WHEN, status=st.sampled_from([None, None, 0, 429, 500]))
    def make_a_pass_that_breaks(self, call: int, when: Any, status: int | None) -> None:
        self.world.view.deliver()
        self.world.cluster.die_at, self.world.cluster.die_when = call, when
        if status is not None:
            self.world.cluster.fault = ApiError(status, "Trouble", "later")
        self.world.make_pass()

    @rule(behind=st.sampled_from([0, 0, 3, 9]), kind=KINDS)
    def let_another_operator_take_over(self, behind: int, kind: str) -> None:
        """Its cache may be behind what the one before it had seen and written."""
        self.world.start_operator(behind={kind: behind})

    @rule(call=st.integers(1, 7), when=WHEN, behind=st.sampled_from([0, 0, 3, 9]), kind=KINDS, passes=PASSES)
    def let_another_operator_take_over_within_a_pass(
        self, call: int, when: Any, behind: int, kind: str, passes: int
    ) -> None:
        """The request that the first was at comes after the passes of the other, or never."""
        self.world.view.deliver()
        self.world.cluster.die_at, self.world.cluster.die_when = call, when
        self.world.successor = {kind: behind}, passes
        self.world.make_pass()

    # --- the cache ------------------------------------------------------------------------------------

    @rule(kind=KINDS, count=st.integers(1, 3))
    def deliver_some(self, kind: str, count: int) -> None:
        self.world.view.deliver(kind, count=count)

    @rule(kind=KINDS)
    def lose_an_event(self, kind: str) -> None:
        self.world.view.lose(kind)

    @rule(kind=KINDS, back=st.integers(0, 6))
    def show_an_old_event_again(self, kind: str, back: int) -> None:
        self.world.view.show_again(kind, back)

    @rule()
    def list_anew(self) -> None:
        self.world.view.relist()

    # --- the user -------------------------------------------------------------------------------------

    @property
    def job(self) -> Manifest | None:
        return self.world.cluster.objects.get(JOB)

    @rule(sure=SELDOM)
    def delete_the_job(self, sure: bool) -> None:
        if sure:
            self.world.cluster.remove(JOB)

    @precondition(lambda self: self.job is None)
    @rule(spec=SPECS)
    def make_the_job_again(self, spec: Manifest) -> None:
        self.world.suspensions = 0
        self.world.apply(manifest(**spec))

    @precondition(lambda self: self.job is not None)
    @rule(suspend=SELDOM)
    def suspend_or_resume(self, suspend: bool) -> None:
        self.world.suspensions += suspend
        self.world.cluster.change(JOB, lambda job: job["spec"]["runPolicy"].update(suspend=suspend))

    @precondition(lambda self: self.job is not None)
    @rule(edit=st.sampled_from([{"args": ["--lr=2"]}, {"image": "No Image"}, {"image": "trainer:1"}]))
    def edit_the_job(self, edit: Manifest) -> None:
        self.world.cluster.change(JOB, lambda job: job["spec"].update(edit))

    @precondition(lambda self: self.job is not None)
    @rule(role=st.sampled_from(["worker", "ps", "evaluator"]), replicas=SCALE)
    def scale_the_job(self, role: str, replicas: int) -> None:
        def scale(job: Manifest) -> None:
            if role in job["spec"]["replicaSpecs"]:
                job["spec"]["replicaSpecs"][role]["replicas"] = 1 if role == "evaluator" else replicas

        self.world.cluster.change(JOB, scale)

    # --- the cluster ------------------------------------------------------------------------------------

    def pod(self, which: int) -> Manifest | None:
        pods = self.world.pods()
        return pods[which % len(pods)] if pods else None

    @rule(steps=st.sampled_from([2, 5, 12]))
    def let_all_go_on(self, steps: int) -> None:
        for _ in range(steps):
            self.make_passes_in_time(1)
            self.let_pods_go_on(1)

    @rule(steps=st.integers(1, 4))
    def let_pods_go_on(self, steps: int) -> None:
        for _ in range(steps):
            self.world.cluster.collect_garbage()
            for pod in self.world.pods():
                if pod["metadata"]["uid"] not in self.world.stuck:
                    self.kubelet._move(pod)

    @rule(which=WHICH)
    def let_one_pod_go_on(self, which: int) -> None:
        pod = self.pod(which)
        if pod is not None and pod["metadata"]["uid"] not in self.world.stuck:
            self.kubelet._move(pod)

    @rule(which=WHICH)
    def let_a_completed_pod_go(self, which: int) -> None:
        """PodGC removes it with its node, or a drain evicts it."""
        completed = [pod for pod in self.world.pods() if pod["status"]["phase"] == "Succeeded"]
        if completed:
            self.world.cluster.remove(("Pod", "ml", completed[which % len(completed)]["metadata"]["name"]))

    @rule(which=WHICH, end=EXITS)
    def end_a_container(self, which: int, end: tuple[int, str, str]) -> None:
        pod = self.pod(which)
        if pod is not None and pod["status"]["phase"] == "Running":
            self.world.end_container(pod, *end)

    @rule(end=EXITS)
    def end_rank_0s_pod(self, end: tuple[int, str, str]) -> None:
        for pod in self.world.pods():
            if self.decides(pod) and pod["status"]["phase"] == "Running":
                self.world.end_container(pod, *end)

    def decides(self, pod: Manifest) -> bool:
        """Return whether the success of the pod is the job's success."""
        if self.job is None:
            return False
        labels = pod["metadata"]["labels"]
        role = read_job(self.job).rules.roles.get(labels[LABEL_ROLE])
        return role is not None and role.decides and (role.all_decide or labels[LABEL_INDEX] == "0")

    def succeed(self, pod: Manifest, ran: int) -> tuple[int, str] | None:
        """Every program does what it should."""
        return (0, "") if self.decides(pod) and ran >= 2 else None

    @rule(which=WHICH, message=st.sampled_from(["memory", "ephemeral-storage"]))
    def evict_a_pod(self, which: int, message: str) -> None:
        pod = self.pod(which)
        if pod is not None and pod["status"]["phase"] in ("Pending", "Running"):
            self.world.harm(pod)
            message = f"The node was low on resource: {message}."
            self.world.change(pod, phase="Failed", reason="Evicted", message=message)

    @rule(which=WHICH)
    def delete_a_pod(self, which: int) -> None:
        pod = self.pod(which)
        if pod is not None:
            self.world.harm(pod)
            self.world.cluster.end_pod(pod)

    @rule(which=WHICH)
    def pull_no_image(self, which: int) -> None:
        pod = self.pod(which)
        if pod is not None and pod["status"]["phase"] == "Pending":
            state = {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}
            self.world.change(pod, containerStatuses=[{"name": "trainer", "state": state}])

    @rule(which=WHICH, told=st.booleans())
    def lose_a_node(self, which: int, told: bool) -> None:
        pod = self.pod(which)
        if pod is None or not pod["spec"].get("nodeName") or pod["status"]["phase"] != "Running":
            return
        self.world.harm(pod)
        self.world.stuck.add(pod["metadata"]["uid"])
        conditions = [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "False"}]
        self.world.change(pod, conditions=conditions + ([DISRUPTED] if told else []))
        if told:
            self.world.cluster.end_pod(self.world.cluster.pod(pod["metadata"]["name"]))

    @rule()
    def bring_nodes_back(self) -> None:
        for pod in self.world.pods():
            if pod["metadata"]["uid"] in self.world.stuck and not ending(pod):
                conditions = [c for c in pod["status"].get("conditions", []) if c["type"] != "Ready"]
                self.world.change(pod, conditions=[*conditions, {"type": "Ready", "status": "True"}])
        self.world.stuck.clear()

    @rule(full=st.booleans())
    def fill_or_empty_the_quota(self, full: bool) -> None:
        error = ApiError(403, "Forbidden", "exceeded quota: q, requested: pods=1")
        self.world.cluster.refuse = lambda made: error if full and made["kind"] == "Pod" else None

    @rule(kind=st.sampled_from(["Pod", "Service", "ConfigMap"]))
    def take_a_name(self, kind: str) -> None:
        taken = {"Pod": "mnist-worker-0", "Service": "mnist", "ConfigMap": "mnist-config"}[kind]
        name = kind, "ml", taken
        if name not in self.world.cluster.objects:
            self.world.cluster.refuse = lambda made: None
            made = {
                "apiVersion": "v1",
                "kind": kind,
                "metadata": {"name": taken, "namespace": "ml"},
                "spec": {},
            }
            self.world.foreign[name] = self.world.cluster.add(made)

    @rule()
    def give_names_back(self) -> None:
        for name in self.world.foreign:
            self.world.cluster.remove(name)
        self.world.foreign.clear()

    @rule(seconds=st.sampled_from([1, 7, 61, 400]))
    def let_time_pass(self, seconds: int) -> None:
        self.world.cluster.now += timedelta(seconds=seconds)

    @rule(step=st.integers(0, 20))
    def report_an_evaluation(self, step: int) -> None:
        self.world.progress.reports[KEY] = {
            "mnist-evaluator-0": ProgressReport(progress=ProgressStatus(step=step, accuracy=0.5))
        }

    @precondition(lambda self: self.job is not None and self.world.phase == "Running")
    @rule(step=st.integers(0, 3), seconds=st.sampled_from([0, 31, 61]))
    def report_a_step_and_stand_still(self, step: int, seconds: int) -> None:
        report = ProgressReport(progress=ProgressStatus(step=step))
        self.world.progress.reports[KEY] = dict.fromkeys(
            ["mnist-worker-0", "mnist-chief-0", "mnist-master-0"], report
        )
        self.make_passes_in_time(1)
        self.world.cluster.now += timedelta(seconds=seconds)
        self.make_passes_in_time(1)

    # --- what holds ---------------------------------------------------------------------------------------

    @invariant()
    def everything_written_is_right(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.world.calm()
        self.world.settle()
        self.world.check()
        self.nothing_waits_beyond_its_deadline()
        self.nothing_is_left_of_jobs_that_are_gone()
        self.mend()
        self.world.heal(kubelet=Kubelet(self.world.cluster, program=self.succeed))
        self.world.calm()
        self.world.settle()
        self.nothing_is_left_of_jobs_that_are_gone()
        if self.job is None:
            return
        if other_manager_of(self.job):
            assert "status" not in self.job
        else:
            phase, suspend = self.world.phase, self.job["spec"]["runPolicy"]["suspend"]
            assert phase in (("Suspended", "Succeeded", "Failed") if suspend else ("Succeeded", "Failed"))

    def nothing_waits_beyond_its_deadline(self) -> None:
        """With all the time that the operator asked for, and no pod that moves."""
        if self.job is None or other_manager_of(self.job):
            return
        status, policy = self.job["status"], self.job["spec"]["runPolicy"]
        if "completionTime" in status:
            assert "ttlSecondsAfterFinished" not in policy
            return
        held = {(c["type"], c["reason"]) for c in status["conditions"] if c["status"] == "True"}
        if ("Created", "SpecInvalid") in held or policy["suspend"]:
            return
        assert "activeDeadlineSeconds" not in policy
        waits = "allRunningTime" not in status or "Restarting" in dict(held)
        assert "startDeadlineSeconds" not in policy or not waits

    def nothing_is_left_of_jobs_that_are_gone(self) -> None:
        """Also on nodes that are silent."""
        there = {self.job["metadata"]["uid"]} if self.job else set()
        kept = [m for name, m in self.world.cluster.objects.items() if name[0] not in ("Event", KIND)]
        assert {controller_uid(manifest) for manifest in kept} <= there

    def mend(self) -> None:
        """Replace an invalid spec by a valid one."""
        if self.job is not None:
            self.world.cluster.change(JOB, lambda job: job["spec"].update(image="trainer:1"))


def settings_of(examples: int) -> settings:
    """Return Hypothesis' settings: so many examples, the same in every run, or DTJ_EXAMPLES random ones."""
    return settings(
        max_examples=MORE_EXAMPLES or examples,
        stateful_step_count=40,
        derandomize=not MORE_EXAMPLES,
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
