"""The last sign of a job without a recorded end: the time of its newest checkpoint or of its last line of metrics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from dtj.client.artifacts import explained
from dtj_trainer import contract

if TYPE_CHECKING:
    from dtj_trainer.artifacts.store import Store, StoredObject

_TAIL_BYTES = 65_536
"""The number of bytes that are read at the end of a metrics file. A line has a few hundred bytes."""


def last_sign(job: Store) -> datetime | None:
    """Return the time of the newest checkpoint or line of metrics of a job; None if it has neither.

    Takes at most four requests, and more if the job has more than a thousand files of checkpoints. If an object has
    no time that can be read, the time is that at which the store received the object.
    """
    with explained():
        signs = [*_of_metrics(job), *_of_checkpoints(job)]
    return max(signs, default=None)


def _of_metrics(job: Store) -> Iterator[datetime]:
    segments = [item for item in job.named(contract.METRICS_FILE) if item.size]
    if not segments:
        return
    newest = max(segments, key=lambda item: item.key)  # Keys sort by number: the numbers have leading zeros.
    start = max(0, newest.size - _TAIL_BYTES)
    lines = job.get_range(newest.key, start, _TAIL_BYTES).splitlines()
    times = (_time_in(line) for line in reversed(lines))
    yield from _first(next((time for time in times if time), None), newest)


def _of_checkpoints(job: Store) -> Iterator[datetime]:
    manifests = [
        item for item in job.objects(contract.CHECKPOINTS) if item.key.endswith(f"/{contract.MANIFEST_FILE}")
    ]
    if not manifests:
        return
    newest = max(manifests, key=lambda item: (item.modified or datetime.min.replace(tzinfo=UTC), item.key))
    yield from _first(_time_in(job.get_bytes(newest.key)), newest)


def _first(time: datetime | None, stored: StoredObject) -> Iterator[datetime]:
    found = time or stored.modified
    if found is not None:
        yield found.astimezone(UTC)


def _time_in(content: bytes) -> datetime | None:
    """Return the field `time` of a JSON object."""
    try:
        data: Any = json.loads(content)
        time = datetime.fromisoformat(data["time"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)
