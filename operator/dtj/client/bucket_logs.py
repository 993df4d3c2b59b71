"""The logs of a job in its bucket: `logs/attempt-<n>/<name>.log`."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator

from dtj.api.errors import NotFound
from dtj.client.artifacts import Artifacts
from dtj.client.log_source import Selection, file_line, source_of
from dtj.client.views import LogLine
from dtj_trainer import contract

_FILE = re.compile(rf"{contract.LOGS}/attempt-(\d+)/(.+)\.log")


def bucket_log(
    artifacts: Artifacts, selection: Selection, *, attempt: int | None = None, tail: int | None = None
) -> Iterator[LogLine]:
    """The lines of an attempt, file by file; of each file the newest where no attempt is given. Raises NotFound.

    tail: only so many last lines of each file.
    """
    newest: dict[str, int] = {}
    for stored in artifacts.ls(contract.LOGS):
        found = _FILE.fullmatch(stored.key)
        if found and attempt in (None, int(found[1])):
            newest[found[2]] = max(int(found[1]), newest.get(found[2], 0))
    names = selection.files(sorted(newest))
    if not names:
        of = "" if attempt is None else f" of attempt {attempt}"
        raise NotFound(f"there are no such logs{of} in {artifacts.uri}")
    for name in names:
        text = artifacts.read(f"{contract.LOGS}/attempt-{newest[name]}/{name}.log").decode(errors="replace")
        # Not splitlines(): a line of text may have a form feed or such.
        lines = (file_line(line, source_of(name)) for line in text.removesuffix("\n").split("\n") if text)
        yield from deque((line for line in lines if selection.wants(line.source)), tail)
