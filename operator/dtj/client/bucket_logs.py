"""The logs of a job in its bucket: `logs/attempt-<n>/<name>.log`, and its segments."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dtj.api.errors import NotFound
from dtj.client.artifacts import Artifacts, joined
from dtj.client.log_source import Selection, file_line, source_of
from dtj.client.views import LogLine
from dtj_trainer import contract

# The pattern allows a segment number. If a lifecycle rule of the bucket removed the first segment, `joined` treats
# each other segment as a separate file.
_FILE = re.compile(rf"{contract.LOGS}/attempt-(\d+)/(.+)\.log(?:\.\d{{5,}})?")


def bucket_log(artifacts: Artifacts, selection: Selection) -> Iterator[LogLine]:
    """Yield the lines of an attempt, file by file. Without an attempt, yield the newest log of each replica or rank.

    The query's `tail` limits how many segments of a log are fetched. Raises NotFound if the bucket has no such log.
    """
    attempt, tail = selection.query.attempt, selection.query.tail
    sizes = {stored.key: stored.size for stored in artifacts.ls(contract.LOGS)}
    logs: dict[str, dict[int, list[str]]] = {}
    """The keys of a log's segments, by name and attempt."""
    for file, keys in joined(sizes).items():
        match = _FILE.fullmatch(file)
        if match and attempt in (None, int(match[1])):
            logs.setdefault(match[2], {}).setdefault(int(match[1]), []).extend(keys)
    names = selection.files(sorted(logs))
    if not names:
        of_attempt = "" if attempt is None else f" of attempt {attempt}"
        raise NotFound(f"there are no such logs{of_attempt} in {artifacts.uri}")
    for name in names:
        keys, source = logs[name][max(logs[name])], source_of(name)
        if tail is None:
            yield from _wanted(_lines(artifacts.pieces(keys)), source, selection)
        else:
            yield from _last(artifacts, [(key, sizes[key]) for key in keys], source, selection)


def _last(
    artifacts: Artifacts,
    parts: Sequence[tuple[str, int]],
    source: str,
    selection: Selection,
) -> list[LogLine]:
    """Return the last lines of a log. Read its segments (key, size) backwards, as far as the lines need it."""
    count, most = selection.query.tail or 0, selection.query.tail_bytes
    lines: list[LogLine] = []
    # The first line of what is read so far. What precedes may contain the start of that line.
    begin = b""
    read = 0
    for piece in artifacts.backwards(parts):
        read += len(piece)
        line, end, rest = (piece + begin).partition(b"\n")
        lines[:0] = _wanted(_lines([rest]), source, selection)
        begin = line + end
        if len(lines) >= count:
            break
        if most is not None and read >= most:
            # Of a line that is longer than that, the end.
            lines = lines or [*_wanted(_lines([begin]), source, selection)]
            break
    else:
        lines[:0] = _wanted(_lines([begin]), source, selection)
    return lines[max(0, len(lines) - count) :]


def _wanted(lines: Iterator[bytes], source: str, selection: Selection) -> Iterator[LogLine]:
    for text in lines:
        line = file_line(text.decode(errors="replace"), source)
        if selection.wants(line.source):
            yield line


def _lines(pieces: Iterator[bytes] | Sequence[bytes]) -> Iterator[bytes]:
    # splitlines() would also split at form feeds and other separators inside a line.
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        yield from whole
    if rest:
        yield rest
