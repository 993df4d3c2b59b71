"""The index of a set in shards: written, read back, and refused with the field that is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from dtj_trainer.data.errors import DataCorrupt
from dtj_trainer.data.formats import FORMATS
from dtj_trainer.data.index import BLOCK_FORMATS, Block, DataIndex, Shard, SplitIndex

SHARDS = (Shard("train/0.tar", 5000, '"abc"', "0" * 64), Shard("train/1.tar", 3000, None, "f" * 64))
BLOCKS = (Block(0, 0, 2048, 3, 1), Block(0, 2048, 2048, 2, 2), Block(1, 0, 2560, 4, 0xFFFFFFFF))
INDEX = DataIndex(
    "tar",
    ("Apple Red 1", "Banane grün"),
    {"train": SplitIndex(SHARDS, BLOCKS), "test": SplitIndex(SHARDS[1:], (Block(0, 512, 1024, 1, 3),))},
    (0.25, 0.5, 0.75),
    (0.1, 0.2, 0.3),
)


def test_an_index_is_read_back() -> None:
    assert DataIndex.from_json(INDEX.to_json()) == INDEX
    assert (INDEX.splits["train"].examples, INDEX.splits["test"].examples) == (9, 1)
    assert set(FORMATS) == set(BLOCK_FORMATS)


Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda c: c.pop("classes"),
            "must be an object with version, format, classes, mean, deviation, splits",
        ),
        (lambda c: c.update(version=2), "version is 2: it must be at most 1; a later release of dtj wrote"),
        (lambda c: c.update(version=True), "version is True: it must be a whole number from 1"),
        (
            lambda c: c.update(format="zip"),
            "format is 'zip': it must be one of tar, tfrecord, cifar10, cifar100",
        ),
        (lambda c: c.update(format=["tar"]), r"format is \['tar'\]: it must be one of"),
        (lambda c: c.update(classes=[]), r"classes is \[\]: it must be a list of 1 to 1000000 items"),
        (lambda c: c["classes"].append("a\nb"), r"classes\[2\] is 'a\\nb': it must be printable text"),
        (lambda c: c["classes"].append("x" * 2000), r"classes\[2\] is .* of 1 to 1024 bytes"),
        (lambda c: c.update(mean=[0.1, 0.2]), "mean is .*: it must be 1 or 3 numbers from 0 to 1"),
        (lambda c: c.update(mean=[float("nan")]), "mean is .*: it must be 1 or 3 numbers from 0 to 1"),
        (lambda c: c.update(deviation=[0.1]), "deviation is .*: it must be as long as mean"),
        (lambda c: c["splits"].pop("train"), "splits is .*: it must be an object with train"),
        (
            lambda c: c["splits"].update(dev=0),
            "splits is 'dev': it must be an object of train, test, validation",
        ),
        (lambda c: shard(c).update(key="../x"), r"shards\[0\]\.key is '\.\./x': it must be a path below"),
        (lambda c: shard(c).update(key="/x"), r"shards\[0\]\.key is '/x': it must be a path below"),
        (lambda c: shard(c).update(key="train/1.tar"), "must be a list of shards with different keys"),
        (lambda c: shard(c).update(size=0), r"shards\[0\]\.size is 0: it must be a whole number from 1"),
        (lambda c: shard(c).update(size=5e3), r"shards\[0\]\.size is 5000\.0: it must be a whole number"),
        (
            lambda c: shard(c).update(sha256="x"),
            r"shards\[0\]\.sha256 is 'x': it must be 64 hexadecimal digits",
        ),
        (lambda c: shard(c).update(etag=7), r"shards\[0\]\.etag is 7: it must be printable text"),
        (
            lambda c: block(c, 0, 2),
            r"blocks\[0\]\[0\], its shard, is 2: it must be a whole number from 0 to 1",
        ),
        (lambda c: block(c, 1, -1), r"blocks\[0\]\[1\], its offset, is -1"),
        (lambda c: block(c, 2, 6000), r"blocks\[0\]\[2\], its length, is 6000: .* from 1 to 5000"),
        (lambda c: block(c, 2, 3000), r"blocks\[1\] is \[0, 2048, .*: it must be a block behind the end of"),
        (lambda c: block(c, 3, 0), r"blocks\[0\]\[3\], its number of examples, is 0"),
        (lambda c: block(c, 4, 1 << 32), r"blocks\[0\]\[4\], its crc32, is 4294967296"),
        (
            lambda c: c["splits"]["train"]["blocks"].append([0, 1]),
            r"blocks\[3\] is \[0, 1\]: it must be a list of",
        ),
        (lambda c: c["splits"]["train"].update(blocks={}), "blocks is {}: it must be a list"),
    ],
)
def test_what_is_wrong_with_an_index(change: Change, message: str) -> None:
    content = json.loads(INDEX.to_json())
    change(content)
    with pytest.raises(DataCorrupt, match=f"^s3://b/_dtj_index.json: .*{message}"):
        DataIndex.from_json(json.dumps(content).encode(), where="s3://b/_dtj_index.json")


def shard(content: dict[str, Any]) -> dict[str, Any]:
    return content["splits"]["train"]["shards"][0]


def block(content: dict[str, Any], place: int, value: int) -> None:
    content["splits"]["train"]["blocks"][0][place] = value


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100_000, b"\xff\xfe", b"null", b"1" * 5000])
def test_what_is_no_json(content: bytes) -> None:
    with pytest.raises(DataCorrupt, match="_dtj_index"):
        DataIndex.from_json(content)
