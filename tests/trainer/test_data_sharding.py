"""The order of examples: shared among ranks, by epoch and seed, and after a resume."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtj_trainer.data.sharding import Sharding, Share, slice_of

SIZES = {
    "examples": st.integers(1, 300),
    "batch": st.integers(1, 40),
    "ranks": st.integers(1, 9),
    "epoch": st.integers(0, 3),
}


def shares(examples: int, batch: int, ranks: int, epoch: int, position: int = 0) -> list[list[Share]]:
    """Step by step, the shares of all ranks."""
    each = [
        list(Sharding(examples, batch, rank=rank, ranks=ranks, seed=7).epoch(epoch, position))
        for rank in range(ranks)
    ]
    assert len({len(mine) for mine in each}) == 1, "the ranks make different numbers of steps"
    return [list(step) for step in zip(*each, strict=True)]


@given(**SIZES)
def test_each_example_counts_once_an_epoch(examples: int, batch: int, ranks: int, epoch: int) -> None:
    steps = shares(examples, batch, ranks, epoch)
    seen = [index for step in steps for share in step for index in share.indices[: share.count]]
    assert sorted(seen) == list(range(examples))
    assert len(steps) == Sharding(examples, batch, rank=0, ranks=ranks, seed=7).steps()
    for step in steps:
        assert sum(share.count for share in step) == step[0].total
        assert all(len(share.indices) == max(share.count, 1) for share in step)


@given(**SIZES)
def test_the_ranks_of_a_step_make_the_batch_of_one_process(
    examples: int, batch: int, ranks: int, epoch: int
) -> None:
    together = [
        np.concatenate([share.indices[: share.count] for share in step])
        for step in shares(examples, batch, ranks, epoch)
    ]
    alone = [share.indices for (share,) in shares(examples, batch * ranks, 1, epoch)]
    assert len(together) == len(alone)
    for left, right in zip(together, alone, strict=True):
        np.testing.assert_array_equal(left, right)


@given(**SIZES, steps=st.integers(0, 20))
def test_a_resumed_epoch_goes_on_at_the_step(
    examples: int, batch: int, ranks: int, epoch: int, steps: int
) -> None:
    whole = shares(examples, batch, ranks, epoch)
    steps = min(steps, len(whole) - 1)
    position = whole[steps - 1][0].position if steps else 0
    rest = shares(examples, batch, ranks, epoch, position)
    assert len(rest) == len(whole) - steps
    for left, right in zip(itertools.chain(*rest), itertools.chain(*whole[steps:]), strict=True):
        np.testing.assert_array_equal(left.indices, right.indices)
        assert (left.count, left.total, left.position) == (right.count, right.total, right.position)


def test_a_resumed_epoch_on_other_ranks_leaves_nothing_out() -> None:
    done = shares(100, 8, 3, 0)[:2]
    rest = shares(100, 8, 2, 0, done[-1][0].position)
    seen = [index for step in [*done, *rest] for share in step for index in share.indices[: share.count]]
    assert sorted(seen) == list(range(100))


def test_epochs_and_seeds_differ() -> None:
    sharding = functools.partial(Sharding, 50, 50, rank=0, ranks=1)
    orders = {tuple(next(sharding(seed=s).epoch(e)).indices) for s in range(3) for e in range(3)}
    assert len(orders) == 9


def test_slices_cover_everything() -> None:
    slices = [slice_of(10, rank=rank, ranks=4) for rank in range(4)]
    assert sorted(np.concatenate(slices)) == list(range(10))


@pytest.mark.parametrize(("examples", "batch", "rank"), [(0, 1, 0), (5, 0, 0), (5, 1, 2)])
def test_nonsense_is_refused(examples: int, batch: int, rank: int) -> None:
    with pytest.raises(ValueError, match="can't share"):
        Sharding(examples, batch, rank=rank, ranks=2, seed=0)
