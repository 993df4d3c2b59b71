"""`python -m dtj_trainer.data.stage SRC DST`: write a set as shuffled tar shards with an index, in parallel.

An interrupted run continues with the shards that are missing. Without DST, shards that exist get an index beside them.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from dtj_trainer.data.errors import DataCorrupt, DataNotFound, exit_on_data_error
from dtj_trainer.data.formats import FORMATS
from dtj_trainer.data.formats.images import Form
from dtj_trainer.data.index import INDEX_NAME, DataIndex, SplitIndex
from dtj_trainer.data.layouts import layout_of, shards_of
from dtj_trainer.data.origins import (
    Origin,
    ShardsOrigin,
    files_at,
    fingerprint,
    open_folder,
    open_whole,
)
from dtj_trainer.data.shard_files import ShardRecord, Sums, picture_file
from dtj_trainer.data.shard_work import NewShard, OldShard, Work, begin, do, record_name
from dtj_trainer.data.targets import Target, open_target
from dtj_trainer.data.whole import class_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

RECORDS = "_staging"
"""The folder, below the target, with what an interrupted run has finished."""
SHARD_MEGABYTES = 128
_SAMPLES = 64
"""Examples whose mean size tells how many examples make a shard."""


@dataclass(frozen=True)
class Options:
    """What the command line says. `shard_bytes`: the size of a shard, about."""

    source: str
    target: str
    shard_bytes: int
    seed: int
    processes: int
    form: Form
    classes: tuple[str, ...]
    skip_corrupt: bool


def stage(options: Options) -> DataIndex:
    """Stage a set; return its index. Raises DataError."""
    target = open_target(options.target)
    written = target.read(INDEX_NAME)
    if written is not None:
        _tell(f"{options.target} has an index already: nothing was written")
        return DataIndex.from_json(written, where=f"{options.target}/{INDEX_NAME}")
    if options.target == options.source:
        return _index_in_place(options, target)
    origin = _origin(options)
    form = replace(options.form, channels=options.form.channels or origin.channels)
    record = f"{RECORDS}/{_digest(options, fingerprint(origin, options.source))}-"
    work = Work(
        options.source, options.target, form, record, origin=origin, skip_corrupt=options.skip_corrupt
    )
    records = _all(work, list(_new_shards(options, origin, form)), options.processes, target)
    return _finish(target, "tar", origin.classes, records)


def _origin(options: Options) -> Origin:
    """Find out what lies at the source. Shards without an index are read once, to find their blocks."""
    written = open_target(options.source).read(INDEX_NAME)
    if written is not None:
        index = DataIndex.from_json(written, where=f"{options.source}/{INDEX_NAME}")
    elif shards_of(files_at(options.source).names)[0]:
        index = _described(options, decode=False, target=None)
    else:
        return open_folder(options.source, options.classes) or open_whole(options.source, options.classes)
    if options.classes:
        raise DataNotFound(f"{options.source} holds shards: --classes chooses among folders, idx and CIFAR files")
    return ShardsOrigin(options.source, index)


def _index_in_place(options: Options, target: Target) -> DataIndex:
    if options.classes or options.form.size:
        raise DataNotFound("--classes and --size change the examples: they need a DST")
    index = _described(options, decode=True, target=target)
    target.write(INDEX_NAME, index.to_json())
    _remove_records(target)
    return index


def _described(options: Options, *, decode: bool, target: Target | None) -> DataIndex:
    """Return the index of shards that exist."""
    names = files_at(options.source).names
    kind, splits = shards_of(names)
    layout = layout_of(names)
    if layout and layout.name in FORMATS:
        kind = layout.name
        splits = {"train": [choice[0] for choice in layout.train], "test": [choice[0] for choice in layout.test]}
    if "train" not in splits or "" in splits:
        raise DataNotFound(
            f"{options.source} has no shards with an index to be: a shard's path has the word train, test or "
            "validation"
        )
    form = replace(options.form, channels=options.form.channels or 3)
    prefix = f"{RECORDS}/{_digest(options, fingerprint_of_files(options.source))}-" if target else None
    work = Work(
        options.source, options.source, form, prefix, decode=decode, skip_corrupt=options.skip_corrupt
    )
    shards = [OldShard(key, split, kind) for split, keys in splits.items() for key in keys]
    records = _all(work, shards, options.processes, target)
    labels = max(record.labels for found in records.values() for record in found)
    return _index(kind, class_names(files_at(options.source), labels), records, form.channels or 3)


def _new_shards(options: Options, origin: Origin, form: Form) -> Iterator[NewShard]:
    for split in origin.counts:
        order = origin.order(split, options.seed)
        sample = origin.read(split, order[:_SAMPLES])
        sizes = [_size(where, example, form) for where, example in sample]
        each = max(1, int(options.shard_bytes / max(np.mean(sizes) + 2048, 1)))  # Two headers of tar, padded.
        for number, first in enumerate(range(0, len(order), each)):
            yield NewShard(f"{split}/{number:06d}.tar", split, order[first : first + each], first)
