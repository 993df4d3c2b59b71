"""Reads the metrics file of a job in bounded memory: whoever may write to the bucket may write any file there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dtj.api.errors import NotFound
from dtj.report.run import Metrics, read_metrics
from dtj_trainer import contract

if TYPE_CHECKING:
    from dtj.client import Artifacts

MOST_BYTES = 16 << 20
"""Of the end of the file. A row of a training has some 150 bytes, and takes four times as many in memory."""
LONGEST_LINE = 64 << 10
"""Bytes of a row. JSON of a few characters can stand for objects of twenty times the size."""
_turn = threading.Lock()
"""One file is in memory at a time. Python reads them with one processor anyway."""


@contextmanager
def metrics_of(artifacts: Artifacts) -> Iterator[Metrics]:
    """Yield the rows of a job's metrics file; none before the program has reported.

    Of a large file, these are the last rows. Longer lines than LONGEST_LINE count as left out.
    """
    with _turn:
        try:
            content, whole = artifacts.end_of(contract.METRICS_FILE, MOST_BYTES)
        except NotFound:
            yield Metrics([], 0)
            return
        lines = content.split(b"\n")
        if not whole:
            del lines[0]  # Its begin is not read.
        short = [line for line in lines if len(line) <= LONGEST_LINE]
        metrics = read_metrics(b"\n".join(short))
        yield metrics._replace(left_out=metrics.left_out + len(lines) - len(short))
