"""The first of two passes that write shards in a random order: it brings together what comes into one shard.

A set of shards can't be read in a random order: each example would cost a request. The first pass reads the shards as
they lie, in pieces of the size of a shard, and writes each piece with the examples of one shard to be next to each
other. The second pass reads what a shard needs of each piece by one request, and shuffles it. A process needs memory
and disk for one piece, and the target twice the size of the set until the end.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dtj_trainer.data.errors import DataCorrupt
from dtj_trainer.data.index import SplitIndex
from dtj_trainer.data.origins import ShardsOrigin
from dtj_trainer.data.shard_work import NewShard, Scatter

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from dtj_trainer.data.index import DataIndex
    from dtj_trainer.data.shard_files import ShardRecord

FOLDER = "_scattered"
"""The folder, below the target, with the pieces of the first pass."""


def pieces(wanted: Sequence[NewShard], counts: Mapping[str, int]) -> Iterator[Scatter]:
    """Yield the pieces of a first pass, from which shards with the examples of `wanted` can be made."""
    for split, count in counts.items():
        of_split = [shard for shard in wanted if shard.split == split]
        numbers = np.empty(count, np.int64)
        for number, shard in enumerate(of_split):
            numbers[shard.ids] = number
        each = len(of_split[0].ids) if of_split else 1
        for number, first in enumerate(range(0, count, each)):
            key = f"{FOLDER}/{split}-{number:06d}.tar"
            yield Scatter(key, split, first, numbers[first : first + each])


def origin(uri: str, source: DataIndex, scattered: Mapping[str, Sequence[ShardRecord]]) -> ShardsOrigin:
    """Return the pieces as an origin, whose blocks are each of one piece and for one shard."""
    splits = {
        split: SplitIndex(
            tuple(record.shard for record in records),
            tuple(replace(block, shard=at) for at, record in enumerate(records) for block in record.blocks),
        )
        for split, records in scattered.items()
    }
    return ShardsOrigin(uri, replace(source, format="tar", splits=splits), single=True)


def shards(scattered: Mapping[str, Sequence[ShardRecord]], seed: int) -> Iterator[NewShard]:
    """Yield the shards of the second pass. Raises DataCorrupt where nothing of a split could be read."""
    for split, records in scattered.items():
        blocks = [block for record in records for block in record.blocks]
        if not blocks:
            raise DataCorrupt(f"no example for {split} can be read: {records[0].skipped[0]}")
        sizes = np.array([block.examples for block in blocks])
        starts = np.cumsum(sizes) - sizes
        of_shard = np.array([block.shard for block in blocks])
        first = 0
        for number in np.unique(of_shard).tolist():
            chosen = np.flatnonzero(of_shard == number)
            ids = np.concatenate([starts[at] + np.arange(sizes[at]) for at in chosen])
            mixed = np.random.default_rng([seed, number]).permutation(ids)
            yield NewShard(f"{split}/{number:06d}.tar", split, mixed, first)
            first += len(ids)
