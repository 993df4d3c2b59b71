"""A file that grows is kept in the bucket as segments: `metrics.jsonl`, `metrics.jsonl.00002`, `metrics.jsonl.00003`.

The first segment has the file's own key, so that a short file is one object. Only the last segment is put again while
the file grows; a segment that has a successor never changes any more. The segments, joined in the order of their
numbers, are the file. Lines and records of event files are not divided: each segment can be read by itself.

What a release before segments wrote is a file of one segment.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

FIRST = 1
SEGMENT_BYTES = 1024 * 1024
"""A segment that has so many bytes is closed."""
MOST_SEGMENT_BYTES = 16 * SEGMENT_BYTES
SEGMENTS_OF_ONE_SIZE = 256
"""After each so many segments' bytes the next ones are larger: 1 TB is not a million objects."""
SEGMENT_SECONDS = 20 * 60.0
"""A segment is closed so long after its first byte: what is put again and again stays small."""
FILES_WITH_THAT_AGE = 4
"""Where more files grow in one pod, their segments are closed later: the pod's objects stay as many."""
RECORD_HEADER_BYTES, RECORD_FRAME_BYTES = 12, 16
"""Of a TFRecord: length and its checksum; with the content's checksum, all but the content."""
LONGEST_RECORD_BYTES = 1 << 32
"""A greater length is no length: the file has no records."""

Cut = Callable[[bytes], int]
"""How many bytes of some content, which begins with a whole unit, are whole units."""

_SEGMENT = re.compile(r"(?P<file>.+)\.(?P<number>\d{5,})", re.DOTALL)


class Segment(NamedTuple):
    """A segment of the file with the key `file`."""

    file: str
    number: int

    @property
    def key(self) -> str:
        """Its own key."""
        return self.file if self.number == FIRST else f"{self.file}.{self.number:05d}"


def segment(key: str) -> Segment:
    """What a key says. A file's own key is that of its first segment."""
    match = _SEGMENT.fullmatch(key)
    if match and int(match["number"]) > FIRST:
        return Segment(match["file"], int(match["number"]))
    return Segment(key, FIRST)


def segments_of(file: str, keys: Iterable[str]) -> list[Segment]:
    """The segments of a file among some keys, in the order in which they are joined."""
    found = (segment(key) for key in keys)
    return sorted(part for part in found if part.file == file)


def segment_bytes(closed_bytes: int) -> int:
    """How large a segment may be after so many bytes in closed ones."""
    return max(SEGMENT_BYTES, min(MOST_SEGMENT_BYTES, closed_bytes // SEGMENTS_OF_ONE_SIZE))


def segment_seconds(growing_files: int) -> float:
    """How old a segment may be while so many files of the pod grow."""
    return SEGMENT_SECONDS * max(1.0, growing_files / FILES_WITH_THAT_AGE)


def whole_lines(content: bytes) -> int:
    """A Cut of text."""
    return content.rfind(b"\n") + 1


def whole_records(content: bytes) -> int:
    """A Cut of TensorBoard's event files, which are TFRecords. Of anything else all is whole."""
    at = 0
    while at + RECORD_HEADER_BYTES <= len(content):
        length = int.from_bytes(content[at : at + 8], "little")
        if length > LONGEST_RECORD_BYTES:
            return len(content)
        if at + RECORD_FRAME_BYTES + length > len(content):
            break
        at += RECORD_FRAME_BYTES + length
    return at
