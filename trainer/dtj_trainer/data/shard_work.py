"""What the processes of `stage` do: write one shard, or describe one that exists."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from dtj_trainer.artifacts.s3 import NoSuchKey, S3Error
from dtj_trainer.artifacts.store import Store
from dtj_trainer.data.errors import DataCorrupt, DataNotFound, DataUnavailable
from dtj_trainer.data.formats import FORMATS
from dtj_trainer.data.formats.images import Form, pixels_of
from dtj_trainer.data.index import Block, Shard
from dtj_trainer.data.shard_files import ShardRecord, Sums, cut_shard, picture_file, write_tar
from dtj_trainer.data.sources import local_folder, s3_location
from dtj_trainer.data.targets import Target, open_target

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    from dtj_trainer.data.origins import Origin


@dataclass(frozen=True)
class NewShard:
    """A shard to write. `ids`: the examples, in this order. `first`: the number of the first one in its split."""

    key: str
    split: str
    ids: np.ndarray
    first: int


@dataclass(frozen=True)
class OldShard:
    """A shard that exists."""

    key: str
    split: str
    format: str


@dataclass(frozen=True)
class Work:
    """What is common to all shards of a run.

    `record`: the prefix of the names under which the target keeps what is finished; None keeps nothing. `decode`: of
    shards that exist, decode each picture.
    """

    source: str
    target: str
    form: Form
    record: str | None
    origin: Origin | None = None
    decode: bool = True
    skip_corrupt: bool = False

    def do(self, shard: NewShard | OldShard) -> ShardRecord:
        """Write or describe a shard, and record it. Raises DataError or OSError."""
        record = self._write(shard) if isinstance(shard, NewShard) else self._describe(shard)
        if self.record is not None:
            _target(self.target).write(self.record + record_name(shard.key), record.to_json())
        return record

    def _write(self, shard: NewShard) -> ShardRecord:
        assert self.origin
        sums, faults = Sums(), list[str]()
        most = 0

        def pictures(origin: Origin) -> Iterator[tuple[str, bytes, int]]:
            nonlocal most
            for where, example in origin.read(shard.split, shard.ids):
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
                most = max(most, example.label + 1)
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
        return ShardRecord(Shard(shard.key, size, etag, sha256), blocks, sums, most, tuple(faults))

    def _describe(self, shard: OldShard) -> ShardRecord:
        where = f"{self.source.rstrip('/')}/{shard.key}"
        with TemporaryDirectory(prefix="dtj-stage-") as folder:
            path, etag = local_copy(self.source, shard.key, Path(folder))
            sha256, blocks = cut_shard(path, FORMATS[shard.format], where=where)
            record = ShardRecord(Shard(shard.key, path.stat().st_size, etag, sha256), blocks, Sums(), 0)
            return self._read_blocks(path, shard, record, where)

    def _read_blocks(self, path: Path, shard: OldShard, record: ShardRecord, where: str) -> ShardRecord:
        sums, most, blocks, faults = Sums(), 0, list[Block](), list[str]()
        with path.open("rb") as file:
            for block in record.blocks:
                file.seek(block.offset)
                place = f"{where}, block at byte {block.offset}"
                try:
                    for number, example in enumerate(
                        FORMATS[shard.format].examples(file.read(block.length), where=place)
                    ):
                        most = max(most, example.label + 1)
                        if self.decode:
                            sums.add(
                                pixels_of(example.picture, self.form, where=f"{place}, example {number}")
                            )
                    blocks.append(block)
                except DataCorrupt as error:
                    if not self.skip_corrupt:
                        raise
                    faults.append(f"{error} (all {block.examples} examples of the block are left out)")
        return replace(record, sums=sums, labels=most, blocks=tuple(blocks), skipped=tuple(faults))


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
