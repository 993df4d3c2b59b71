"""`python -m dtj_trainer.data.stage SRC DST`: write a set as shuffled tar shards with an index, in parallel.

An interrupted run continues with the shards that are missing. Without DST, shards that exist get an
index beside them.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from dtj_trainer.data import shard_work
from dtj_trainer.data.class_names import of_lines
from dtj_trainer.data.errors import DataCorrupt, DataNotFound, exit_on_data_error
from dtj_trainer.data.folders import PassedOver, beside
from dtj_trainer.data.formats.images import PictureForm
from dtj_trainer.data.index import INDEX_NAME, SPLITS, DataIndex, SplitIndex
from dtj_trainer.data.label_counts import counts_of
from dtj_trainer.data.layouts import shards_of
from dtj_trainer.data.mixing import sentence_of
from dtj_trainer.data.origins import (
    Origin,
    ShardsOrigin,
    files_at,
    fingerprint,
    open_dataset,
    open_folder,
)
from dtj_trainer.data.processes import in_processes
from dtj_trainer.data.shard_files import PixelSums, ShardRecord, picture_file
from dtj_trainer.data.shard_work import NewShard, OldShard, Scatter, ShardWork, record_name
from dtj_trainer.data.shards import shards_without_index
from dtj_trainer.data.stored_set import open_index
from dtj_trainer.data.targets import Target, open_target

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from dtj_trainer.data.formats.format import Example

RECORDS = "_staging"
"""The folder, below the target, with what an interrupted run has finished."""
SHARD_MEGABYTES = 128
ORDER = "permutation"
"""The name of the order of the shards' examples. A run does not continue what an earlier run with another order has
finished."""
_CLASS_NAMES = ("labels.txt", "batches.meta.txt", "fine_label_names.txt")
_SAMPLES, _SPOTS = 64, 8
"""The mean size of _SAMPLES examples, taken at _SPOTS places, determines how many examples make a shard."""


@dataclass(frozen=True)
class StageOptions:
    """The options of the command line. `shard_bytes`: the approximate size of a shard."""

    source: str
    target: str
    shard_bytes: int
    seed: int
    processes: int
    form: PictureForm
    classes: tuple[str, ...]
    skip_corrupt: bool


def stage(options: StageOptions) -> DataIndex:
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
    work = ShardWork(
        options.source, options.target, form, record, origin=origin, skip_corrupt=options.skip_corrupt
    )
    shards = list(_new_shards(options, origin, form))
    if isinstance(origin, ShardsOrigin):
        pieces = list(shard_work.scatter_pieces(shards, origin.counts))
        _tell(f"first pass: {len(pieces)} pieces of the shards at {options.source}")
        scattered = _all(work, pieces, options.processes, target)
        shards = list(shard_work.scattered_shards(scattered, options.seed))
        work = replace(
            work, origin=shard_work.origin_of_scattered(options.target, origin.index, scattered), decode=False
        )
        _tell(f"second pass: {len(shards)} shards")
    records = _all(work, shards, options.processes, target)
    if isinstance(origin, ShardsOrigin):
        sums = PixelSums()
        for piece in scattered["train"]:
            sums.merge(piece.sums)
        records["train"][0] = replace(records["train"][0], sums=sums)
    index = _finish(target, "tar", origin.classes, records, form.channels or 3)
    if isinstance(origin, ShardsOrigin):
        target.remove([each.key for each in pieces])
    return index


def _origin(options: StageOptions) -> Origin:
    """Find out what lies at the source. Shards without an index are read once, to find their blocks."""
    index = open_index(options.source)
    if index is None and shards_of(files_at(options.source).names)[1]:
        index = _described(options, decode=False, target=None)
    if index is None:
        origin = open_folder(options.source, options.classes) or open_dataset(options.source, options.classes)
        _tell_passed(origin.passed)
        return origin
    if options.classes:
        raise DataNotFound(
            f"{options.source} holds shards: --classes is for pictures in folders, idx files and CIFAR files only"
        )
    return ShardsOrigin(options.source, index)


def _index_in_place(options: StageOptions, target: Target) -> DataIndex:
    if options.classes or options.form.size:
        raise DataNotFound("--classes and --size change the examples: they need a DST")
    return _described(options, decode=True, target=target)


def _described(options: StageOptions, *, decode: bool, target: Target | None) -> DataIndex:
    """Return the index of shards that exist."""
    shards = shards_without_index(files_at(options.source))
    if not any(shard.split == "train" for shard in shards):
        raise DataNotFound(f"{options.source} has no shards for training: their paths have the word train")
    read = [*(shard.key for shard in shards), *_CLASS_NAMES, INDEX_NAME]
    _tell_passed(beside([name for name in files_at(options.source).names if RECORDS not in name], read))
    form = replace(options.form, channels=options.form.channels or 3)
    prefix = f"{RECORDS}/{_digest(options, files_at(options.source).fingerprint())}-" if target else None
    work = ShardWork(
        options.source, options.source, form, prefix, decode=decode, skip_corrupt=options.skip_corrupt
    )
    records = _all(work, shards, options.processes, target)
    labels = max(record.labels for found in records.values() for record in found)
    classes = _class_names(options.source, labels)
    if target:
        return _finish(target, shards[0].format, classes, records, form.channels or 3)
    return _index(shards[0].format, classes, records, form.channels or 3)


def _new_shards(options: StageOptions, origin: Origin, form: PictureForm) -> Iterator[NewShard]:
    for split in origin.counts:
        order = origin.order(split, options.seed)
        some = order[:_SAMPLES]
        if isinstance(origin, ShardsOrigin):  # Take neighbouring examples, which share a request.
            spots = np.linspace(0, len(order) - 1, _SPOTS).astype(int)[:, None]
            some = (spots + np.arange(_SAMPLES // _SPOTS)).ravel() % len(order)
        sample = origin.read(split, some)
        sizes = [_size(where, example, form) for where, example in sample]
        # Add 2048 bytes for the two tar headers and the padding of an example.
        each = max(1, int(options.shard_bytes / (sum(sizes) / len(sizes) + 2048)))
        for number, first in enumerate(range(0, len(order), each)):
            yield NewShard(f"{split}/{number:06d}.tar", split, order[first : first + each], first)


def _size(where: str, example: Example | DataCorrupt, form: PictureForm) -> int:
    """Return the bytes of an example as it will be stored; 0 if it can't be read."""
    try:
        return 0 if isinstance(example, DataCorrupt) else len(picture_file(example, form, where=where)[1])
    except DataCorrupt:
        return 0


def _all(
    work: ShardWork, shards: Sequence[NewShard | OldShard | Scatter], processes: int, target: Target | None
) -> dict[str, list[ShardRecord]]:
    """Write or describe all shards that no earlier run has finished; return the records of each split, in order."""
    finished = _finished(work, target)
    records = {shard.key: finished[name] for shard in shards if (name := record_name(shard.key)) in finished}
    left = [shard for shard in shards if shard.key not in records]
    if records:
        _tell(f"{len(records)} of {len(shards)} shards are finished already")
    for shard, record in in_processes(work, left, processes):
        records[shard.key] = record
        _tell(f"{len(records)} of {len(shards)} shards: {shard.key}, {record.shard.size / 1e6:.1f} MB")
    for record in records.values():
        for fault in record.skipped:
            _tell(f"skipped: {fault}")
    by_split: dict[str, list[ShardRecord]] = {}
    for shard in shards:
        by_split.setdefault(shard.split, []).append(records[shard.key])
    return by_split


def _finished(work: ShardWork, target: Target | None) -> dict[str, ShardRecord]:
    if target is None or work.record is None:
        return {}
    prefix = work.record.removeprefix(f"{RECORDS}/")
    return {
        name.removeprefix(prefix): ShardRecord.from_json(content)
        for name, content in target.read_all(RECORDS).items()
        if name.startswith(prefix)
    }


def _finish(
    target: Target,
    kind: str,
    classes: tuple[str, ...],
    records: Mapping[str, Sequence[ShardRecord]],
    channels: int,
) -> DataIndex:
    index = _index(kind, classes, records, channels)
    target.write(INDEX_NAME, index.to_json())
    _tell(sentence_of(index))
    target.remove([f"{RECORDS}/{name}" for name in target.read_all(RECORDS)])
    return index


def _index(
    kind: str, classes: tuple[str, ...], records: Mapping[str, Sequence[ShardRecord]], channels: int
) -> DataIndex:
    sums = PixelSums()
    for record in records["train"]:
        sums.merge(record.sums)
    splits = {
        split: SplitIndex(
            tuple(record.shard for record in found),
            tuple(
                replace(block, shard=number) for number, record in enumerate(found) for block in record.blocks
            ),
            _labels(found),
        )
        for split in SPLITS
        if (found := records.get(split))
    }
    unknown = (0.0,) * channels  # Without decoding the pictures, their mean and deviation are not known.
    return DataIndex(
        kind,
        classes,
        splits,
        sums.mean if sums.pixels else unknown,
        sums.deviation if sums.pixels else unknown,
    )


def _labels(records: Sequence[ShardRecord]) -> str | None:
    """Return the counts of labels of all blocks; None where an earlier release has recorded a shard."""
    if any(len(record.histograms) != len(record.blocks) for record in records):
        return None
    return counts_of([each for record in records for each in record.histograms]).text()


def _class_names(uri: str, labels: int) -> tuple[str, ...]:
    """Return the names in a file beside the shards that has one for each label, else numbers."""
    files = files_at(uri)
    for name in _CLASS_NAMES:
        if name in files.names:
            names = of_lines(files.read(name))
            if len(names) >= labels:
                return names
    return tuple(str(label) for label in range(labels))


def _digest(options: StageOptions, source: str) -> str:
    """Return an identifier of a run: a run does not use the records of another set, or of other options."""
    form = f"{ORDER} {options.form} {options.classes} {options.shard_bytes} {options.seed} {options.skip_corrupt}"
    return hashlib.sha256(f"{options.source} {form} {source}".encode()).hexdigest()[:12]


def _tell_passed(passed: PassedOver) -> None:
    if passed.counts:
        _tell(passed.sentence())


def _tell(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(prog="dtj data stage", description=__doc__)
    made.add_argument(
        "source", metavar="SRC", help="s3://bucket/prefix, file:///folder or a path: the set to read"
    )
    made.add_argument(
        "target",
        metavar="DST",
        nargs="?",
        help="where to write the shards; without it, SRC's shards stay as they are and get an index",
    )
    made.add_argument(
        "--shard-megabytes",
        type=float,
        default=SHARD_MEGABYTES,
        help="approximate size of a shard (default: %(default)s)",
    )
    made.add_argument(
        "--seed", type=int, default=1, help="seed of the order of the examples (default: %(default)s)"
    )
    made.add_argument(
        "--processes",
        type=int,
        default=len(os.sched_getaffinity(0)),
        help="number of processes (default: one per processor)",
    )
    made.add_argument(
        "--size",
        type=int,
        help="resize the shorter side of pictures to so many pixels, and cut out the "
        "middle; by default pictures stay as they are",
    )
    made.add_argument(
        "--channels",
        type=int,
        choices=(1, 3),
        help="1 for grey pictures, 3 for colours; the default is "
        "what idx and CIFAR files have, and 3 for picture files",
    )
    made.add_argument(
        "--classes", default="", help="names of the classes to take, separated by commas; by default all"
    )
    made.add_argument(
        "--orient",
        action="store_true",
        help="with --size: turn pictures as their EXIF orientation says; without it, a training can do so",
    )
    made.add_argument(
        "--skip-corrupt", action="store_true", help="leave out examples that can't be read, and name them"
    )
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Stage as the command line says; return the exit code."""
    given = parser().parse_args(arguments)
    options = StageOptions(
        given.source.rstrip("/"),
        (given.target or given.source).rstrip("/"),
        max(int(given.shard_megabytes * 1e6), 1),
        given.seed,
        max(given.processes, 1),
        PictureForm(given.size, given.channels, given.orient),
        tuple(name.strip() for name in given.classes.split(",") if name.strip()),
        given.skip_corrupt,
    )
    with exit_on_data_error():
        index = stage(options)
    counts = ", ".join(f"{split.examples} examples for {name}" for name, split in index.splits.items())
    print(f"{options.target}: {counts}, in {len(index.classes)} classes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
