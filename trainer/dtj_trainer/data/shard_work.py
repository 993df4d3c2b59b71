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
from dtj_trainer.data.formats.images import Form, pixels_of
from dtj_trainer.data.index import Block, Shard
from dtj_trainer.data.shard_files import ShardRecord, Sums, cut_shard, picture_file, stored_file, write_tar
from dtj_trainer.data.sources import local_folder, s3_location
from dtj_trainer.data.targets import Target, open_target

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    """Consecutive examples of a split, from the example `first` on, and the shard to be of each."""

    key: str
    split: str
    first: int
    shards: np.ndarray


@dataclass(frozen=True)
class OldShard:
    """A shard that exists."""

    key: str
    split: str
    format: str


@dataclass(frozen=True)
class Work:
    """What is common to all shards of a run.

    `record`: the prefix of the names under which the target keeps what is finished; None keeps nothing. `decode`:
    decode each picture; otherwise pictures stay as they are, and their pixels are not summed up.
    """

    source: str
    target: str
    form: Form
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
        sums, faults, labels = Sums(), list[str](), list[int]()

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
        """Write examples, those of one shard to be next to each other. The `shard` of a block is that shard."""
        assert self.origin
        files, faults, sums = list[tuple[int, tuple[str, bytes, int]]](), list[str](), Sums()
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
            record = ShardRecord(Shard(shard.key, path.stat().st_size, etag, sha256), blocks, Sums(), 0)
            return self._read_blocks(path, shard, record, where)

    def _read_blocks(self, path: Path, shard: OldShard, record: ShardRecord, where: str) -> ShardRecord:
        sums, most, blocks, faults = Sums(), 0, list[Block](), list[str]()
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
