"""Random jobs: only the project's own errors are raised, and the amount of work is bounded.

`make fuzz` tries many more, and measures time and memory.
"""

from __future__ import annotations

import random

import pytest

from dtj.api.job import read_job
from tests.fuzz.specs import made
from tests.fuzz.trial import Seen, tried
from tests.unit.support.jobs import manifest

SEED = 20261123
FEW, PASSES = 4, 12
"""Replicas of a role, and passes: more are more of the same."""


@pytest.mark.parametrize("tenth", range(10))
def test_no_job_breaks_the_webhook_the_job_file_the_plan_or_a_pass(tenth: int) -> None:
    total = Seen()
    for number in range(tenth * 50, tenth * 50 + 50):
        before = made(SEED, number + 1, FEW) if number % 4 == 0 else None
        seen = tried(made(SEED, number, FEW), before, random.Random(number), PASSES)
        assert seen.wrong == [], f"job {number}: python -m tests.fuzz --seed {SEED} --only {number}"
        total.what += seen.what

    assert total.what["planned"] >= 1, "some of them are valid"
    assert total.what["review: refused"] >= 10, "some of them are not"
    assert total.what["pods made"] <= 50 * 3 * FEW


def test_a_job_of_a_number_is_the_same_each_time() -> None:
    assert repr(made(SEED, 7)) == repr(made(SEED, 7))
    assert len({repr(made(SEED, number)) for number in range(20)}) > 15


@pytest.mark.parametrize("odd", ["é", [1], 1.5])
def test_a_status_and_a_generation_that_are_none_are_left_out(odd: object) -> None:
    wrong = manifest() | {"status": odd}
    wrong["metadata"]["generation"] = odd
    read = read_job(wrong)

    assert (read.status, read.generation) == (read_job(manifest()).status, 0)
