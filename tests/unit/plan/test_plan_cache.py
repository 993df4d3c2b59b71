"""The cache of plans: a cached plan equals a new plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dtj.api.job import Job, Manifest, read_status
from dtj.api.status import Restarts
from dtj.plan.job import PlanCache, plan_job, weight
from dtj.plan.model import Plan
from tests.unit.support.jobs import job


class Counted:
    """A cache that has room for two jobs, and the number of plans that were made."""

    def __init__(self, most_replicas: int = 2 * weight(plan_job(job()))) -> None:
        self.made = 0
        self.plan = PlanCache(self._make, most_replicas)

    def _make(self, given: Job) -> Plan:
        self.made += 1
        return plan_job(given)


def test_the_weight_of_a_plan_grows_with_the_entries_of_its_templates() -> None:
    def planned(count: int) -> Plan:
        template = {"spec": {"tolerations": [{"operator": "Exists"}] * count}}
        return plan_job(job(replicaSpecs={"worker": {"replicas": 1, "template": template}}))

    assert weight(planned(5_000)) > weight(planned(10)) + 5_000 // 5


def test_a_plan_is_made_once_while_nothing_that_it_depends_on_changes() -> None:
    counted, first = Counted(), job()
    later = replace(first, status=first.status.model_copy(update={"attempt": 1, "phase": "Running"}))

    plans = [counted.plan(each) for each in (later, later, replace(job(), status=later.status))]

    assert plans == [plan_job(later)] * 3
    assert counted.made == 1


def test_another_spec_attempt_or_label_is_another_plan() -> None:
    counted, first = Counted(), job()
    changed = [
        first,
        replace(first, spec=job(image="other:2").spec),
        replace(first, labels={"kueue.x-k8s.io/queue-name": "research"}),
        *(
            replace(first, status=first.status.model_copy(update=now))
            for now in ({"attempt": 2}, {"replica_attempts": {"worker-0": 2}})
        ),
        first,
    ]

    for each in changed:
        assert counted.plan(each) == plan_job(each)
    assert counted.made == len(changed)


@pytest.mark.parametrize("now", [{"restarts": Restarts(application=3)}, {"node_failures": {"a": 5}}])
@pytest.mark.parametrize("spec", [{}, {"strategy": "TorchDistributed"}])
def test_restarts_and_nodes_change_only_pods_which_are_made_when_they_are_needed(
    now: dict[str, object], spec: Manifest
) -> None:
    artifacts = {"uri": "s3://bucket/jobs", "secretName": "s3"}
    counted, first = Counted(), job(artifacts=artifacts, **spec)
    later = replace(first, status=first.status.model_copy(update=now))

    before, after = counted.plan(first), counted.plan(later)

    assert before == after == plan_job(later)
    assert counted.made == 1
    assert after.pods == plan_job(later).pods != before.pods
    assert counted.made == 2
    assert counted.plan(later) is after


def test_an_mpijob_has_its_pods_in_the_plan() -> None:
    counted = Counted()
    first = job(horovod={"launcher": "MPIJob"}, artifacts={"uri": "s3://bucket/jobs", "secretName": "s3"})
    later = replace(first, status=first.status.model_copy(update={"restarts": Restarts(application=3)}))

    counted.plan(first)

    assert counted.plan(later) == plan_job(later)
    assert counted.made == 2


def test_only_the_jobs_that_were_planned_last_are_cached() -> None:
    counted = Counted()
    a, b, c = (replace(job(), uid=uid) for uid in "abc")

    for each in (a, b, a, c, a):
        counted.plan(each)
    assert counted.made == 3
    counted.plan(b)
    assert counted.made == 4, "b had waited longest when c came"


def test_a_job_that_is_larger_than_all_room_is_cached_until_another_comes() -> None:
    counted, large, small = Counted(), replace(job(), uid="large"), replace(job(), uid="small")
    large = replace(large, spec=job(replicaSpecs={"worker": {"replicas": 30}}).spec)

    for each in (small, large, large):
        assert counted.plan(each) == plan_job(each)
    assert counted.made == 2
    for each in (small, small, large):
        counted.plan(each)
    assert counted.made == 4


def test_no_plan_of_a_job_that_has_ended_is_cached() -> None:
    counted, first = Counted(), job()
    succeeded = {"type": "Succeeded", "status": "True", "reason": "JobSucceeded", "message": ""}
    since = {"lastTransitionTime": "2026-11-21T12:00:00Z"}
    ended = replace(first, status=read_status({"conditions": [succeeded | since]}))
    assert ended.status.finished

    assert [counted.plan(each) for each in (first, ended, ended, first)] == [plan_job(first)] * 4

    assert counted.made == 4


@pytest.mark.bound(
    "operator",
    "Who may create jobs",
    "The cache of plans",
    "A number of replicas and of bytes in all; older plans are made again",
)
def test_of_jobs_as_large_as_the_api_server_takes_few_are_cached() -> None:
    counted = Counted(60)
    large = job(env=[{"name": f"A{number}", "value": "x" * 30_000} for number in range(16)])
    other = replace(large, uid="other")

    for given in (large, other, large):
        counted.plan(given)

    assert counted.made == 3
