"""Filters and orders of a history, by the columns of the cache. All functions are pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from dtj.api.status import Phase
from dtj_trainer.contract.history import IndexEntry, index_key

if TYPE_CHECKING:
    from dtj.client.past_job import PastJob


class SortBy(StrEnum):
    """The orders of a history. Times and numbers: the largest comes first; texts: by alphabet."""

    CREATED = "created"
    ENDED = "ended"
    NAME = "name"
    NAMESPACE = "namespace"
    PHASE = "phase"
    DURATION = "duration"
    RESTARTS = "restarts"
    PROGRESS = "progress"
    RATE = "rate"


_MOST = 2**62
"""The largest number that is stored. SQLite has no integers above 64 bits."""
_ORDERS = {
    SortBy.CREATED: "key",  # Keys of the index begin with an inverted time, so that the newest job comes first.
    SortBy.ENDED: "ended DESC NULLS LAST, key",
    SortBy.NAME: "name, namespace, key",
    SortBy.NAMESPACE: "namespace, name, key",
    SortBy.PHASE: "phase NULLS LAST, key",
    SortBy.DURATION: "seconds DESC NULLS LAST, key",
    SortBy.RESTARTS: "restarts DESC NULLS LAST, key",
    SortBy.PROGRESS: "percent DESC NULLS LAST, key",
    SortBy.RATE: "rate DESC NULLS LAST, key",
}


@dataclass(frozen=True)
class HistoryQuery:
    """Selects and orders jobs of a history; by default all jobs, newest first."""

    namespace: str | None = None
    name: str | None = None
    uid: str = ""
    """The beginning of the uid."""
    since: datetime | None = None
    """Only jobs that were created at this time or later."""
    phases: Sequence[Phase] = ()
    """Only jobs in one of these phases; a job without a recorded end has no phase."""
    sort_by: SortBy = SortBy.CREATED

    @property
    def of_the_index(self) -> bool:
        """Whether the index alone answers the query, without the records of the jobs."""
        return not self.phases and self.sort_by is SortBy.CREATED

    def fits(self, entry: IndexEntry) -> bool:
        """Return whether a job of the index can be among the answers."""
        return (
            self.namespace in (None, entry.namespace)
            and self.name in (None, entry.name)
            and entry.uid.startswith(self.uid)
            and (self.since is None or entry.created >= self.since)
        )

    def sql(self, limit: int | None) -> tuple[str, list[object]]:
        """Return the SQL after FROM, and the values of its placeholders."""
        conditions: list[tuple[str, list[object]]] = []
        if self.namespace is not None:
            conditions.append(("namespace = ?", [self.namespace]))
        if self.name is not None:
            conditions.append(("name = ?", [self.name]))
        if self.uid:
            conditions.append(("substr(uid, 1, ?) = ?", [len(self.uid), self.uid]))
        if self.since is not None:
            conditions.append(("created >= ?", [self.since.timestamp()]))
        if self.phases:
            marks = ", ".join("?" * len(self.phases))
            conditions.append((f"phase IN ({marks})", [phase.value for phase in self.phases]))
        where = " AND ".join(text for text, _ in conditions)
        values = [value for _, some in conditions for value in some]
        text = f"WHERE {where} " if where else ""
        return f"{text}ORDER BY {_ORDERS[self.sort_by]} LIMIT ?", [*values, -1 if limit is None else limit]


@dataclass(frozen=True)
class HistoryRow:
    """A job as the columns of the cache."""

    key: str
    values: tuple[object, ...]
    """The values of a job, in the order of the columns of `dtj.client.history_cache`."""


def row_of(past: PastJob) -> HistoryRow:
    """Return the columns of a job."""
    entry, progress = past.entry, past.status.progress
    key = index_key(*entry)
    restarts = past.status.restarts
    has_status = past.present is not None or past.end is not None
    final = past.end is not None and past.end.status.phase in (Phase.SUCCEEDED, Phase.FAILED)
    return HistoryRow(
        key,
        (
            key,
            entry.namespace,
            entry.name,
            entry.uid,
            entry.created.timestamp(),
            past.phase.value if past.phase else None,
            past.end.time.timestamp() if past.end and final else None,
            past.ended.timestamp() if past.ended else None,
            past.seconds,
            min(restarts.of_training, _MOST) if has_status else None,
            progress.percent if progress else None,
            progress.examples_per_second if progress else None,
        ),
    )
