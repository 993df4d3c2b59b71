"""Reads the lines that are sent to a tracking server: from the bucket, or from this pod if the job has no bucket.

With a bucket, only lines that the bucket has are sent. A pod that is lost together with its last lines leaves no
points of steps that the next attempt trains anew in another way. The utilisation of all pods is read from the bucket,
too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from dtj_trainer import contract
from dtj_trainer.artifacts.segments import segment
from dtj_trainer.artifacts.store import Store

CHUNK_BYTES = 256 * 1024
LONGEST_LINE_BYTES = 16 * 1024 * 1024


class LineFiles(Protocol):
    """Files that only grow, by lines."""

    def sizes(self, *, utilisation: bool) -> Mapping[str, int]:
        """Return the bytes of each file by its name in the bucket. utilisation: list the pods' samples as well."""

    def read(self, name: str, start: int, size: int) -> bytes:
        """Return at most so many bytes from an offset; `sizes` has listed the file."""


class LocalFiles:
    """The files in this pod's workspace."""

    def __init__(self, root: Path, pod: str, attempt: int) -> None:
        self._paths = {
            contract.METRICS_FILE: root / contract.METRICS_FILE,
            f"{contract.UTILISATION}/attempt-{attempt}/{pod}.jsonl": root
            / contract.UTILISATION
            / f"{pod}.jsonl",
        }

    def sizes(self, *, utilisation: bool) -> Mapping[str, int]:
        """Return the sizes of the files that are there."""
        del utilisation
        return {name: path.stat().st_size for name, path in self._paths.items() if path.is_file()}

    def read(self, name: str, start: int, size: int) -> bytes:
        """Read a part of a file."""
        with self._paths[name].open("rb") as file:
            file.seek(start)
            return file.read(size)


class StoredFiles:
    """The files below a job's prefix in the bucket, which are stored in segments. The methods raise S3Error."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._segments: dict[str, list[tuple[str, int]]] = {}
        """Keys and sizes of a file's segments in their order."""

    def sizes(self, *, utilisation: bool) -> Mapping[str, int]:
        """Return the sizes of the files in the bucket."""
        found: dict[str, list[tuple[int, str, int]]] = defaultdict(list)
        listed = [*self._store.named("metrics")]
        if utilisation:
            listed += self._store.objects(contract.UTILISATION)
        for item in listed:
            part = segment(item.key)
            if part.file.endswith(".jsonl"):
                found[part.file].append((part.number, item.key, item.size))
        for name, parts in found.items():
            self._segments[name] = [(key, size) for _, key, size in sorted(parts)]
        return {name: sum(size for _, size in self._segments[name]) for name in found}

    def read(self, name: str, start: int, size: int) -> bytes:
        """Read a part of a file, at most to the end of a segment."""
        for key, length in self._segments[name]:
            if start < length:
                return self._store.get_range(key, start, min(size, length - start))
            start -= length
        return b""


def next_lines(files: LineFiles, name: str, start: int, end: int) -> tuple[list[bytes], int]:
    """Return the next whole lines of a file, and the offset after them.

    end: the size of the file. At most about CHUNK_BYTES are in memory, unless one line is longer; a line beyond
    LONGEST_LINE_BYTES is left out.
    """
    content = b""
    while start + len(content) < end:
        more = files.read(name, start + len(content), CHUNK_BYTES)
        if not more:
            break
        content += more
        whole = content.rfind(b"\n") + 1
        if whole:
            return content[: whole - 1].split(b"\n"), start + whole
        if len(content) > LONGEST_LINE_BYTES:
            return [], start + len(content)
    return [], start
