"""Ranged reads: retried, hedged, bounded, and compared with the index."""

from __future__ import annotations

import base64
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.trainer.conftest import until

from dtj_trainer import contract
from dtj_trainer.artifacts import s3, store
from dtj_trainer.artifacts.s3 import LastingS3Error, S3Error, make_client, parse_s3_uri
from dtj_trainer.artifacts.store import PresignedGets, Store
from dtj_trainer.data import checksum, ranged
from dtj_trainer.data.block_reader import BlockReader, stretches
from dtj_trainer.data.cache import BlockCache
from dtj_trainer.data.errors import DataCorrupt, DataNotFound, DataUnavailable
from dtj_trainer.data.index import Block, Shard, SplitIndex
from dtj_trainer.data.ranged import FolderObjects, Range, RangedReader, S3Objects
from dtj_trainer.data.stored_examples import BlocksAhead

CONTENT = bytes(range(256)) * 40


def of_content(offset: int, length: int, key: str = "a") -> Range:
    return Range(key, offset, length, "v1")


class Memory:
    """One object in memory; `answers` are called for the first requests, in the order of the requests."""

    uri = "s3://datasets/set"
    remote = True

    def __init__(self, *answers: Callable[[bytes], bytes]) -> None:
        self.answers = list(answers)
        self.requests = 0
        self._lock = threading.Lock()

    def read(self, range_: Range) -> bytes:
        content = CONTENT[range_.offset : range_.offset + range_.length]
        with self._lock:
            self.requests += 1
            answer = self.answers.pop(0) if self.answers else None
        return answer(content) if answer else content


def raising(error: Exception) -> Callable[[bytes], bytes]:
    def answer(_: bytes) -> bytes:
        raise error

    return answer


@pytest.fixture
def short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "FIRST_DELAY_SECONDS", 0.01)


def test_ranges_of_objects_in_s3_and_of_files(job_store: Store, tmp_path: Path) -> None:
    job_store.put_bytes("set/a", CONTENT)
    (tmp_path / "a").write_bytes(CONTENT)
    in_s3 = S3Objects(parse_s3_uri(job_store.uri("set")))
    for objects in (in_s3, FolderObjects(tmp_path, str(tmp_path))):
        reader = RangedReader(objects)
        assert reader.read(of_content(300, 1000)) == CONTENT[300:1300]
        assert reader.received.total == 1000
        with pytest.raises(
            DataCorrupt, match=r"a ends at byte 10240, but the index names 2 bytes from byte 10239"
        ):
            reader.read(of_content(10239, 2))
        with pytest.raises(DataNotFound, match="b does not exist, but the index names it"):
            reader.read(of_content(0, 1, "b"))
        reader.close()


def test_a_presigned_url_is_signed_once_and_again_before_it_expires(job_store: Store) -> None:
    job_store.put_bytes("set/a", CONTENT)
    client, now, signed = make_client(), [0.0], list[object]()
    client.meta.events.register("before-sign.s3.GetObject", lambda **_: signed.append(now[0]))
    gets = PresignedGets(client, lambda: now[0])
    where = parse_s3_uri(job_store.uri("set")) / "a"
    assert [gets.get(where, offset, 1000) for offset in (0, 300)] == [CONTENT[:1000], CONTENT[300:1300]]
    assert len(signed) == 1
    now[0] = store.USED_SECONDS
    assert gets.get(where, 1, 1) == CONTENT[1:2]
    assert len(signed) == 2


def test_what_a_presigned_url_does_not_bring_is_left_to_the_client(job_store: Store) -> None:
    job_store.put_bytes("set/a", CONTENT)
    now = [0.0]
    gets = PresignedGets(make_client(), lambda: now[0])
    folder = parse_s3_uri(job_store.uri("set"))
    for where, offset, length in ((folder / "b", 0, 1), (folder / "a", 10239, 2)):
        assert gets.get(where, offset, length) is None
        assert gets.get(folder / "a", 0, 1) is None, "paused"
        now[0] += store.PAUSE_SECONDS
        assert gets.get(folder / "a", 0, 1) == CONTENT[:1]


def test_a_request_with_a_key_of_its_own_is_left_to_the_client(
    job_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_store.put_bytes("set/a", CONTENT)
    client = make_client()
    monkeypatch.setenv(contract.ENV_S3_SSE_CUSTOMER_KEY, base64.b64encode(bytes(32)).decode())
    assert PresignedGets(client).get(parse_s3_uri(job_store.uri("set")) / "a", 0, 1) is None


def test_a_request_that_fails_for_a_while_is_repeated(short_delays: None) -> None:
    objects = Memory(*[raising(S3Error("slow down", transient=True))] * 3)
    assert RangedReader(objects).read(of_content(0, 10)) == CONTENT[:10]
    assert objects.requests == 4


def test_what_fails_for_good_or_for_too_long_is_told(short_delays: None) -> None:
    objects = Memory(raising(LastingS3Error("access is denied")))
    with pytest.raises(DataNotFound, match="access is denied"):
        RangedReader(objects).read(of_content(0, 10))
    assert objects.requests == 1
    with pytest.raises(DataUnavailable, match="slow down"):
        RangedReader(Memory(*[raising(S3Error("slow down", transient=True))] * 99), timeout=0).read(
            of_content(0, 10)
        )


def test_a_slow_request_is_asked_again_and_the_first_answer_counts() -> None:
    stuck = threading.Event()

    def slow(content: bytes) -> bytes:
        stuck.wait()
        return content

    objects = Memory()
    reader = RangedReader(objects)
    for _ in range(ranged.ENOUGH_SAMPLES):
        reader.read(of_content(0, 10))
    objects.answers = [slow]
    try:
        assert reader.read(of_content(5, 10)) == CONTENT[5:15]
        assert reader.hedged.total == 1
    finally:
        stuck.set()
    # The second request fails: the first one still counts.
    begun, failed = threading.Event(), threading.Event()

    def slow_until_failed(content: bytes) -> bytes:
        begun.set()
        failed.wait()
        return content

    def failing(_: bytes) -> bytes:
        begun.wait()
        failed.set()
        raise S3Error("slow down", transient=True)

    objects.answers = [slow_until_failed, failing]
    assert reader.read(of_content(7, 10)) == CONTENT[7:17]
    assert reader.hedged.total == 2


def test_a_steady_slow_store_is_not_asked_twice() -> None:
    pace = ranged.Latencies()
    assert pace.slow_after() is None
    for _ in range(ranged.SAMPLES):
        pace.add(3.0)
    assert pace.slow_after() == 3.0 * ranged.SLOW_FACTOR


def split(content: bytes = CONTENT, length: int = 1000) -> SplitIndex:
    blocks = tuple(
        Block(0, start, len(part), 10, zlib.crc32(part))
        for start in range(0, len(content), length)
        if (part := content[start : start + length])
    )
    return SplitIndex((Shard("a", len(content), None, "0" * 64),), blocks)


def test_a_block_that_arrives_damaged_is_fetched_again_and_then_named() -> None:
    def damaged(content: bytes) -> bytes:
        return b"\0" + content[:0:-1]

    objects = Memory(damaged)
    assert BlockReader(RangedReader(objects), split()).read(2) == CONTENT[2000:3000]
    assert objects.requests == 2
    with pytest.raises(DataCorrupt, match=r"s3://datasets/set/a, block at byte 3000: the CRC-32"):
        BlockReader(RangedReader(Memory(damaged, damaged)), split()).read(3)


def test_a_second_reader_of_a_cache_asks_the_store_for_nothing(tmp_path: Path) -> None:
    for requests in (11, 0):
        objects = Memory()
        reader = BlockReader(RangedReader(objects), split(), BlockCache(tmp_path, 1 << 20))
        assert b"".join(reader.read(block) for block in range(11)) == CONTENT
        assert objects.requests == requests


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([1] * 10, [(0, 4), (4, 8), (8, 10)]),
        ([3 << 20, 4 << 20, 2 << 20, 7 << 20, 9 << 20], [(0, 2), (2, 3), (3, 4), (4, 5)]),
    ],
    ids=["runs", "large"],
)
def test_one_request_brings_the_blocks_of_a_run(lengths: list[int], expected: list[tuple[int, int]]) -> None:
    ends = np.cumsum(lengths).tolist()
    blocks = [Block(0, end - length, length, 1, 0) for length, end in zip(lengths, ends, strict=True)]
    found = stretches(SplitIndex((), tuple(blocks)))
    assert [(stretch.start, stretch.stop) for stretch in found] == expected


def test_a_request_ends_at_the_end_of_a_shard_and_at_a_gap() -> None:
    blocks = [Block(0, 0, 5, 1, 0), Block(0, 5, 5, 1, 0), Block(1, 10, 5, 1, 0), Block(1, 16, 5, 1, 0)]
    assert stretches(SplitIndex((), tuple(blocks))) == [range(2), range(2, 3), range(3, 4)]


def test_a_damaged_block_of_a_request_is_fetched_again_alone() -> None:
    def damaged(content: bytes) -> bytes:
        return content[:1500] + b"\0" + content[1501:]

    objects = Memory(damaged)
    reader = BlockReader(RangedReader(objects), split())
    fetched = reader.fetch(range(4, 8))
    assert [bytes(reader.read(block, fetched[block])) for block in range(4, 8)] == [
        CONTENT[start : start + 1000] for start in range(4000, 8000, 1000)
    ]
    assert objects.requests == 2


def test_blocks_before_the_end_of_a_short_shard_can_be_read() -> None:
    objects = Memory()
    blocks = split(CONTENT + bytes(1000))
    reader = BlockReader(RangedReader(objects), blocks)
    fetched = reader.fetch(range(8, 12))
    assert reader.read(9, fetched.get(9)) == CONTENT[9000:10000]
    with pytest.raises(
        DataCorrupt, match="ends at byte 10240, but the index names 1000 bytes from byte 10000"
    ):
        reader.read(10, fetched.get(10))


def test_a_request_leaves_out_blocks_that_the_cache_has(tmp_path: Path) -> None:
    objects = Memory()
    reader = BlockReader(RangedReader(objects), split(), BlockCache(tmp_path, 1 << 20))
    reader.read(5)
    assert not reader.fetch(range(4, 8))
    assert len(reader.fetch(range(8, 11))) == 3
    assert objects.requests == 2


@pytest.mark.parametrize("fast", [True, False])
def test_a_checksum_is_the_one_of_zlib(fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not fast:
        monkeypatch.setattr(checksum, "isal_zlib", None)
    assert [checksum.crc32(memoryview(CONTENT)[start:]) for start in (0, 1, 10239, 10240)] == [
        zlib.crc32(CONTENT[start:]) for start in (0, 1, 10239, 10240)
    ]


class Loads:
    """Loads blocks when they are released, and knows which loads began."""

    def __init__(self, *, held: bool = False) -> None:
        self.begun: list[int] = []
        self.go = threading.Event()
        if not held:
            self.go.set()

    def __call__(self, block: int) -> str:
        self.begun.append(block)
        self.go.wait()
        return f"block {block}"


def test_blocks_are_loaded_in_the_order_of_the_batches_within_the_memory() -> None:
    loads = Loads()
    ahead = BlocksAhead(loads, [10] * 9, memory=45, threads=1)
    order = [[3], [3, 1], [1, 7], [7, 0], [0, 5], [5, 2], [2, 8]]
    ahead.expect(order)
    until(lambda: len(loads.begun) == 4, "as many blocks as fit are loaded")
    for batch in order:
        assert ahead.take(batch) == {block: f"block {block}" for block in batch}
    assert loads.begun == [3, 1, 7, 0, 5, 2, 8], "each block is loaded once"
    assert ahead.most_bytes == 40
    ahead.close()


def test_a_batch_that_nobody_announced_is_loaded_beyond_the_memory() -> None:
    ahead = BlocksAhead(Loads(), [10] * 9, memory=15, threads=2)
    ahead.expect([[4], [5]])
    assert ahead.take([1, 2, 3]) == {1: "block 1", 2: "block 2", 3: "block 3"}
    assert ahead.take([4]) == {4: "block 4"}
    assert ahead.most_bytes == 40
    ahead.close()


def test_new_expectations_replace_those_that_are_not_met() -> None:
    loads = Loads(held=True)
    ahead = BlocksAhead(loads, [10] * 9, memory=30, threads=1)
    ahead.expect([[0], [1], [2]])
    until(lambda: loads.begun == [0], "the first block is being loaded")
    ahead.expect([[6], [7], [0]])
    loads.go.set()
    assert [ahead.take([block]) for block in (6, 7, 0)] == [{6: "block 6"}, {7: "block 7"}, {0: "block 0"}]
    assert loads.begun == [0, 6, 7], "blocks 1 and 2 were still waiting, and block 0 is kept"
    ahead.close()


def test_a_process_ends_while_the_store_does_not_answer() -> None:
    program = """
import threading
from dtj_trainer.data.stored_examples import BlocksAhead

begun = threading.Event()

def load(block):
    begun.set()
    threading.Event().wait()

BlocksAhead(load, [1] * 9, memory=9, threads=2).expect([[block] for block in range(9)])
begun.wait()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_block_that_failed_is_loaded_again_by_the_next_reader() -> None:
    failures = [OSError("broken")]

    def load(block: int) -> int:
        if failures:
            raise failures.pop()
        return block

    ahead = BlocksAhead(load, [10], memory=10, threads=1)
    ahead.expect([[0]])
    with pytest.raises(OSError, match="broken"):
        ahead.take([0])
    assert ahead.take([0]) == {0: 0}
    ahead.close()
