"""The benchmark of the first step: stages from the observed times."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.bench.first_step import STRATEGIES, TARGETS, Pods, ours, split
from tests.cluster.jobs import Job, Namespace

MOMENTS = {"API": 10.5, "sshd": 13.0, "workers: container, Python": 12.0, "ranks: imports, MPI_Init": 16.0}


def test_parts_follow_each_other_and_make_up_the_whole() -> None:
    parts = split(10.0, MOMENTS)

    assert parts == {
        "API": 0.5,
        "workers: container, Python": 1.5,
        "sshd": 1.0,
        "ranks: imports, MPI_Init": 3.0,
    }
    assert sum(parts.values()) == 16.0 - 10.0


def test_containers_and_imports_are_not_ours() -> None:
    assert ours(split(10.0, MOMENTS)) == 1.5


def test_each_strategy_has_a_target() -> None:
    assert [target.figure for target in TARGETS] == [*STRATEGIES]


def test_a_part_ends_with_the_last_pod_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = {
        "a": "2026-11-22T10:00:01.500000000Z rank 0 runs\n2026-11-22T10:00:04.000000000Z rank 0 runs\n",
        "b": "2026-11-22T10:00:03.250000000Z rank 1 runs\n",
    }

    def kubectl(self: Namespace, *words: str) -> str:
        return logs[words[1]]

    monkeypatch.setattr(Namespace, "kubectl", kubectl)

    def said(names: Sequence[str]) -> float:
        return Pods(Job(Namespace("x"), "job"), names).all_said(r"rank \d runs")

    assert said(["a", "b"]) - said(["a"]) == 1.75
