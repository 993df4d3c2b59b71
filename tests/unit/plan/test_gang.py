"""Plans of jobs with gang scheduling, and faults of a schedulingPolicy.

* policies, schedulers and templates that are refused
* PodGroups of Coscheduling and Volcano
* pods for Kueue

Whole objects are in tests/golden.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtj.api.job import read_job
from dtj.api.validation import faults
from dtj.plan.job import plan_job
from dtj.plan.model import Plan
from tests.unit.support.jobs import job, manifest
from tests.unit.support.pod_group_crds import schema_of
from tests.unit.support.structural import schema_faults

PS = {
    "strategy": "ParameterServer",
    "replicaSpecs": {"worker": {"replicas": 2}, "ps": {"replicas": 1}, "evaluator": {}},
}
TORCH = {"strategy": "TorchDistributed", "replicaSpecs": {"worker": {"replicas": 2}}}
POD_GROUPS = ("Coscheduling", "Volcano")


def policy(gang: str, **more: Any) -> dict[str, Any]:
    return {"runPolicy": {"schedulingPolicy": {"gang": gang, **more}}}


def plan(gang: str, *, uid: str | None = None, **spec: Any) -> Plan:
    more = {"queue": "research"} if gang == "Kueue" else {}
    return plan_job(job(**policy(gang, **more) | spec))


def said(gang: str, *, roles: Any = None, **more: Any) -> list[str]:
    spec = policy(gang, **more) | ({"replicaSpecs": roles} if roles else {})
    return [str(fault) for fault in faults(job(**spec))]


def template(**spec: Any) -> dict[str, Any]:
    return {"template": {"spec": spec}}


# --- what is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gang", "more", "field"),
    [
        ("Kueue", {}, "queue"),
        ("None", {"queue": "research"}, "queue"),
        ("Coscheduling", {"queue": "research"}, "queue"),
        ("Kueue", {"queue": "research", "minAvailable": 2}, "minAvailable"),
        ("None", {"minAvailable": 2}, "minAvailable"),
        ("Volcano", {"minAvailable": 3}, "minAvailable"),
    ],
)
def test_what_cant_work_is_refused_by_its_field(gang: str, more: dict[str, Any], field: str) -> None:
    (fault,) = said(gang, **more)
    assert fault.startswith(f"spec.runPolicy.schedulingPolicy.{field}: ")


@pytest.mark.parametrize(
    ("gang", "more"),
    [
        ("None", {"priorityClassName": "research"}),
        ("Coscheduling", {"minAvailable": 1}),
        ("Volcano", {"queue": "research", "minAvailable": 2, "priorityClassName": "research"}),
        ("Kueue", {"queue": "research", "priorityClassName": "research"}),
    ],
)
def test_what_works_passes(gang: str, more: dict[str, Any]) -> None:
    assert said(gang, **more) == []


@pytest.mark.parametrize(
    ("gang", "scheduler"),
    [
        ("Coscheduling", "volcano"),
        ("Volcano", "default-scheduler"),
        ("Volcano", "scheduler-plugins-scheduler"),
    ],
)
def test_a_scheduler_that_does_not_know_the_group_is_refused(gang: str, scheduler: str) -> None:
    (fault,) = said(gang, roles={"worker": {"replicas": 2, **template(schedulerName=scheduler)}})
    assert fault.startswith("spec.replicaSpecs.worker.template.spec.schedulerName: ")


def test_members_of_two_schedulers_are_refused() -> None:
    roles = {"worker": {"replicas": 2, **template(schedulerName="ours")}, "ps": {"replicas": 1}}
    (fault,) = faults(job(strategy="ParameterServer", **policy("Coscheduling") | {"replicaSpecs": roles}))
    assert str(fault) == (
        "spec.replicaSpecs.ps.template.spec.schedulerName: "
        "must be the same in the templates of all roles: one scheduler places all pods of a group"
    )


@pytest.mark.parametrize("own", [{}, template(schedulerName="default-scheduler")])
def test_a_chief_without_pods_is_no_member(own: dict[str, Any]) -> None:
    named = template(schedulerName="volcano")
    roles = {"chief": {"replicas": 0, **own}, "worker": {"replicas": 2, **named}, "ps": named}
    assert faults(job(strategy="ParameterServer", **policy("Volcano") | {"replicaSpecs": roles})) == []


@pytest.mark.parametrize(
    ("gang", "kind", "key"),
    [
        ("Coscheduling", "labels", "scheduling.x-k8s.io/pod-group"),
        ("Volcano", "annotations", "scheduling.k8s.io/group-name"),
        ("Kueue", "labels", "kueue.x-k8s.io/queue-name"),
        ("Kueue", "annotations", "kueue.x-k8s.io/retriable-in-group"),
    ],
)
def test_a_template_may_not_say_what_the_group_says(gang: str, kind: str, key: str) -> None:
    roles = {"worker": {"replicas": 2, "template": {"metadata": {kind: {key: "mine"}}}}}
    more = {"queue": "research"} if gang == "Kueue" else {}
    (fault,) = said(gang, roles=roles, **more)
    assert fault == (
        f"spec.replicaSpecs.worker.template.metadata.{kind}[{key}]: "
        "the operator sets this key, as runPolicy.schedulingPolicy asks: remove the key"
    )
    assert said("None", roles=roles) == []


@given(
    st.sampled_from(["Coscheduling", "Volcano", "Kueue"]),
    st.dictionaries(
        st.sampled_from(["requests", "limits", "x"]),
        st.none() | st.text(max_size=3) | st.lists(st.integers()),
    ),
)
def test_no_template_makes_the_plan_raise(gang: str, resources: dict[str, Any]) -> None:
    roles = {"worker": {"replicas": 2, **template(containers=[{"name": "trainer", "resources": resources}])}}
    assert plan(gang, replicaSpecs=roles).pods


# --- PodGroups ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [{}, PS, TORCH], ids=["horovod", "parameter-server", "torch"])
@pytest.mark.parametrize("gang", POD_GROUPS)
def test_pod_groups_are_what_their_definitions_take(gang: str, spec: dict[str, Any]) -> None:
    for more in ({}, {"minAvailable": 2, "priorityClassName": "research"}):
        group = plan_job(job(**policy(gang, **more) | spec)).pod_group
        assert group is not None
        assert list(schema_faults(schema_of(group["apiVersion"]), group)) == []


@pytest.mark.parametrize("gang", POD_GROUPS)
def test_a_launcher_that_waits_for_the_workers_is_no_member(gang: str) -> None:
    made = plan(gang)
    launcher = made.pod(made.shape.stages[1][0])

    assert made.pod_group is not None
    assert made.pod_group["spec"]["minMember"] == 2 == len(made.shape.stages[0])
    marks = {**launcher["metadata"]["labels"], **launcher["metadata"].get("annotations", {})}
    assert made.pod_group["metadata"]["name"] not in [
        value for key, value in marks.items() if key.endswith(("pod-group", "group-name"))
    ]


@pytest.mark.parametrize("gang", POD_GROUPS)
def test_where_all_pods_are_created_first_all_are_members(gang: str) -> None:
    made = plan(gang, **TORCH)

    assert made.pod_group is not None
    assert made.pod_group["spec"]["minMember"] == 2
    group = made.pod_group["metadata"]["name"]
    for pod in made.pods:
        metadata = pod["metadata"]
        assert group in {**metadata["labels"], **metadata.get("annotations", {})}.values()


def test_room_is_asked_for_all_that_is_needed_also_the_launcher() -> None:
    worker = {"replicas": 3, "gpus": 2, "resources": {"requests": {"cpu": "250m", "memory": "1Gi"}}}
    launcher = {"resources": {"requests": {"cpu": "1", "memory": "512Mi"}}}
    made = plan("Coscheduling", replicaSpecs={"worker": worker, "launcher": launcher})

    assert made.pod_group is not None
    assert made.pod_group["spec"]["minResources"] == {
        "cpu": "1750m",
        "memory": str(3 * 2**30 + 2**29),
        "nvidia.com/gpu": "6",
    }


@pytest.mark.parametrize("gang", POD_GROUPS)
def test_an_evaluator_is_neither_a_member_nor_room_that_is_waited_for(gang: str) -> None:
    with_it, without = (
        plan(gang, **PS),
        plan(gang, **PS | {"replicaSpecs": {**PS["replicaSpecs"], "evaluator": {"replicas": 0}}}),
    )  # type: ignore[dict-item]
    assert with_it.pod_group == without.pod_group


def test_a_template_names_another_scheduler_and_priority() -> None:
    roles = {"worker": {"replicas": 2, **template(schedulerName="ours", priorityClassName="mine")}}
    spec = policy("Coscheduling", priorityClassName="research") | {"replicaSpecs": roles}
    *workers, launcher = plan_job(job(**spec)).pods

    assert {(p["spec"]["schedulerName"], p["spec"]["priorityClassName"]) for p in workers} == {
        ("ours", "mine")
    }
    assert launcher["spec"]["priorityClassName"] == "research"


# --- Kueue --------------------------------------------------------------------------------------------


def groups(made: Plan) -> set[tuple[str | None, str | None]]:
    return {
        (
            pod["metadata"]["labels"].get("kueue.x-k8s.io/pod-group-name"),
            pod["metadata"].get("annotations", {}).get("kueue.x-k8s.io/pod-group-total-count"),
        )
        for pod in made.pods
    }


@pytest.mark.parametrize(("spec", "pods"), [({}, 3), (TORCH, 2)], ids=["horovod", "torch"])
def test_kueue_counts_all_pods_and_all_are_made_at_once(spec: dict[str, Any], pods: int) -> None:
    made = plan("Kueue", **spec)
    assert groups(made) == {("mnist-5b6a1f0e-1", str(pods))}
    assert [len(stage) for stage in made.shape.stages] == [pods]


def test_each_attempt_is_a_group_of_its_own() -> None:
    later = plan_job(job(status={"attempt": 7}, **policy("Kueue", queue="research")))
    assert groups(later) == {("mnist-5b6a1f0e-7", "3")}


def test_with_kueue_a_loss_starts_all_again_but_the_evaluators() -> None:
    made = plan("Kueue", **PS)
    needed = {"mnist-worker-0", "mnist-worker-1", "mnist-ps-0", "mnist-chief-0"}

    assert made.shape.restarts_with == dict.fromkeys(needed, needed) | {
        "mnist-evaluator-0": {"mnist-evaluator-0"}
    }
    assert groups(made) == {("mnist-5b6a1f0e-1", "4"), (None, None)}


@given(st.from_regex(r"[a-z]([-a-z0-9]{0,50}[a-z0-9])?", fullmatch=True), st.integers(1, 99999))
def test_names_of_groups_are_labels_and_differ_by_attempt(name: str, attempt: int) -> None:
    made = plan_job(
        read_job(manifest(name, **policy("Kueue", queue="research")) | {"status": {"attempt": attempt}})
    )
    ((group, _),) = groups(made)
    assert group is not None
    assert len(group) <= 63
    assert group.endswith(f"-5b6a1f0e-{attempt}")


def test_without_a_policy_nothing_of_it_is_in_the_plan() -> None:
    made = plan_job(job())
    assert made.pod_group is None
    assert {pod["spec"].get("schedulerName") for pod in made.pods} == {None}
    assert {pod["spec"].get("priorityClassName") for pod in made.pods} == {None}
