"""The places of record pods: which job gets one, beside many jobs of another namespace."""

from __future__ import annotations

import pytest

from dtj.reconcile.record import MOST_REMEMBERED, RecordPlaces
from dtj.reconcile.view import Key


class Places:
    """Places, whose clock the test sets, and the jobs that were woken."""

    def __init__(self, most: int = 16) -> None:
        self.now = 0.0
        self.woken: list[Key] = []
        self.places = RecordPlaces(most, self.woken.append, lambda: self.now)

    def taken(self, namespace: str, number: int) -> list[Key]:
        """The jobs of a namespace that got places, of this many that asked."""
        keys = [(namespace, f"{each}") for each in range(number)]
        return [key for key in keys if self.places.take(key)]


@pytest.mark.bound(
    "operator",
    "Who may create jobs, with a store that does not answer",
    "Record pods of one namespace",
    "12 of 16 at a time",
)
def test_one_namespace_leaves_places_for_another() -> None:
    world = Places()
    assert len(world.taken("noisy", 60)) == 12
    assert len(world.taken("quiet", 3)) == 3
    assert world.woken == []


def test_a_place_that_becomes_free_goes_to_the_namespace_with_fewest() -> None:
    world = Places()
    noisy = world.taken("noisy", 60)
    assert len(world.taken("other", 60)) == 4
    assert world.taken("quiet", 2) == []
    for key in noisy[:10]:
        world.places.leave(key)
    # noisy has 2 places, and then each has as many as the others want.
    assert world.woken[:2] == [("quiet", "0"), ("quiet", "1")]
    assert [key[0] for key in world.woken[2:]].count("other") == 3
    assert [key[0] for key in world.woken[2:]].count("noisy") == 5
    assert all(world.places.take(key) for key in world.woken)


def test_the_job_that_asked_first_is_first_and_who_asks_no_more_gets_nothing() -> None:
    world = Places(1)
    for name in ("a", "b", "c"):
        world.places.take(("ml", name))
    world.places.leave(("ml", "b"))
    world.places.leave(("ml", "a"))
    assert world.woken == [("ml", "c")]


@pytest.mark.parametrize(("seconds", "free"), [(599.0, False), (601.0, True)])
def test_a_job_whose_passes_break_off_loses_its_place(seconds: float, free: bool) -> None:
    world = Places(1)
    world.places.hold(("ml", "a"))
    world.now = seconds
    assert world.places.take(("ml", "b")) is free


@pytest.mark.bound(
    "operator",
    "Who may create jobs, with a store that does not answer",
    "Record pods of one namespace, after one that wrote nothing",
    "2 of 16 at a time, until one writes",
)
def test_a_namespace_whose_store_does_not_answer_has_few_places_until_it_answers() -> None:
    world = Places()
    silent = world.taken("silent", 60)
    world.places.ended("silent", wrote=False)
    for key in silent:
        world.places.leave(key)
    assert world.woken == [("silent", "12"), ("silent", "13")]
    assert len(world.taken("quiet", 60)) == 12

    world.places.ended("silent", wrote=True)
    world.places.leave(("silent", "12"))
    assert [key[0] for key in world.woken[2:]] == ["silent"] * 3


@pytest.mark.bound(
    "operator",
    "Who may create namespaces, with stores that do not answer",
    "Namespaces that the operator remembers for their silent stores",
    "1,000; the newest",
)
def test_of_namespaces_with_silent_stores_the_newest_are_remembered() -> None:
    world = Places()
    for number in range(3 * MOST_REMEMBERED):
        world.places.ended(f"ns-{number}", wrote=False)
    assert len(world.places._in_vain) == MOST_REMEMBERED
    assert len(world.taken("ns-0", 60)) == 12
    assert len(world.taken(f"ns-{3 * MOST_REMEMBERED - 1}", 60)) == 2
