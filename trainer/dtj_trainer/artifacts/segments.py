"""Names of the pieces of a growing file: segments in the bucket, and rotated logs on the pod's disk.

The first segment has the file's own key, so that a short file, and one of a release without segments, is one
object. Only the last segment is put again while the file grows. Joined by number they are the file, and each ends
with a whole line or record. Not here: the upload (`growing`).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

FIRST = 1
SEGMENT_BYTES = 1024 * 1024
"""The size at which a segment is closed."""
MOST_SEGMENT_BYTES = 16 * SEGMENT_BYTES
SEGMENTS_OF_ONE_SIZE = 256
"""The segment size grows after this many segments' worth of bytes, so that 1 TB does not become a million objects."""
SEGMENT_SECONDS = 20 * 60.0
"""The age at which a segment is closed, so that the open segment, which is uploaded repeatedly, stays small."""
FILES_WITH_THAT_AGE = 4
"""With more growing files than this in a pod, the age limit rises, so that the number of the pod's objects does
not."""
RECORD_HEADER_BYTES, RECORD_FRAME_BYTES = 12, 16
"""Bytes of a TFRecord: those of the length and its checksum, and all bytes but the content."""
LONGEST_RECORD_BYTES = 1 << 32
"""A greater length means that the file does not consist of records."""

Cut = Callable[[bytes], int]
"""Returns how many bytes of some content, which begins with a complete unit, are complete units."""

_SEGMENT = re.compile(r"(?P<file>.+)\.(?P<number>\d{5,})", re.DOTALL)


class Segment(NamedTuple):
    """A segment of the file with the key `file`."""

    file: str
    number: int

    @property
    def key(self) -> str:
        """The key of the segment's object."""
        return self.file if self.number == FIRST else f"{self.file}.{self.number:05d}"


def segment(key: str) -> Segment:
    """Parse a key. A file's own key is the key of its first segment."""
    match = _SEGMENT.fullmatch(key)
    if match and int(match["number"]) > FIRST:
        return Segment(match["file"], int(match["number"]))
    return Segment(key, FIRST)


def segments_of(file: str, keys: Iterable[str]) -> list[Segment]:
    """Return the segments of a file among some keys, ordered by number."""
    found = (segment(key) for key in keys)
    return sorted(part for part in found if part.file == file)


def segment_bytes(closed_bytes: int) -> int:
    """Return the size limit of the next segment after so many bytes in closed ones."""
    return max(SEGMENT_BYTES, min(MOST_SEGMENT_BYTES, closed_bytes // SEGMENTS_OF_ONE_SIZE))


def segment_seconds(growing_files: int) -> float:
    """Return the age limit of a segment while so many files of the pod grow."""
    return SEGMENT_SECONDS * max(1.0, growing_files / FILES_WITH_THAT_AGE)


def whole_lines(content: bytes) -> int:
    """Return how many bytes are complete lines: the Cut of text."""
    return content.rfind(b"\n") + 1


def whole_records(content: bytes) -> int:
    """Return how many bytes are complete TFRecords: the Cut of event files. Another format counts as complete."""
    at = 0
    while at + RECORD_HEADER_BYTES <= len(content):
        length = int.from_bytes(content[at : at + 8], "little")
        if length > LONGEST_RECORD_BYTES:
            return len(content)
        if at + RECORD_FRAME_BYTES + length > len(content):
            break
        at += RECORD_FRAME_BYTES + length
    return at


# Logs of bounded size on a pod's disk: `rank-0.log` is the current file, `.rank-0.log.00001` a rotated one.
#
# Hidden files are not artifacts of their own. The upload of a log reads all its files in order (see `growing`), and
# removes the rotated files that are completely uploaded.

ROTATE_BYTES = 64 * 1024 * 1024
KEPT_ROTATED = 1
"""How many rotated files of a log stay on the disk after their upload, or where nothing is uploaded."""
MOST_ROTATED = 16
"""The most rotated files of one log, 1 GiB, while the bucket takes nothing. Beyond that, the oldest file is deleted,
so that the disk does not fill up."""

_ROTATED = re.compile(r"\.(?P<name>.+)\.(?P<number>\d{5,})", re.DOTALL)


def rotated(log: Path, number: int) -> Path:
    """Return the path of a log's rotated file with that number, from 1 on."""
    return log.with_name(f".{log.name}.{number:05d}")


def rotated_numbers(log: Path) -> list[int]:
    """List the numbers of a log's rotated files, from the oldest."""
    try:
        names = [path.name for path in log.parent.iterdir()]
    except OSError:
        return []
    found = (_ROTATED.fullmatch(name) for name in names)
    return sorted(int(match["number"]) for match in found if match and match["name"] == log.name)


def remove_up_to(log: Path, last: int) -> None:
    """Remove the rotated files of a log whose numbers are `last` or lower."""
    for number in rotated_numbers(log):
        if number <= last:
            with contextlib.suppress(OSError):
                rotated(log, number).unlink()
