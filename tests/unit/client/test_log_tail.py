"""The last lines of a log in the bucket, by as few bytes as they need."""

from __future__ import annotations

import pytest

from dtj.client.artifacts import Artifacts
from dtj.client.logs import LogSelection, bucket_log
from dtj.client.objects import LogQuery
from dtj_trainer.artifacts.store import StoredObject
from tests.unit.support.jobs import job


class Objects:
    """A store that counts the bytes that it gives."""

    def __init__(self, *segments: bytes) -> None:
        names = (f".{number:05}" if number else "" for number in range(len(segments)))
        self.contents = {
            f"logs/attempt-1/launcher-0.log{name}": each for name, each in zip(names, segments, strict=True)
        }
        self.given = 0

    def objects(self, prefix: str) -> list[StoredObject]:
        return [StoredObject(key, len(content), "") for key, content in self.contents.items()]

    def get_range(self, key: str, start: int, size: int) -> bytes:
        found = self.contents[key][start : start + size]
        self.given += len(found)
        return found


def last(objects: Objects, tail: int, most: int | None = None) -> list[str]:
    artifacts = Artifacts("s3://bucket/job", {})
    artifacts.__dict__["store"] = objects
    query = LogQuery(tail=tail, tail_bytes=most)
    return [line.text for line in bucket_log(artifacts, LogSelection(job(), query))]


def test_the_end_of_a_large_log_is_read() -> None:
    objects = Objects(b"x\n" * (4 << 20) + b"last\n")
    assert last(objects, 2) == ["x", "last"]
    assert objects.given < 1 << 20


@pytest.mark.parametrize("size", [0, 1, 100, 300_000, 900_000])
def test_pieces_and_segments_are_put_together(size: int) -> None:
    lines = [f"{number:06}" + "y" * (number % 90) for number in range(size // 50)]
    content = "".join(f"{line}\n" for line in lines).encode()
    for cut in (0, size // 3, len(content)):
        objects = Objects(content[:cut], content[cut:])
        for tail in (1, 10, len(lines) + 1):
            assert last(objects, tail) == lines[-tail:]


def test_of_a_line_above_the_limit_the_end_is_read() -> None:
    objects = Objects(b"first\n" + b"x" * (8 << 20))
    (line,) = last(objects, 10, 1 << 20)
    assert set(line) == {"x"}
    assert objects.given < 2 << 20
