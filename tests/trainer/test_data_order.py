"""The order of blocks and windows: a permutation, local, the same from any position, in little memory."""

from __future__ import annotations

import tracemalloc

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.trainer.example_sets import Blocked, pictures

from dtj_trainer.data.order import RUN, Order
from dtj_trainer.data.sharding import Sharding, slice_of
from dtj_trainer.train.batches import Batch, Batches, picture_batches

BLOCKS = st.lists(st.integers(0, 9), min_size=1, max_size=40).map(np.array)


def ids_of(order: Order, position: int = 0) -> np.ndarray:
    return np.concatenate([part.ids for part in order.windows(position)] or [np.zeros(0, np.int64)])


@given(blocks=BLOCKS, seed=st.integers(0, 2**64), epoch=st.integers(0, 3), window=st.integers(1, 50))
def test_an_order_is_a_permutation_within_windows(
    blocks: np.ndarray, seed: int, epoch: int, window: int
) -> None:
    order = Order(blocks, seed=seed, epoch=epoch, window=window)
    assert len(order) == blocks.sum()
    assert sorted(ids_of(order)) == list(range(len(order)))
    block_of = np.repeat(np.arange(len(blocks)), blocks)
    seen: set[int] = set()
    for part in order.windows():
        here = set(block_of[part.ids].tolist())
        assert len(here) <= window
        assert not here & seen, "a block is in two windows"
        seen |= here
        places = {tuple(pair) for pair in zip(block_of[part.ids].tolist(), part.places.tolist(), strict=True)}
        assert len(places) == len(here)


@given(blocks=BLOCKS, seed=st.integers(0, 9), window=st.integers(RUN, 50))
def test_a_window_has_whole_runs(blocks: np.ndarray, seed: int, window: int) -> None:
    order = Order(blocks, seed=seed, epoch=0, window=window)
    runs = np.repeat(np.arange(len(blocks)) // RUN, blocks)
    found = [set(runs[part.ids].tolist()) for part in order.windows()]
    assert sum(map(len, found)) == len(set().union(*found)), "a run is in two windows"


@given(BLOCKS, st.integers(1, 50), st.integers(1, 60), st.data())
def test_an_order_goes_on_from_any_position(
    blocks: np.ndarray, window: int, size: int, data: st.DataObject
) -> None:
    order = Order(blocks, seed=3, epoch=1, window=window)
    whole = ids_of(order)
    position = data.draw(st.integers(0, len(order)))
    np.testing.assert_array_equal(ids_of(order, position), whole[position:])
    steps = [part.ids for part in order.steps(size, position)]
    np.testing.assert_array_equal(np.concatenate([*steps, whole[:0]]), whole[position:])
    assert [len(step) for step in steps[:-1]] == [size] * (len(steps) - 1)


@given(BLOCKS, st.integers(1, 50), st.data())
def test_blocks_ahead_are_those_of_two_windows(blocks: np.ndarray, window: int, data: st.DataObject) -> None:
    order = Order(blocks, seed=3, epoch=1, window=window)
    position = data.draw(st.integers(0, len(order)))
    block_of = np.repeat(np.arange(len(blocks)), blocks)
    parts = [set(block_of[part.ids].tolist()) for part in order.windows(position)][:2]
    ahead = order.blocks_ahead(position).tolist()
    assert len(ahead) == len(set(ahead)) <= 2 * window
    assert set().union(*parts) <= set(ahead)
    if parts:
        assert parts[0] <= set(ahead[:window])


def test_one_block_has_the_order_of_earlier_releases() -> None:
    for seed in (1, 2**31, 2**40):
        for epoch in range(3):
            before = np.random.default_rng([seed, epoch]).permutation(50)
            np.testing.assert_array_equal(ids_of(Order(np.array([50]), seed=seed, epoch=epoch)), before)


def test_orders_differ_by_seed_and_by_epoch() -> None:
    blocks = np.full(20, 5)
    orders = [Order(blocks, seed=seed, epoch=epoch, window=4) for seed in range(3) for epoch in range(3)]
    assert len({tuple(ids_of(order)) for order in orders}) == 9
    assert len({tuple(order._permuted) for order in orders}) == 9


def test_memory_grows_with_blocks_and_not_with_examples() -> None:
    blocks = np.full(2_000, 10_000)
    tracemalloc.start()
    order = Order(blocks, seed=1, epoch=0, window=8)
    steps = order.steps(256, 15_000_000)
    assert len(next(steps).ids) == 256
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # A window has 80,000 examples: numbers and places of one that is held and one that is made are 2.6 MB.
    assert peak < 10_000_000 < 8 * blocks.sum() / 10


@given(
    ranks=st.integers(1, 8),
    batch=st.integers(16, 64),
    window=st.sampled_from([16, 64]),
    seed=st.integers(0, 9),
)
def test_a_rank_reads_its_share_of_the_blocks(ranks: int, batch: int, window: int, seed: int) -> None:
    blocks = np.full(2 * window, 40)
    touched = []
    for rank in range(ranks):
        sharding = Sharding(blocks, batch, rank=rank, ranks=ranks, seed=seed, window=window)
        ids = np.concatenate([share.indices[: share.count] for share in sharding.epoch(0)])
        touched.append(len(np.unique(ids // 40)))
    # Chance moves the cut between two ranks by a few blocks: by the deviation of a rank's examples, on either side.
    cut = 4 * window / np.sqrt(batch * ranks)
    assert max(touched) <= len(blocks) / ranks + 2 * 2 * cut + 2
    assert sum(touched) <= len(blocks) + 2 * (ranks - 1) * 2 * cut + 2 * ranks


@given(st.integers(1, 300), st.integers(1, 12))
def test_a_test_counts_each_example_once(examples: int, ranks: int) -> None:
    slices = [slice_of(examples, rank=rank, ranks=ranks) for rank in range(ranks)]
    np.testing.assert_array_equal(np.concatenate(slices), np.arange(examples))
    sizes = [len(each) for each in slices]
    assert max(sizes) - min(sizes) <= 1


def test_positions_belong_to_an_order() -> None:
    def name(blocks: np.ndarray | int, seed: int = 1, window: int = 4, ranks: int = 1) -> str:
        return Sharding(blocks, 4, rank=0, ranks=ranks, seed=seed, window=window).name

    blocks = np.array([5, 5])
    assert name(blocks) == name(blocks, ranks=2) != name(blocks, seed=2)
    assert len({name(blocks), name(np.array([4, 6])), name(10), name(blocks, window=1)}) == 4
    assert name(10) == name(np.array([10]), window=9), "the window does not matter to a single block"


class Skipping(Blocked):
    """Every third example can't be read."""

    def read(self, ids: np.ndarray) -> object:  # type: ignore[override]
        found = super().read(ids)
        found.labels[ids % 3 == 0] = -1
        return found


def test_examples_that_are_skipped_count_for_nothing() -> None:
    made: list[list[Batch[np.ndarray]]] = []
    for rank in range(2):
        examples = Skipping(pictures(31), np.array([10, 11, 10]))
        sharding = Sharding(examples.blocks, 3, rank=rank, ranks=2, seed=1)
        batches: Batches[np.ndarray] = picture_batches(
            examples, sharding, lambda _, labels: labels, workers=1, augment=True, seed=1
        )
        made.append(list(batches.epoch(0, 0)))
    counted = [batch.data[: batch.share.count] for rank in made for batch in rank]
    assert sorted(np.concatenate(counted)) == [id_ for id_ in range(31) if id_ % 3]
    for step in zip(*made, strict=True):
        assert all(len(batch.data) == len(batch.share.indices) >= 1 for batch in step)
        assert {batch.share.total for batch in step} == {6 if step[0].share.position < 31 else 1}
