"""Sets of pods: a pass may leave out the pods that just train."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from dtj.plan.job import plan_job
from dtj.status.draft import earlier, present
from dtj.status.failure import is_complete, is_lost
from dtj.status.force_deletion import seconds_until_force_deletion
from dtj.status.observed import is_gated
from dtj.status.pods import Exit, PodSet, PodView, view_pod
from tests.unit.support.jobs import job
from tests.unit.support.pods import at, pod, running

SHAPES = {
    spec.get("strategy", "Horovod"): plan_job(job(**spec)).shape
    for spec in (
        {},
        {"strategy": "ParameterServer", "replicaSpecs": {"worker": {"replicas": 2}, "ps": {"replicas": 1}}},
    )
}
NAMES = [
    "mnist-launcher-0", "mnist-worker-0", "mnist-worker-1", "mnist-worker-7", "mnist-chief-0", "mnist-ps-0",
]  # fmt: skip
ENDS = st.builds(
    Exit,
    code=st.sampled_from([0, 1, 137]),
    signal=st.none(),
    reason=st.sampled_from(["", "OOMKilled"]),
    message=st.just(""),
    finished=st.none() | st.just("2026-11-21T12:00:00Z"),
)


@st.composite
def pods(draw: st.DrawFn) -> PodView:
    """A pod whose fields have any values, most of them those of a pod that trains."""
    made = view_pod(running(draw(st.sampled_from(NAMES)), attempt=draw(st.integers(1, 3))))
    others = {
        "phase": st.sampled_from(["Pending", "Succeeded", "Failed", "Unknown"]),
        "ready": st.just(False),
        "deleting": st.just(True),
        "delete_by": st.just("2026-11-21T12:00:00Z"),
        "reason": st.sampled_from(["Evicted", "WorkloadEvictedDueToDeactivated"]),
        "disrupted": st.just(True),
        "waiting": st.just(("SchedulingGated", "")),
        "exit": ENDS,
        "silent": st.just(True),
        "gates": st.just(("kueue.x-k8s.io/admission",)),
        "ended": st.just(True),
    }
    changed = draw(st.sets(st.sampled_from(sorted(others)), max_size=2))
    changed |= {"deleting", "delete_by"} if changed & {"deleting", "delete_by"} else set()
    return replace(made, grace_seconds=30.0, **{name: draw(others[name]) for name in sorted(changed)})


@given(pods())
def test_of_a_pod_that_is_not_unusual_nothing_is_to_be_said(one: PodView) -> None:
    if one.unusual:
        return
    assert one.running
    assert one.ready
    assert not any((one.succeeded, is_complete(one), is_lost(one), is_gated(one)))
    assert (one.told_to_end, one.waiting, one.exit, one.reason) == (None, None, None, "")
    assert seconds_until_force_deletion(one, at(1e6)) is None


def test_a_pod_that_trains_is_not_unusual() -> None:
    assert not view_pod(running(NAMES[1])).unusual
    assert view_pod(pod(NAMES[1])).unusual


@given(st.lists(pods(), max_size=6).map(PodSet), st.sampled_from(sorted(SHAPES)), st.integers(1, 3))
def test_pods_are_divided_by_their_attempts(some: PodSet, strategy: str, attempt: int) -> None:
    shape = SHAPES[strategy]
    others = attempt if shape.restarts_with is None else None

    assert [*present(shape, some, attempt)] == [
        each for each in some if each.attempt == shape.attempts.get(each.name, others)
    ]
    assert [*earlier(shape, some, attempt)] == [
        each for each in some if each.attempt < shape.attempts.get(each.name, attempt)
    ]


def test_the_facts_of_a_set_are_kept() -> None:
    some = PodSet([view_pod(running(name)) for name in NAMES] + [view_pod(pod(NAMES[0], attempt=2))])

    assert some.named is some.named
    assert some.unusual == (some[-1],)
    assert some.attempts == {1, 2}
    assert some.sizes == {"launcher": 2, "worker": 3, "chief": 1, "ps": 1}
