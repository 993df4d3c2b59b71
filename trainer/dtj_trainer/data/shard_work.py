"""What the processes of `stage` do: write one shard, or describe one that exists."""

from __future__ import annotations

import functools
import hashlib
import zlib
from collections import Counter
from dataclasses import dataclass, replace
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from dtj_trainer.artifacts.s3 import NoSuchKey, S3Error
from dtj_trainer.artifacts.store import Store
from dtj_trainer.data.errors import DataCorrupt, DataNotFound, DataUnavailable
from dtj_trainer.data.formats import FORMATS
from dtj_trainer.data.formats.images import PictureForm, pixels_of
from dtj_trainer.data.index import Block, Shard, SplitIndex
from dtj_trainer.data.origins import ShardsOrigin
from dtj_trainer.data.shard_files import (
    PixelSums,
    ShardRecord,
    cut_shard,
    picture_file,
    stored_file,
    write_tar,
)
from dtj_trainer.data.sources import local_folder, s3_location
from dtj_trainer.data.targets import Target, open_target

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from dtj_trainer.data.index import DataIndex
    from dtj_trainer.data.origins import Origin


@dataclass(frozen=True)
class NewShard:
    """A shard to write. `ids`: the examples, in this order. `first`: the number of the first one in its split."""

    key: str
    split: str
    ids: np.ndarray
    first: int


@dataclass(frozen=True)
class Scatter:
    """Consecutive examples of a split, from the example `first` on, and the number of each one's later shard."""

    key: str
    split: str
    first: int
    shards: np.ndarray


@dataclass(frozen=True)
class OldShard:
    """A shard of the source."""

    key: str
    split: str
    format: str


@dataclass(frozen=True)
class ShardWork:
    """The options that all shards of a run share.

    `record`: the prefix of the names under which the target keeps what is finished; None keeps nothing. `decode`:
    decode each picture; otherwise pictures stay as they are, and their pixels are not summed up.
    """

    source: str
    target: str
    form: PictureForm
    record: str | None
    origin: Origin | None = None
    decode: bool = True
    skip_corrupt: bool = False

    def do(self, shard: NewShard | OldShard | Scatter) -> ShardRecord:
        """Write or describe a shard, and record it. Raises DataError or OSError."""
        if isinstance(shard, OldShard):
            record = self._describe(shard)
        else:
            record = self._write(shard) if isinstance(shard, NewShard) else self._scatter(shard)
        if self.record is not None:
            _target(self.target).write(self.record + record_name(shard.key), record.to_json())
        return record

    def _write(self, shard: NewShard) -> ShardRecord:
        assert self.origin
        sums, faults, labels = PixelSums(), list[str](), list[int]()

        def pictures(origin: Origin) -> Iterator[tuple[str, bytes, int]]:
            for where, example in origin.read(shard.split, shard.ids):
                try:
                    if isinstance(example, DataCorrupt):
                        raise example
                    if self.decode:
                        ending, content, pixels = picture_file(example, self.form, where=where)
                        sums.add(pixels)
                    else:
                        ending, content = stored_file(example)
                except DataCorrupt as error:
                    if not self.skip_corrupt:
                        raise
                    faults.append(str(error))
                    continue
                labels.append(example.label)
                yield ending, content, example.label

        with TemporaryDirectory(prefix="dtj-stage-") as folder:
            path = Path(folder, "shard.tar")
            write_tar(path, pictures(self.origin), shard.first)
            where = f"{self.target}/{shard.key}"
            sha256, blocks = cut_shard(path, FORMATS["tar"], where=where)
            if not blocks:
                raise DataCorrupt(f"{where}: none of its {len(shard.ids)} examples can be read: {faults[0]}")
            size = path.stat().st_size
            etag = _target(self.target).put(shard.key, path)
        at = iter(labels)
        histograms = tuple(dict(Counter(islice(at, block.examples))) for block in blocks)
        described = Shard(shard.key, size, etag, sha256)
        return ShardRecord(described, blocks, sums, max(labels) + 1, tuple(faults), histograms)

    def _scatter(self, piece: Scatter) -> ShardRecord:
        """Write a piece with the examples of each later shard next to each other. The field `shard` of a block is the
        later shard.
        """
        assert self.origin
        files, faults, sums = list[tuple[int, tuple[str, bytes, int]]](), list[str](), PixelSums()
        found = self.origin.read(piece.split, piece.first + np.arange(len(piece.shards)))
        for shard, (where, example) in zip(piece.shards.tolist(), found, strict=True):
            try:
                if isinstance(example, DataCorrupt):
                    raise example
                ending, content, pixels = picture_file(example, self.form, where=where)
            except DataCorrupt as error:
                if not self.skip_corrupt:
                    raise
                faults.append(str(error))
                continue
            sums.add(pixels)
            files.append((shard, (ending, content, example.label)))
        files.sort(key=itemgetter(0))
        blocks = list[Block]()
        with TemporaryDirectory(prefix="dtj-stage-") as folder:
            path = Path(folder, "piece.tar")
            ends = iter(write_tar(path, map(itemgetter(1), files), 0))
            offset = 0
            with path.open("rb") as file:
                for shard, group in groupby(files, key=itemgetter(0)):
                    count = sum(1 for _ in group)
                    end = next(islice(ends, count - 1, None))
                    blocks.append(
                        Block(shard, offset, end - offset, count, zlib.crc32(file.read(end - offset)))
                    )
                    offset = end
                file.seek(0)
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            size = path.stat().st_size
            etag = _target(self.target).put(piece.key, path)
        return ShardRecord(Shard(piece.key, size, etag, sha256), tuple(blocks), sums, 0, tuple(faults))

    def _describe(self, shard: OldShard) -> ShardRecord:
        where = f"{self.source.rstrip('/')}/{shard.key}"
        with TemporaryDirectory(prefix="dtj-stage-") as folder:
            path, etag = local_copy(self.source, shard.key, Path(folder))
            sha256, blocks = cut_shard(path, FORMATS[shard.format], where=where)
            record = ShardRecord(Shard(shard.key, path.stat().st_size, etag, sha256), blocks, PixelSums(), 0)
            return self._read_blocks(path, shard, record, where)

    def _read_blocks(self, path: Path, shard: OldShard, record: ShardRecord, where: str) -> ShardRecord:
        sums, most, blocks, faults = PixelSums(), 0, list[Block](), list[str]()
        histograms = list[dict[int, int]]()
        with path.open("rb") as file:
            for block in record.blocks:
                file.seek(block.offset)
                place = f"{where}, block at byte {block.offset}"
                labels = Counter[int]()
                try:
                    for number, example in enumerate(
                        FORMATS[shard.format].examples(file.read(block.length), where=place)
                    ):
                        most = max(most, example.label + 1)
                        labels[example.label] += 1
                        if self.decode:
                            sums.add(
                                pixels_of(example.picture, self.form, where=f"{place}, example {number}")
                            )
                    blocks.append(block)
                    histograms.append(dict(labels))
                except DataCorrupt as error:
                    if not self.skip_corrupt:
                        raise
                    faults.append(f"{error} (all {block.examples} examples of the block are left out)")
        return replace(
            record,
            sums=sums,
            labels=most,
            blocks=tuple(blocks),
            skipped=tuple(faults),
            histograms=tuple(histograms),
        )


def record_name(key: str) -> str:
    """Return the name of a shard's record."""
    return key.replace("/", "-") + ".json"


@functools.cache
def _target(uri: str) -> Target:
    return open_target(uri)


def local_copy(uri: str, key: str, folder: Path) -> tuple[Path, str | None]:
    """Return the path of a shard on this machine, and its ETag; fetch a shard of S3 into `folder`."""
    local = local_folder(uri)
    if local:
        return local / key, None
    store, path = Store(s3_location(uri)), folder / "shard"
    try:
        etag = store.etag(key)
        store.get_with_sha256(key, path)
    except NoSuchKey as error:
        raise DataNotFound(str(error)) from error
    except S3Error as error:
        raise (DataUnavailable if error.transient else DataNotFound)(str(error)) from error
    return path, etag


# The first of two passes that write shards in a random order groups the examples by their later shard.
#
# A set of shards can't be read in a random order: each example would cost a request. The first pass reads the shards
# as they lie, in pieces of the size of a shard, and writes each piece with the examples of one shard to be next to
# each other. The second pass reads what a shard needs of each piece by one request, and shuffles it. A process needs
# memory and disk for one piece, and the target twice the size of the set until the end.

FOLDER = "_scattered"
"""The folder, below the target, with the pieces of the first pass."""


def scatter_pieces(wanted: Sequence[NewShard], counts: Mapping[str, int]) -> Iterator[Scatter]:
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


def origin_of_scattered(
    uri: str, source: DataIndex, scattered: Mapping[str, Sequence[ShardRecord]]
) -> ShardsOrigin:
    """Return the pieces as an origin. Each of its blocks has the examples of one piece for one later shard."""
    splits = {
        split: SplitIndex(
            tuple(record.shard for record in records),
            tuple(replace(block, shard=at) for at, record in enumerate(records) for block in record.blocks),
        )
        for split, records in scattered.items()
    }
    return ShardsOrigin(uri, replace(source, format="tar", splits=splits), single=True)


def scattered_shards(scattered: Mapping[str, Sequence[ShardRecord]], seed: int) -> Iterator[NewShard]:
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
