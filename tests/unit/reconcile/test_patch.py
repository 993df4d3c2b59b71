"""Merge patches from the stored status to the new status."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dtj.reconcile.patch import merge_patch
from tests.unit.support.fake_cluster import apply_merge_patch

# JSON without null, which a merge patch can't say; the status is written without it.
VALUES = st.recursive(
    st.booleans() | st.integers(0, 3) | st.sampled_from(["", "x"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=10,
)
OBJECTS = st.dictionaries(st.sampled_from("abcd"), VALUES, max_size=4)


@settings(max_examples=200)
@given(OBJECTS, OBJECTS)
def test_applied_to_the_old_gives_the_new(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert apply_merge_patch(old, merge_patch(old, new)) == new


@settings(max_examples=100)
@given(OBJECTS, OBJECTS)
def test_is_empty_only_when_nothing_differs(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert (merge_patch(old, new) == {}) == (_strict(old) == _strict(new))


def _strict(value: Any) -> Any:
    # True == 1 in Python, and in a status that never meets.
    if isinstance(value, Mapping):
        return {key: _strict(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_strict(entry) for entry in value]
    return int(value) if isinstance(value, bool) else value


def test_names_only_what_differs() -> None:
    old = {"phase": "Running", "progress": {"step": 1, "loss": 0.5}, "failure": {"pod": "x"}}
    new = {"phase": "Running", "progress": {"step": 2, "loss": 0.5}}

    assert merge_patch(old, new) == {"progress": {"step": 2}, "failure": None}


def test_lists_are_replaced_as_a_whole() -> None:
    assert merge_patch({"conditions": [1, 2]}, {"conditions": [1, 3]}) == {"conditions": [1, 3]}
