"""The index of a data set in shards: what the set holds, where each block of examples lies, and its checksums.

The index is one JSON object at INDEX_NAME below the set's URI. Everything that is read from it is validated.
"""

from __future__ import annotations

import json
import re
import reprlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dtj_trainer.data.class_names import distinct
from dtj_trainer.data.errors import DataCorrupt
from dtj_trainer.data.label_counts import LabelCounts, from_text

if TYPE_CHECKING:
    from collections.abc import Mapping

INDEX_NAME = "_dtj_index.json"
VERSION = 1
"""The version of new indexes, and the newest version that this release reads."""
SPLITS = ("train", "test", "validation")
BLOCK_FORMATS = ("tar", "tfrecord", "cifar10", "cifar100")
"""Formats whose shards can be cut into blocks. Sets of other formats are read whole, or staged to tar shards."""
BLOCK_BYTES = 1 << 20
"""A block ends at the first border of an example at or above this size; the last block of a shard is smaller."""
MAX_EXAMPLE_BYTES = 32 << 20
"""Limit of one example as it is stored. With it, a block has at most BLOCK_BYTES + MAX_EXAMPLE_BYTES."""
MAX_INDEX_BYTES = 256 << 20
MAX_CLASSES = 1_000_000
MAX_NAME_BYTES = 1024
_MAX_SHARD_BYTES = 50 << 40


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive examples of a shard.

    `shard` is the shard's place in the split. `offset` and `length` are in bytes. `crc32` is zlib's, of the
    block's bytes.
    """

    shard: int
    offset: int
    length: int
    examples: int
    crc32: int


@dataclass(frozen=True, slots=True)
class Shard:
    """One object of a set. `key` is relative to the set's URI. `size` is in bytes. `sha256` is in hex digits."""

    key: str
    size: int
    etag: str | None
    sha256: str


@dataclass(frozen=True)
class SplitIndex:
    """The shards of a split, and their blocks in the order of the examples' numbers.

    `labels`: the text of `LabelCounts`; None in indexes of releases that did not count, and of very large splits.
    """

    shards: tuple[Shard, ...]
    blocks: tuple[Block, ...]
    labels: str | None = None

    def label_counts(self) -> LabelCounts | None:
        """Return how many examples of each label each block has, if the index knows."""
        examples = np.array([block.examples for block in self.blocks])
        return None if self.labels is None else from_text(self.labels, examples, MAX_CLASSES)

    @property
    def examples(self) -> int:
        """The number of examples of the split."""
        return sum(block.examples for block in self.blocks)


@dataclass(frozen=True)
class DataIndex:
    """What a data set in shards holds.

    A label is a place in `classes`. `splits` has `train`, and may have `test` and `validation`. `mean` and
    `deviation` are those of each channel of the pixels of `train`, divided by 255.
    """

    format: str
    classes: tuple[str, ...]
    splits: Mapping[str, SplitIndex]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def to_json(self) -> bytes:
        """Serialize the index as it is stored. A block is a list of its five numbers, because there are many."""
        content = {
            "version": VERSION,
            "format": self.format,
            "classes": self.classes,
            "mean": self.mean,
            "deviation": self.deviation,
            "splits": {
                name: {
                    "shards": [
                        {"key": shard.key, "size": shard.size, "etag": shard.etag, "sha256": shard.sha256}
                        for shard in split.shards
                    ],
                    "blocks": [
                        (block.shard, block.offset, block.length, block.examples, block.crc32)
                        for block in split.blocks
                    ],
                    **({} if split.labels is None else {"labels": split.labels}),
                }
                for name, split in self.splits.items()
            },
        }
        return json.dumps(content, separators=(",", ":"), allow_nan=False).encode()

    @staticmethod
    def from_json(content: bytes, *, where: str = INDEX_NAME) -> DataIndex:
        """Read an index back. Raises DataCorrupt, which names `where`, the field, and what would be right."""
        if len(content) > MAX_INDEX_BYTES:
            raise DataCorrupt(f"{where} has {len(content)} bytes: an index has at most {MAX_INDEX_BYTES}")
        try:
            read = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise DataCorrupt(f"{where} is not JSON: {error}") from error
        try:
            return _index(read)
        except _Fault as fault:
            raise DataCorrupt(f"{where}: {fault}") from fault


class _Fault(ValueError):
    """A wrong field, with its path, its value and what would be right."""

    def __init__(self, path: str, value: object, right: str) -> None:
        super().__init__(f"{path} is {reprlib.repr(value)}: it must be {right}")


def _index(read: object) -> DataIndex:
    fields = _object(read, "the index", ("version", "format", "classes", "mean", "deviation", "splits"))
    if _number(fields["version"], "version", 1, 1 << 31) > VERSION:
        raise _Fault(
            "version", fields["version"], f"at most {VERSION}; a later release of dtj wrote this index"
        )
    if fields["format"] not in BLOCK_FORMATS:
        raise _Fault("format", fields["format"], f"one of {', '.join(BLOCK_FORMATS)}")
    classes = _list(fields["classes"], "classes", 1, MAX_CLASSES)
    splits = _object(fields["splits"], "splits", ("train",))
    for name in splits:
        if name not in SPLITS:
            raise _Fault("splits", name, f"an object of {', '.join(SPLITS)}")
    mean = _channels(fields["mean"], "mean")
    deviation = _channels(fields["deviation"], "deviation")
    if len(mean) != len(deviation):
        raise _Fault("deviation", fields["deviation"], "as long as mean")
    return DataIndex(
        format=str(fields["format"]),
        classes=distinct(_name(name, f"classes[{at}]") for at, name in enumerate(classes)),
        splits={name: _split(split, f"splits.{name}", len(classes)) for name, split in splits.items()},
        mean=mean,
        deviation=deviation,
    )


def _split(read: object, path: str, classes: int) -> SplitIndex:
    fields = _object(read, path, ("shards", "blocks"))
    shards = tuple(
        _shard(shard, f"{path}.shards[{at}]")
        for at, shard in enumerate(_list(fields["shards"], f"{path}.shards", 1, 10_000_000))
    )
    if len({shard.key for shard in shards}) != len(shards):
        raise _Fault(
            f"{path}.shards", [shard.key for shard in shards], "a list of shards with different keys"
        )
    blocks = []
    shard, end = 0, 0
    for at, item in enumerate(_list(fields["blocks"], f"{path}.blocks", 1, 100_000_000)):
        block = _block(item, f"{path}.blocks[{at}]", shards)
        if block.shard < shard or (block.shard == shard and block.offset < end):
            raise _Fault(f"{path}.blocks[{at}]", item, "a block behind the end of the block before it")
        shard, end = block.shard, block.offset + block.length
        blocks.append(block)
    labels = fields.get("labels")
    if labels is not None:
        examples = np.array([block.examples for block in blocks])
        try:
            from_text(labels if isinstance(labels, str) else "", examples, classes)
        except ValueError as error:
            raise _Fault(
                f"{path}.labels", labels, f"the counts of labels of each block; it {error}"
            ) from error
    return SplitIndex(shards, tuple(blocks), labels)


def _shard(read: object, path: str) -> Shard:
    fields = _object(read, path, ("key", "size", "etag", "sha256"))
    key = _name(fields["key"], f"{path}.key")
    if any(part in ("", ".", "..") for part in key.split("/")):
        raise _Fault(f"{path}.key", key, "a path below the set's URI")
    etag = fields["etag"]
    if etag is not None:
        etag = _name(etag, f"{path}.etag")
    sha256 = fields["sha256"]
    if not isinstance(sha256, str) or not re.fullmatch("[0-9a-f]{64}", sha256):
        raise _Fault(f"{path}.sha256", sha256, "64 hexadecimal digits")
    return Shard(key, _number(fields["size"], f"{path}.size", 1, _MAX_SHARD_BYTES), etag, sha256)


def _block(read: object, path: str, shards: tuple[Shard, ...]) -> Block:
    if not isinstance(read, list) or len(read) != 5:
        raise _Fault(path, read, "a list of shard, offset, length, examples, crc32")
    shard = _number(read[0], f"{path}[0], its shard,", 0, len(shards) - 1)
    size = shards[shard].size
    offset = _number(read[1], f"{path}[1], its offset,", 0, size - 1)
    most = min(size - offset, BLOCK_BYTES + MAX_EXAMPLE_BYTES)
    length = _number(read[2], f"{path}[2], its length,", 1, most)
    examples = _number(read[3], f"{path}[3], its number of examples,", 1, length)
    return Block(shard, offset, length, examples, _number(read[4], f"{path}[4], its crc32,", 0, 0xFFFFFFFF))


def _object(read: object, path: str, required: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(read, dict) or any(name not in read for name in required):
        raise _Fault(path, read, f"an object with {', '.join(required)}")
    return read


def _list(read: object, path: str, least: int, most: int) -> list[Any]:
    if not isinstance(read, list) or not least <= len(read) <= most:
        raise _Fault(path, read, f"a list of {least} to {most} items")
    return read


def _number(read: object, path: str, least: int, most: int) -> int:
    if not isinstance(read, int) or isinstance(read, bool) or not least <= read <= most:
        raise _Fault(path, read, f"a whole number from {least} to {most}")
    return read


def _name(read: object, path: str) -> str:
    if not isinstance(read, str) or not read.isprintable() or not 0 < len(read.encode()) <= MAX_NAME_BYTES:
        raise _Fault(path, read, f"printable text of 1 to {MAX_NAME_BYTES} bytes")
    return read


def _channels(read: object, path: str) -> tuple[float, ...]:
    values = _list(read, path, 1, 3)
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise _Fault(path, read, "1 or 3 numbers from 0 to 1")
    if len(values) == 2:
        raise _Fault(path, read, "1 or 3 numbers from 0 to 1")
    return tuple(float(value) for value in values)
