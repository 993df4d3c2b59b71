"""Strategic merge of a pod template."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtj.plan.merge import merged

NAMES = st.sampled_from("abc")
LEAVES = st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from(["x", "y"])
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "name", "env", "containers", "args"]), inner, max_size=3)
    ),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.sampled_from(["a", "env", "containers", "args", "spec"]), VALUES, max_size=4)


def entries(names: st.SearchStrategy[str] = NAMES) -> st.SearchStrategy[list[dict[str, Any]]]:
    entry = st.fixed_dictionaries({"name": names}, optional={"value": st.integers(0, 9)})
    return st.lists(entry, max_size=4, unique_by=lambda e: e["name"])


def test_maps_are_merged_key_by_key() -> None:
    base = {"labels": {"a": "1", "b": "2"}, "kept": True}

    assert merged(base, {"labels": {"b": "3", "c": "4"}}) == {
        "labels": {"a": "1", "b": "3", "c": "4"},
        "kept": True,
    }


def test_null_removes_a_field() -> None:
    assert merged({"a": {"b": 1, "c": 2}}, {"a": {"b": None}}) == {"a": {"c": 2}}


def test_lists_with_a_merge_key_are_merged_by_it_and_keep_their_order() -> None:
    base = {"containers": [{"name": "trainer", "image": "x"}, {"name": "other"}]}
    patch = {"containers": [{"name": "sidecar"}, {"name": "trainer", "tty": True}]}

    assert merged(base, patch)["containers"] == [
        {"name": "trainer", "image": "x", "tty": True},
        {"name": "other"},
        {"name": "sidecar"},
    ]


def test_mounts_are_merged_by_path_and_ports_by_number() -> None:
    base = {"volumeMounts": [{"mountPath": "/a", "name": "x"}], "ports": [{"containerPort": 1, "name": "p"}]}
    patch = {"volumeMounts": [{"mountPath": "/a", "name": "y"}], "ports": [{"containerPort": 1, "name": "q"}]}

    assert merged(base, patch) == patch


def test_lists_without_a_merge_key_are_replaced() -> None:
    base = {"tolerations": [{"key": "a"}], "args": ["x", "y"]}

    assert merged(base, {"tolerations": [{"key": "b"}], "args": []}) == {
        "tolerations": [{"key": "b"}],
        "args": [],
    }


@pytest.mark.parametrize(
    ("base", "patch", "result"),
    [
        (
            {"readinessProbe": {"tcpSocket": {"port": 1}, "periodSeconds": 5}},
            {"readinessProbe": {"httpGet": {"port": 2}}},
            {"readinessProbe": {"httpGet": {"port": 2}, "periodSeconds": 5}},
        ),
        (
            {"readinessProbe": {"tcpSocket": {"port": 1}}},
            {"readinessProbe": {"periodSeconds": 1}},
            {"readinessProbe": {"tcpSocket": {"port": 1}, "periodSeconds": 1}},
        ),
        (
            {"env": [{"name": "A", "value": "x"}]},
            {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]},
            {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]},
        ),
        (
            {"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "a"}}}]},
            {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]},
            {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]},
        ),
        (
            {"volumes": [{"name": "v", "emptyDir": {"medium": "Memory"}}]},
            {"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Gi"}}]},
            {"volumes": [{"name": "v", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}]},
        ),
        (
            {"volumes": [{"name": "v", "emptyDir": {"medium": "Memory"}}]},
            {"volumes": [{"name": "v", "configMap": {"name": "c"}}]},
            {"volumes": [{"name": "v", "configMap": {"name": "c"}}]},
        ),
    ],
)
def test_one_of_several_fields_replaces_another(base: Any, patch: Any, result: Any) -> None:
    assert merged(base, patch) == result


def test_entries_without_their_key_are_left_for_the_server_to_refuse() -> None:
    assert merged({"env": [{"name": "A"}]}, {"env": ["A=1"]}) == {"env": ["A=1"]}
    assert merged({"env": [{"name": "A"}]}, {"env": [{"name": ["A"]}]}) == {"env": [{"name": ["A"]}]}


@settings(max_examples=100)
@given(OBJECTS, OBJECTS)
def test_never_raises_nor_changes_its_arguments(base: dict[str, Any], patch: dict[str, Any]) -> None:
    before = copy.deepcopy((base, patch))

    merged(base, patch)

    assert (base, patch) == before


@settings(max_examples=50)
@given(OBJECTS)
def test_an_empty_patch_changes_nothing_but_nulls(base: dict[str, Any]) -> None:
    assert merged(base, {}) == {key: value for key, value in base.items() if value is not None}


@settings(max_examples=100)
@given(entries(), entries())
def test_a_merged_list_has_each_name_once_and_what_either_side_says(
    base: list[dict[str, Any]], patch: list[dict[str, Any]]
) -> None:
    result = merged({"env": base}, {"env": patch})["env"]

    names = [entry["name"] for entry in result]
    assert names[: len(base)] == [entry["name"] for entry in base]
    assert sorted(names) == sorted({entry["name"] for entry in (*base, *patch)})
    for entry in patch:
        assert entry.items() <= next(e for e in result if e["name"] == entry["name"]).items()
    assert merged({"env": result}, {"env": patch})["env"] == result
