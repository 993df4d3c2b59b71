"""The cache of blocks in a folder: bounded, shared by processes, checked when it is read."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
import zlib
from pathlib import Path

import pytest

from dtj_trainer.data.cache import BlockCache
from dtj_trainer.data.ranged import Range

URI = "s3://datasets/set"


def block(number: int, size: int = 1000) -> tuple[Range, int, bytes]:
    content = number.to_bytes(4, "big") * (size // 4)
    return Range("a.tar", number * size, size, "etag"), zlib.crc32(content), content


def put(cache: BlockCache, *numbers: int) -> None:
    for number in numbers:
        cache.put(URI, *block(number))


def has(cache: BlockCache, number: int, uri: str = URI) -> bool:
    range_, crc32, content = block(number)
    found = cache.get(uri, range_, crc32)
    assert found in (None, content)
    return found is not None


def files(folder: Path) -> list[Path]:
    """The files of blocks."""
    return [path for path in folder.glob("*/*") if path.is_file()]


def test_a_block_is_found_by_uri_object_version_and_place_alone(tmp_path: Path) -> None:
    put(BlockCache(tmp_path, 10**6), 7)
    later = BlockCache(tmp_path, 10**6)
    assert has(later, 7)
    range_, crc32, _ = block(7)
    for other in (range_._replace(key="b.tar"), range_._replace(version="new"), range_._replace(offset=0)):
        assert later.get(URI, other, crc32) is None
    assert later.get("s3://other/set", range_, crc32) is None
    assert later.get(URI, range_, crc32 + 1) is None
    assert (later.hits, later.misses) == (1, 5)


@pytest.mark.parametrize("damage", [b"", b"short", b"\1" * 1000, b"\0" * 1001])
def test_a_damaged_file_is_a_miss_and_is_written_again(tmp_path: Path, damage: bytes) -> None:
    cache = BlockCache(tmp_path, 10**6)
    put(cache, 7)
    files(tmp_path)[0].write_bytes(damage)
    assert not has(cache, 7)
    put(cache, 7)
    assert has(cache, 7)


def test_the_blocks_that_were_used_least_recently_go_first(tmp_path: Path) -> None:
    cache = BlockCache(tmp_path, 10_000)
    put(cache, *range(8))
    for age, path in enumerate(sorted(files(tmp_path), key=lambda path: path.read_bytes(), reverse=True)):
        os.utime(path, (time.time() - 1000 * (age + 1),) * 2)
    assert has(cache, 0), "its use makes it young"
    put(cache, *range(20, 23))
    assert sum(path.stat().st_size for path in files(tmp_path)) <= 10_000
    assert [number for number in [*range(8), *range(20, 23)] if has(cache, number)] == [
        0,
        3,
        4,
        5,
        6,
        7,
        20,
        21,
        22,
    ]


def test_unfinished_files_of_dead_processes_are_removed_and_others_stay(tmp_path: Path) -> None:
    put(BlockCache(tmp_path, 10**6), 1)
    folder = files(tmp_path)[0].parent
    (folder / "dead.writing").write_bytes(b"x")
    os.utime(folder / "dead.writing", (1, 1))
    (folder / "alive.writing").write_bytes(b"x")
    put(BlockCache(tmp_path, 10**6), 2)
    assert {path.name for path in files(tmp_path) if path.suffix} == {"alive.writing"}


def test_a_folder_that_cannot_be_written_costs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no folder")
    cache = BlockCache(tmp_path / "file", 10**6)
    put(cache, 1, 2)
    assert not has(cache, 1)
    assert len(caplog.records) == 1
    assert "is not used" in caplog.text


FILLER = """
import sys, zlib
from pathlib import Path
from dtj_trainer.data.cache import BlockCache
from dtj_trainer.data.ranged import Range
cache = BlockCache(Path(sys.argv[1]), 80_000)
for _ in range(2):
    for number in range(120):
        content = number.to_bytes(4, "big") * 250
        place = Range("a.tar", number * 1000, 1000, "etag"), zlib.crc32(content)
        assert cache.get("s3://datasets/set", *place) in (None, content)
        cache.put("s3://datasets/set", *place, content)
sys.exit("damaged" if cache._failed else 0)
"""


def test_two_processes_fill_and_evict_at_once(tmp_path: Path) -> None:
    both = [subprocess.Popen([sys.executable, "-c", FILLER, str(tmp_path)]) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    assert sum(path.stat().st_size for path in files(tmp_path)) <= 80_000
    assert not [path for path in files(tmp_path) if path.suffix]
    assert sum(has(BlockCache(tmp_path, 80_000), number) for number in range(120)) > 50


@pytest.mark.bound(
    "agent",
    "Jobs of a node",
    "The cache of data on a node",
    "`data.cache.size`",
)
def test_the_limit_holds_for_many_processes_none_of_which_writes_much(tmp_path: Path) -> None:
    size, most = 64 * 1024, 256
    numbers = itertools.count()
    caches = [BlockCache(tmp_path, most * size) for _ in range(20)]

    def write(cache: BlockCache, blocks: int) -> None:
        for number in itertools.islice(numbers, blocks):
            cache.put(URI, *block(number, size))

    for cache in caches:
        write(cache, 1)
    write(caches[0], most)
    for cache in caches:
        write(cache, 3)
        assert len(files(tmp_path)) <= most
    assert len(files(tmp_path)) > most * 0.85


def test_a_full_disk_bounds_a_cache_whose_limit_is_larger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = os.statvfs_result((1000, 1000, 20, 15, 10, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: disk)
    cache = BlockCache(tmp_path, 10**9)
    put(cache, *range(30))
    assert 9000 <= sum(path.stat().st_size for path in files(tmp_path)) <= 15_000 * 0.95 + 4096
    assert has(cache, 29)


class _OtherUsers:
    """A folder in which no file can be removed, touched or written, as those of other users."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(Path, "unlink", refuse)
        monkeypatch.setattr(os, "utime", refuse)


def test_blocks_of_another_user_are_read_and_bound_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    put(BlockCache(tmp_path, 10_000), *range(8))
    for path in files(tmp_path):
        os.utime(path, (1, 1))
    _OtherUsers(monkeypatch)
    cache = BlockCache(tmp_path, 8000)
    assert has(cache, 3), "its time of use can't be set"
    put(cache, *range(20, 40))
    assert not any(has(cache, number) for number in range(20, 40))
    assert caplog.text.count("is not used") == 1


def test_a_damaged_block_that_can_not_be_removed_is_a_miss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(BlockCache(tmp_path, 10**6), 7)
    files(tmp_path)[0].write_bytes(b"damage")
    _OtherUsers(monkeypatch)
    assert not has(BlockCache(tmp_path, 10**6), 7)


def test_folders_are_open_to_whom_the_caches_folder_is_open(tmp_path: Path) -> None:
    tmp_path.chmod(0o2777)
    put(BlockCache(tmp_path, 10**6), 7)
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert folder.stat().st_mode & 0o7777 == 0o2777
    assert (tmp_path / "written").stat().st_mode & 0o777 == 0o666
