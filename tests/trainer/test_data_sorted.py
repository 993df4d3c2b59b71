"""Sets that are sorted by class: their order mixes the classes nearly as a true shuffle, each example once."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.trainer.picture_formats import encoded, write_tar

from dtj_trainer.data import check, stage
from dtj_trainer.data.errors import DataCorrupt
from dtj_trainer.data.index import INDEX_NAME, DataIndex
from dtj_trainer.data.label_counts import LabelCounts, counts_of, from_text
from dtj_trainer.data.mixing import mixing
from dtj_trainer.data.order import Order
from dtj_trainer.data.pictures import load_pictures
from dtj_trainer.data.sharding import Sharding
from dtj_trainer.data.spread import RUN, SpreadOrder, Stock
from dtj_trainer.data.stored_set import open_stored_set
from dtj_trainer.train.batches import picture_batches

MIB = 1 << 20
PAIRS = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 4)), min_size=1, max_size=60)


def counted(labels: np.ndarray, each: int) -> LabelCounts:
    return counts_of([Counter(labels[at : at + each].tolist()) for at in range(0, len(labels), each)])


def spread(pairs: list[tuple[int, int]], size: int, ranks: int, epoch: int = 0) -> SpreadOrder:
    blocks, labels = (np.array(each) for each in zip(*pairs, strict=True))
    return SpreadOrder(blocks, Stock(labels, np.full(len(blocks), size)), seed=3, epoch=epoch, ranks=ranks)


@given(PAIRS, st.sampled_from([1, 20 * MIB, 300 * MIB]), st.integers(1, 5), st.integers(1, 30), st.data())
def test_each_example_comes_once_and_goes_on_from_any_position(
    pairs: list[tuple[int, int]], size: int, ranks: int, step: int, data: st.DataObject
) -> None:
    order = spread(pairs, size, ranks)
    whole = np.concatenate([part.ids for part in order.windows()])
    assert sorted(whole) == list(range(len(order)))
    position = data.draw(st.integers(0, len(order)))
    rest = [part.ids for part in spread(pairs, size, ranks).steps(step, position)]
    np.testing.assert_array_equal(np.concatenate([*rest, whole[:0]]), whole[position:])
    if position < len(whole):
        block = np.searchsorted(np.cumsum([n for n, _ in pairs]), whole[position], side="right")
        assert block in order.blocks_ahead(position)


@given(PAIRS, st.integers(1, 5), st.integers(1, 5), st.integers(1, 20), st.data())
def test_an_epoch_goes_on_with_other_ranks(
    pairs: list[tuple[int, int]], before: int, now: int, step: int, data: st.DataObject
) -> None:
    blocks, labels = (np.array(each) for each in zip(*pairs, strict=True))
    stock = Stock(labels, np.full(len(blocks), 20 * MIB))

    def made(ranks: int, rank: int) -> Sharding:
        return Sharding(blocks, 1, rank=rank, ranks=ranks, seed=1, step_size=step, stock=stock)

    first = [list(made(before, rank).epoch(1)) for rank in range(before)]
    done = data.draw(st.integers(0, len(first[0])))
    seen = [share.indices[: share.count] for shares in first for share in shares[:done]]
    position = first[0][done - 1].position if done else 0
    for rank in range(now):
        later = made(now, rank)
        later.begun(1, before)
        seen += [share.indices[: share.count] for share in later.epoch(1, position)]
        assert later.name == made(before, 0).name
    assert sorted(np.concatenate(seen)) == list(range(blocks.sum()))


@pytest.mark.parametrize(
    ("classes", "each", "block", "batch", "ranks"),
    [
        (10, 1000, 10, 32, 4),
        (10, 1000, 10, 32, 8),
        (10, 5000, 400, 64, 4),
        (130, 500, 200, 64, 4),
        (1000, 130, 9, 64, 4),
    ],
)
def test_a_sorted_set_is_mixed_nearly_as_by_a_true_shuffle(
    classes: int, each: int, block: int, batch: int, ranks: int
) -> None:
    counts = counted(np.repeat(np.arange(classes), each), block)
    sizes = np.full(len(counts.distinct), MIB)
    found = mixing(counts, sizes, batch, ranks)
    assert found.share >= 0.95, found.sentence()


@pytest.mark.parametrize(
    ("classes", "each", "block", "batch", "ranks"),
    [(10, 1000, 10, 32, 4), (130, 500, 200, 64, 4), (1000, 130, 9, 64, 4)],
)
def test_a_sorted_set_needs_no_more_bytes_and_few_more_requests(
    classes: int, each: int, block: int, batch: int, ranks: int
) -> None:
    counts = counted(np.repeat(np.arange(classes), each), block)
    blocks = np.bincount(counts.blocks, weights=counts.counts).astype(int)
    stock = Stock(counts.commonest(), np.full(len(blocks), MIB))
    block_of = np.repeat(np.arange(len(blocks)), blocks)
    asked, read, most = [], [], 0
    for run, own in ((4, None), (RUN, stock)):
        requests = 0
        size = 0
        for rank in range(ranks):
            first, last = {}, {}
            sharding = Sharding(blocks, batch, rank=rank, ranks=ranks, seed=1, stock=own)
            for step, share in enumerate(sharding.epoch(0)):
                for number in np.unique(block_of[share.indices] // run).tolist():
                    first.setdefault(number, step)
                    last[number] = step
            requests += len(first)
            size += sum(min(run, len(blocks) - run * number) for number in first)
            if own:
                held = np.zeros(max(last.values()) + 2)
                np.add.at(held, [*first.values()], run)
                np.add.at(held, [at + 1 for at in last.values()], -run)
                most = max(most, int(np.cumsum(held).max()))
        asked.append(requests)
        read.append(size)
    assert asked[1] <= 2 * asked[0]
    assert read[1] <= 1.02 * read[0]
    assert most <= 270, "blocks of 1 MiB that a rank holds at once"


def test_only_sorted_sets_count_as_sorted() -> None:
    chance = np.random.default_rng(1)
    for classes, each, block in ((2, 70, 6), (10, 500, 40), (1000, 30, 9), (4, 1000, 1), (3, 2, 2)):
        labels = np.repeat(np.arange(classes), each)
        assert counted(labels, block).is_sorted() == (classes * each > 6), (classes, each)
        for _ in range(20):
            assert not counted(chance.permutation(labels), block).is_sorted()
    assert not counted(np.zeros(100, int), 5).is_sorted(), "one class"


@given(
    st.lists(
        st.dictionaries(st.integers(0, 99), st.integers(1, 9), min_size=1, max_size=6),
        min_size=1,
        max_size=20,
    )
)
def test_counts_are_kept_in_an_index(histograms: list[dict[int, int]]) -> None:
    counts = counts_of(histograms)
    examples = np.array([sum(each.values()) for each in histograms])
    read = from_text(counts.text() or "", examples, 100)
    np.testing.assert_array_equal(read.labels, counts.labels)
    np.testing.assert_array_equal(read.counts, counts.counts)
    np.testing.assert_array_equal(read.distinct, counts.distinct)
    for text, these in (
        ("AAAA", examples),
        ((counts.text() or "")[:-8], examples),
        (counts.text() or "", examples + 1),
    ):
        with pytest.raises(
            ValueError,
            match=r"is not zlib data|is cut off|labels and counts, where|other numbers of examples",
        ):
            from_text(text, these, 100)
    with pytest.raises(ValueError, match="has the label"):
        from_text(counts.text() or "", examples, int(counts.labels.max()))


def test_a_sorted_set_is_told_and_old_indexes_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dtj_trainer.data.formats.format.BLOCK_BYTES", 4096)
    for split in ("train", "test"):
        pixels = np.random.default_rng(1).integers(0, 256, (120, 3, 16, 16)).astype("u1")
        folder = tmp_path / split
        folder.mkdir()
        write_tar(folder / "0.tar", encoded(pixels, np.repeat(np.arange(4), 30).tolist()))
    stage.main([str(tmp_path), "--processes", "1"])
    assert (
        "the shards are sorted by class; with 4 ranks of 64 examples, a step has 4 classes"
        in capsys.readouterr().err
    )
    check.main([str(tmp_path), "--processes", "1"])
    assert "the shards are sorted by class" in capsys.readouterr().err
    examples = load_pictures(str(tmp_path)).train
    assert examples.stock is not None
    assert examples.stock.labels[0] == 0
    found = examples.mixing(8, 2)
    assert found
    assert found.share > 0.9
    path = tmp_path / INDEX_NAME
    new = path.read_bytes()
    old = new.replace(b'"labels":', b'"other":')
    path.write_bytes(old)
    before = load_pictures(str(tmp_path)).train
    assert before.stock is None
    sharding = Sharding(before.blocks, 4, rank=0, ranks=1, seed=1, stock=before.stock)
    assert type(sharding.order(0)) is Order
    check.main([str(tmp_path), "--processes", "1"])
    assert "the index, of an earlier release, has no counts of labels" in capsys.readouterr().err
    path.write_bytes(new.replace(b'"labels":"', b'"labels":"AAAA'))
    with pytest.raises(DataCorrupt, match=r"splits.train.labels is .*the counts of labels of each block"):
        open_stored_set(str(tmp_path))
    assert DataIndex.from_json(old).to_json() != new


@pytest.mark.parametrize("stopped", [False, True])
def test_staging_sorted_shards_makes_a_permutation_in_two_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped: bool
) -> None:
    monkeypatch.setattr("dtj_trainer.data.formats.format.BLOCK_BYTES", 4096)
    source, target = tmp_path / "sorted", tmp_path / "to"
    pixels = np.random.default_rng(1).integers(0, 256, (240, 3, 8, 8)).astype("u1")
    labels = np.repeat(np.arange(4), 60)
    write_tar(source / "train/0.tar", encoded(pixels, labels.tolist()))
    write_tar(source / "test/0.tar", encoded(pixels[:4], [0, 1, 2, 3]))
    stage.main([str(source), "--processes", "1"])
    options = stage.StageOptions(str(source), str(target), 60_000, 1, 1, stage.PictureForm(), (), False)
    if stopped:
        write = stage.ShardWork._write
        monkeypatch.setattr(
            stage.ShardWork, "_write", lambda *_: (_ for _ in ()).throw(DataCorrupt("stopped"))
        )
        with pytest.raises(DataCorrupt, match="stopped"):
            stage.stage(options)
        monkeypatch.setattr(stage.ShardWork, "_write", write)
        monkeypatch.setattr(stage.ShardWork, "_scatter", None)  # The first pass is finished.
    index = stage.stage(options)
    assert len(index.splits["train"].shards) > 2
    assert sorted(path.name for path in target.iterdir()) == [INDEX_NAME, "test", "train"]
    train = load_pictures(str(target)).train
    found = train.read(np.arange(len(train)))
    order = [next(at for at in range(240) if np.array_equal(pixels[at], one)) for one in found.pixels]
    assert sorted(order) == list(range(240))
    np.testing.assert_array_equal(found.labels, labels[order])
    assert train.stock is None, "the new shards are not sorted"
    distances = np.abs(np.diff(order))
    assert 240 / 3 * 0.8 < distances.mean() < 240 / 3 * 1.2, "neighbours are as far apart as by chance"


def test_ranks_that_read_a_sorted_set_and_change_have_each_example_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dtj_trainer.data.formats.format.BLOCK_BYTES", 4096)
    monkeypatch.setattr("dtj_trainer.data.spread._OPEN_BYTES", 20_000)
    pixels = np.random.default_rng(1).integers(0, 256, (240, 3, 8, 8)).astype("u1")
    write_tar(tmp_path / "train/0.tar", encoded(pixels, np.repeat(np.arange(4), 60).tolist()))
    write_tar(tmp_path / "test/0.tar", encoded(pixels[:4], [0, 1, 2, 3]))
    stage.main([str(tmp_path), "--processes", "1"])
    seen: list[bytes] = []
    for ranks, position, steps in ((3, 0, 4), (2, 4 * 24, 99)):
        for rank in range(ranks):
            train = load_pictures(str(tmp_path)).train
            own = Sharding(train.blocks, 1, rank=rank, ranks=ranks, seed=1, step_size=24, stock=train.stock)
            if position:
                own.begun(0, 3)
                train.widen(1.5)
            batches = picture_batches(train, own, lambda found, _: found, workers=2, augment=False, seed=1)
            for batch in islice(batches.epoch(0, position), steps):
                seen += [each.tobytes() for each in batch.data[: batch.share.count]]
    assert sorted(seen) == sorted(each.tobytes() for each in pixels)
