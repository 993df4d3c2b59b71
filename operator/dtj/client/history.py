"""The history of an `artifacts.uri`: the jobs that left their names in its index, also long after their deletion.

`history_cache` keeps what was read, `history_query` filters and orders, and `past_job` reads the records of a job.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from dtj.api.errors import Unusable
from dtj.api.masking import options_of_manifest
from dtj.api.yaml_lines import first_object
from dtj.client.artifacts import explained
from dtj.client.history_cache import CacheLost, HistoryCache, Known, cache_file
from dtj.client.history_query import HistoryQuery, SortBy, row_of
from dtj.client.last_sign import last_sign
from dtj.client.past_job import MOST_RECORD_BYTES, PastJob, RunRecord, Unreadable, read_end, read_run
from dtj.client.store_environment import endpoint_of, user_environment
from dtj_trainer.contract import JOB_FILE
from dtj_trainer.contract.history import END_FILE, INDEX, RUN_FILE, IndexEntry, index_key, parsed_index_key

if TYPE_CHECKING:
    from dtj.client.resource import DistributedTrainingJob
    from dtj_trainer.artifacts.store import Store


Options = dict[str, str]

_MOST_BYTES = 2 << 20
"""The largest size of a job.yaml. The API server takes no object of more than 1.5 MiB."""
_MOST_OPTIONS = 200
_MOST_LETTERS = 500


def read_options(store: Store, cache: HistoryCache, entries: Iterable[IndexEntry]) -> dict[str, Options]:
    """Return the options of jobs by uid, by one request for each job that the cache does not know.

    A job that left no job.yaml that can be read has no options. Raises Unreachable.
    """
    keys = {index_key(*entry): entry for entry in entries}
    known = cache.options(keys)
    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
        missing = [key for key in keys if key not in known]
        read = dict(zip(missing, pool.map(lambda key: _read(store, keys[key].prefix), missing), strict=True))
    cache.keep_options((key, json.dumps(options)) for key, options in read.items())
    found = {key: _stored(text) for key, text in known.items()} | read
    return {keys[key].uid: options for key, options in found.items()}


def _read(store: Store, prefix: str) -> Options:
    from dtj_trainer.artifacts.s3 import NoSuchKey

    with explained():
        try:
            found = store.get_changed(f"{prefix}/{JOB_FILE}", None, _MOST_BYTES)
        except NoSuchKey:
            return {}
    try:
        manifest = first_object(found[0].decode(errors="replace"), JOB_FILE) if found else None
    except Unusable:
        manifest = None
    options = options_of_manifest(manifest or {})
    return {name[:_MOST_LETTERS]: options[name][:_MOST_LETTERS] for name in list(options)[:_MOST_OPTIONS]}


def _stored(text: str) -> Options:
    options = json.loads(text)
    return {str(name): str(value) for name, value in options.items()} if isinstance(options, dict) else {}


T = TypeVar("T")
Progress = Callable[[int, int], None]
"""A function that is called with the number of jobs that are read so far, and the number of all jobs to read."""

REQUESTS_AT_ONCE = 16
_BATCH = 512
"""The largest number of records that are in memory at a time."""
_PAGE = 1000
_FIRST_PAGE = 100
"""The size of the first page when the index is refreshed: few jobs are new since the last refresh."""
DAY = 86_400.0
_LOOK_SECONDS = 60.0
"""Seconds after which a record that may change is read again. A command that shows a job reads its record at once."""
_OLD_SECONDS, _LOOK_AT_OLD_SECONDS = 7 * DAY, 3600.0
"""The age, in seconds, of an old job, and the seconds after which an old job without a recorded end is read again."""
_NAME = re.compile(r"[A-Za-z0-9]([-.A-Za-z0-9]*[A-Za-z0-9])?", re.ASCII)
_WHOLE = "whole"
_FRONT = "front"


class History:
    """Read the history of an `artifacts.uri`. All methods block, and raise Unreachable if the bucket does not answer.

    Use the history as `with History(uri) as history`. Read permission for the bucket (list and get) suffices.

    A cache in the user's cache folder keeps the index, and the recorded ends of jobs. The record of a job that has
    succeeded or failed is final after a day: such a job can't be resumed, and the last of its pods has ended by then.
    Other records are looked at again by their ETags.
    """

    def __init__(
        self,
        uri: str,
        environment: Mapping[str, str] | None = None,
        *,
        cache: Path | None = None,
        keep: bool = True,
        on_progress: Progress = lambda _done, _all: None,
    ) -> None:
        """Open the history without a request.

        uri: the `artifacts.uri` of jobs, such as `s3://training/jobs`. environment: AWS_* variables; by default those
        of the user, with the endpoint that the user named. cache: the file of the cache; by default one for each URI
        and endpoint. keep: whether to use a file. Raises Unusable for a malformed URI.
        """
        from dtj_trainer.artifacts.store import open_store

        self.uri = uri.rstrip("/")
        self.environment = user_environment() if environment is None else environment
        self._file = (cache or cache_file(self.uri, endpoint_of(self.environment))) if keep else None
        self.on_progress = on_progress
        try:
            self._store: Store = open_store(self.uri, self.environment)
        except ValueError as error:
            raise Unusable(str(error), "give the artifacts.uri of jobs, such as s3://training/jobs") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the cache."""
        if "_cache" in self.__dict__:
            self._cache.close()
            del self._cache

    def entries(self) -> Iterator[IndexEntry]:
        """Yield the jobs of the index, newest first, by one request for 1000 jobs."""
        return self._pages(_PAGE)

    def jobs(
        self,
        query: HistoryQuery | None = None,
        *,
        limit: int | None = 50,
        present: Iterable[DistributedTrainingJob] = (),
    ) -> list[PastJob]:
        """Return the jobs that a query selects, in its order.

        The newest jobs cost one request each, unless the cache has them. A query by phase, or in another order, reads
        the records of all jobs the first time: of 10,000 jobs with 20 seconds of a processor.
        limit: the largest number of jobs; None: all. present: jobs that a cluster still has. Their objects take
        precedence over the records.
        """
        wanted = query or HistoryQuery()
        objects = {job.uid: job for job in present}
        return self._retried(lambda: self._jobs(wanted, limit, objects))

    def find(self, query: HistoryQuery) -> list[IndexEntry]:
        """Return the jobs of the index that a query selects, newest first. Phases in the query have no effect."""
        wanted = replace(query, phases=(), sort_by=SortBy.CREATED)

        def found() -> list[IndexEntry]:
            self._refresh_index()
            return [_entry(key) for key in self._cache.select((), *wanted.sql(None))]

        return self._retried(found)

    def read(self, entry: IndexEntry) -> PastJob:
        """Read the record of one job from the bucket, or the last sign of a job without a recorded end."""
        content = self._ask(entry, None)
        past = self._past(entry, content[0] if content else None)
        return past if past.end else self._with_last_sign(past)

    def run(self, entry: IndexEntry) -> RunRecord | None:
        """Read run.json of a job; None if the job left no run.json that can be read."""
        from dtj_trainer.artifacts.s3 import NoSuchKey

        key = f"{entry.prefix}/{RUN_FILE}"
        with explained():
            try:
                found = self._store.get_changed(key, None, MOST_RECORD_BYTES)
                return read_run(found[0], entry.uid) if found else None
            except (NoSuchKey, Unreadable):
                return None

    def options(self, entries: Iterable[IndexEntry]) -> dict[str, Options]:
        """Return the options of the programs' command lines by uid; see `dtj.client.history`."""
        wanted = list(entries)
        return self._retried(lambda: read_options(self._store, self._cache, wanted))

    def _jobs(
        self, query: HistoryQuery, limit: int | None, objects: Mapping[str, DistributedTrainingJob]
    ) -> list[PastJob]:
        began = time.time()
        if query.of_the_index and query.name is None and not query.uid:
            entries = self._newest(query, limit)
            self._cache.add(row_of(PastJob(entry, "")) for entry in entries)
        else:
            self._refresh_index()
            if not query.of_the_index:
                self._read_due()
            live = [row_of(PastJob(entry, "", present=job)) for entry, job in _entries_of(objects.values())]
            entries = [_entry(key) for key in self._cache.select(live, *query.sql(limit))]
        known = self._cache.known(index_key(*entry) for entry in entries)
        self._read([each for each in known if each.looked < began and not _is_final(each, began)])
        contents = self._cache.contents(index_key(*entry) for entry in entries)
        jobs = [
            self._past(entry, contents.get(index_key(*entry))).with_present(objects.get(entry.uid))
            for entry in entries
        ]
        faults = self._faults
        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
            return list(pool.map(lambda past: self._finished(past, faults.get(index_key(*past.entry))), jobs))

    def _finished(self, past: PastJob, fault: str | None) -> PastJob:
        """Return the job. If no end is recorded, add the last sign of the job, which the cache does not keep."""
        if past.end is not None or past.present is not None:
            return past
        return self._with_last_sign(PastJob(past.entry, past.uri, fault=fault))

    def _newest(self, query: HistoryQuery, limit: int | None) -> list[IndexEntry]:
        """Return the newest jobs that a query selects, from as many pages of the index as they need."""
        found: list[IndexEntry] = []
        narrow = query.namespace is not None or limit is None
        for entry in self._pages(_PAGE if narrow else min(max(limit or 0, 1), _PAGE)):
            if (query.since and entry.created < query.since) or (limit is not None and len(found) >= limit):
                break
            if query.fits(entry):
                found.append(entry)
                if limit is not None and len(found) >= limit:
                    break
        return found

    def _refresh_index(self) -> None:
        """Bring the index in the cache up to date.

        The index is sorted by the time at which a job was created, but a job appears only when its first pod starts.
        Therefore the refresh lists one day more than the time since the last refresh, and once a day the whole index.
        """
        now = time.time()
        whole_at = self._cache.listed(_WHOLE)
        if now - whole_at > DAY:
            keys = []
            for page in _batches(self._pages(_PAGE), _PAGE):
                self._cache.add(row_of(PastJob(entry, "")) for entry in page)
                keys += [index_key(*entry) for entry in page]
            self._cache.keep_only(keys)
            self._cache.add((), listing=(_WHOLE, now))
            return
        until = max(whole_at, self._cache.listed(_FRONT)) - DAY
        front = []
        for entry in self._pages(_FIRST_PAGE):
            if entry.created.timestamp() < until:
                break
            front.append(row_of(PastJob(entry, "")))
        self._cache.add(front, listing=(_FRONT, now))

    def _read_due(self) -> None:
        """Read the records that the cache lacks, or that may have changed."""
        now = time.time()
        young, old = now - _LOOK_SECONDS, now - _LOOK_AT_OLD_SECONDS
        due = self._cache.to_look_at(
            "(recorded IS NULL OR recorded > ?) AND looked < CASE WHEN created > ? THEN ? ELSE ? END",
            (now - DAY, now - _OLD_SECONDS, young, old),
        )
        self._read(due)

    def _read(self, due: Sequence[Known]) -> None:
        """Read records into the cache, and the faults of records that can't be read."""
        done, total = 0, len(due)
        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
            for batch in _batches(due, _BATCH):
                now = time.time()
                answers = list(pool.map(lambda known: self._ask(_entry(known.key), known.etag), batch))
                self._store_answers(batch, answers, now)
                done += len(batch)
                self.on_progress(done, total)

    def _store_answers(
        self, asked: Sequence[Known], answers: Sequence[tuple[bytes, str] | None], now: float
    ) -> None:
        fresh, same = [], []
        for known, answer in zip(asked, answers, strict=True):
            entry = _entry(known.key)
            if answer is None:
                same.append(known.key)
                continue
            content, etag = answer
            past = self._past(entry, content or None)
            if past.fault:
                self._faults[known.key] = past.fault
            ended = past.end is not None
            fresh.append((row_of(past), etag if ended else None, content if ended else None))
        self._cache.record(fresh, now)
        self._cache.looked(same, now)

    def _ask(self, entry: IndexEntry, etag: str | None) -> tuple[bytes, str] | None:
        """Return content and ETag of a job's record: None if the ETag is still `etag`, empty without a record."""
        from dtj_trainer.artifacts.s3 import NoSuchKey

        with explained():
            try:
                return self._store.get_changed(f"{entry.prefix}/{END_FILE}", etag, MOST_RECORD_BYTES)
            except NoSuchKey:
                return b"", ""

    def _past(self, entry: IndexEntry, content: bytes | None) -> PastJob:
        uri = f"{self.uri}/{entry.prefix}"
        if not content:
            return PastJob(entry, uri)
        try:
            return PastJob(entry, uri, read_end(content, entry.uid))
        except Unreadable as error:
            return PastJob(entry, uri, fault=str(error))

    def _with_last_sign(self, past: PastJob) -> PastJob:
        sign = last_sign(self._store.below(past.entry.prefix))
        return PastJob(past.entry, past.uri, fault=past.fault, last_sign=sign)

    def _pages(self, size: int) -> Iterator[IndexEntry]:
        after = ""
        while True:
            with explained():
                page = self._store.page(INDEX, after, size)
            yield from (entry for item in page if (entry := _usable(parsed_index_key(item.key))))
            if len(page) < size:
                return
            after, size = page[-1].key, _PAGE

    def _retried(self, work: Callable[[], T]) -> T:
        """Do some work on the cache. Repeat the work if the file of the cache was lost meanwhile, at most twice."""
        for _ in range(2):
            self._faults: dict[str, str] = {}
            try:
                return work()
            except CacheLost:
                continue
        return work()

    @cached_property
    def _cache(self) -> HistoryCache:
        return HistoryCache(self._file)


def _is_final(known: Known, now: float) -> bool:
    return known.recorded is not None and now - known.recorded > DAY


def _entry(key: str) -> IndexEntry:
    entry = parsed_index_key(key)
    assert entry is not None, key
    return entry


def _usable(entry: IndexEntry | None) -> IndexEntry | None:
    """Return None for a job whose name Kubernetes does not allow: a user of the bucket can write any key."""
    names = (entry.namespace, entry.name, entry.uid) if entry else ("",)
    return entry if all(map(_NAME.fullmatch, names)) else None


def _entries_of(
    jobs: Iterable[DistributedTrainingJob],
) -> Iterator[tuple[IndexEntry, DistributedTrainingJob]]:
    for job in jobs:
        if created := job.metadata.creation_timestamp:
            yield IndexEntry(datetime.fromisoformat(created), job.namespace, job.name, job.uid), job


def _batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    batch: list[T] = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
