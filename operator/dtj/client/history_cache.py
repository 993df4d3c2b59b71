"""The user's cache of a history: the index of jobs and the records of jobs that have ended, in a SQLite file.

The state of a job without a recorded end is never kept. Several commands may use the file at the same time. A damaged
file, or a file of a later release, is renamed, and a new file is created: the bucket has all of the content.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from dtj.client.history_query import HistoryRow

T = TypeVar("T")

SCHEMA = 2
"""The version of the tables. A release that changes the tables increments the version."""
_BUSY_SECONDS = 30.0
"""Seconds for which a command waits for another command's write."""
_COLUMNS = """key TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL, uid TEXT NOT NULL,
    created REAL NOT NULL, phase TEXT, recorded REAL, ended REAL, seconds REAL, restarts INTEGER, percent REAL,
    rate REAL"""
"""The columns of a HistoryRow. Times are seconds since 1970."""
_NAMES = "key, namespace, name, uid, created, phase, recorded, ended, seconds, restarts, percent, rate"
_MARKS = ", ".join("?" * len(_NAMES.split(",")))
_TABLES = f"""
CREATE TABLE jobs ({_COLUMNS}, etag TEXT, looked REAL NOT NULL DEFAULT 0, record BLOB, PRIMARY KEY (key));
CREATE INDEX jobs_by_name ON jobs (name);
CREATE TABLE listings (kind TEXT PRIMARY KEY, time REAL NOT NULL);
CREATE TABLE options (key TEXT PRIMARY KEY, options TEXT NOT NULL);
"""
_ADD = " ".join(("INSERT OR IGNORE INTO jobs (", _NAMES, ") VALUES (", _MARKS, ")"))
_RECORD = " ".join(
    ("INSERT OR REPLACE INTO jobs (", _NAMES, ", etag, looked, record) VALUES (", _MARKS, ", ?, ?, ?)")
)
_MAKE_LIVE = f"CREATE TEMP TABLE IF NOT EXISTS live ({_COLUMNS})"
_ADD_LIVE = " ".join(("INSERT INTO live VALUES (", _MARKS, ")"))
_WITH_LIVE = " ".join(
    (
        *("( SELECT", _NAMES, "FROM jobs WHERE key NOT IN (SELECT key FROM live) UNION ALL"),
        *("SELECT", _NAMES, "FROM live WHERE key IN (SELECT key FROM jobs) )"),
    )
)


class CacheLost(Exception):
    """The file was damaged or could not be written. The cache is now empty: the caller must begin again."""


@dataclass(frozen=True)
class Known:
    """What the cache has of a job, and when the bucket was asked last."""

    key: str
    etag: str | None
    looked: float
    """When the record was last read, in seconds since 1970; 0: never."""
    recorded: float | None
    """When success or failure was recorded, in seconds since 1970; None: neither is in the cache."""


def cache_file(uri: str, endpoint: str | None) -> Path:
    """Return the file for the history of a URI at an endpoint, in the user's cache folder (XDG_CACHE_HOME)."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    folder = Path(given) if Path(given).is_absolute() else Path.home() / ".cache"
    place = hashlib.sha256(f"{uri.rstrip('/')}\n{endpoint or ''}".encode()).hexdigest()[:16]
    return folder / "dtj" / f"history-{place}.sqlite"


class HistoryCache:
    """A cache in a file, or in memory if the file can't be written. Close the cache after use."""

    def __init__(self, file: Path | None) -> None:
        """file: the path of the cache; None: keep the cache in memory only."""
        self._file = file
        self._connection = self._opened()

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def listed(self, kind: str) -> float:
        """Return when a listing of that kind was made, in seconds since 1970; 0: never."""
        found = self._do(
            lambda db: db.execute("SELECT time FROM listings WHERE kind = ?", (kind,)).fetchone()
        )
        return float(found[0]) if found else 0.0

    def add(self, rows: Iterable[HistoryRow], *, listing: tuple[str, float] | None = None) -> None:
        """Add jobs of the index that are not in the cache. listing: kind and time of the finished listing."""
        values = [row.values for row in rows]

        def write(db: sqlite3.Connection) -> None:
            db.executemany(_ADD, values)
            if listing:
                db.execute("INSERT OR REPLACE INTO listings VALUES (?, ?)", listing)

        self._write(write)

    def keep_only(self, keys: Iterable[str]) -> None:
        """Remove the jobs whose keys are no longer in the index."""

        def write(db: sqlite3.Connection) -> None:
            db.execute("CREATE TEMP TABLE IF NOT EXISTS kept (key TEXT PRIMARY KEY)")
            db.execute("DELETE FROM kept")
            db.executemany("INSERT OR IGNORE INTO kept VALUES (?)", ((key,) for key in keys))
            db.execute("DELETE FROM jobs WHERE key NOT IN (SELECT key FROM kept)")
            db.execute("DELETE FROM options WHERE key NOT IN (SELECT key FROM kept)")

        self._write(write)

    def known(self, keys: Iterable[str]) -> list[Known]:
        """Return what the cache has of some jobs."""

        def read(db: sqlite3.Connection) -> list[Known]:
            text = "SELECT key, etag, looked, recorded FROM jobs WHERE key = ?"
            found = (db.execute(text, (key,)).fetchone() for key in keys)
            return [Known(*row) for row in found if row]

        return self._do(read)

    def to_look_at(self, where: str, values: Sequence[object]) -> list[Known]:
        """Return what the cache has of the jobs for which a condition holds, newest first."""
        text = " ".join(("SELECT key, etag, looked, recorded FROM jobs WHERE", where, "ORDER BY key"))
        return self._do(lambda db: [Known(*row) for row in db.execute(text, values)])

    def record(self, answers: Iterable[tuple[HistoryRow, str | None, bytes | None]], now: float) -> None:
        """Store what the bucket answered: the row of each job, and the ETag and the content of its end.json.

        Without a content, an earlier record of the job is removed. now: seconds since 1970.
        """
        values = [(*row.values, etag, now, content) for row, etag, content in answers]
        self._write(lambda db: db.executemany(_RECORD, values))

    def looked(self, keys: Iterable[str], now: float) -> None:
        """Store that the records of these jobs in the bucket have not changed. now: seconds since 1970."""
        values = [(now, key) for key in keys]
        self._write(lambda db: db.executemany("UPDATE jobs SET looked = ? WHERE key = ?", values))

    def contents(self, keys: Iterable[str]) -> dict[str, bytes]:
        """Return the content of end.json of the jobs whose end is in the cache."""
        found = self._by_key("SELECT record FROM jobs WHERE key = ? AND record IS NOT NULL", keys)
        return {key: bytes(record) for key, record in found.items()}

    def options(self, keys: Iterable[str]) -> dict[str, str]:
        """Return the options of the programs of the jobs whose options are in the cache, as JSON."""
        found = self._by_key("SELECT options FROM options WHERE key = ?", keys)
        return {key: str(options) for key, options in found.items()}

    def _by_key(self, text: str, keys: Iterable[str]) -> dict[str, Any]:
        """Return the result of an SQL query for each key, without the keys that have no row."""

        def read(db: sqlite3.Connection) -> dict[str, Any]:
            found = ((key, db.execute(text, (key,)).fetchone()) for key in keys)
            return {key: row[0] for key, row in found if row}

        return self._do(read)

    def keep_options(self, options: Iterable[tuple[str, str]]) -> None:
        """Store the options of the programs, as JSON. The options of jobs that have not ended are left out."""
        text = (
            "INSERT OR REPLACE INTO options SELECT ?, ? "
            "WHERE EXISTS (SELECT 1 FROM jobs WHERE key = ? AND recorded IS NOT NULL)"
        )
        values = [(key, content, key) for key, content in options]
        self._write(lambda db: db.executemany(text, values))

    def select(self, live: Iterable[HistoryRow], where: str, values: Sequence[object]) -> list[str]:
        """Return the keys of jobs in the order of a query.

        live: rows that take precedence over those of the cache, of jobs that the cluster still has.
        where: the part of the query after FROM, of `HistoryQuery.sql`, and its values.
        """
        rows = [row.values for row in live]
        text = " ".join(("SELECT key FROM", _WITH_LIVE, where))

        def read(db: sqlite3.Connection) -> list[str]:
            db.execute(_MAKE_LIVE)
            db.execute("DELETE FROM live")
            db.executemany(_ADD_LIVE, rows)
            return [row[0] for row in db.execute(text, values)]

        return self._do(read)

    def _write(self, change: Callable[[sqlite3.Connection], object]) -> None:
        def whole(db: sqlite3.Connection) -> None:
            db.execute("BEGIN IMMEDIATE")
            try:
                change(db)
            except BaseException:
                with suppress(sqlite3.Error):
                    db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")

        self._do(whole)

    def _do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do some work. If the file can't be used, begin a new cache, and raise CacheLost."""
        try:
            return work(self._connection)
        except sqlite3.DatabaseError as error:
            if self._file is None:
                raise
            with suppress(sqlite3.Error):
                self._connection.close()
            if _is_damage(error):
                _set_aside(self._file, self._inode)
            else:
                # The disk is full, or another command held the file for too long.
                self._file = None
            self._connection = self._opened()
            raise CacheLost from error

    def _opened(self) -> sqlite3.Connection:
        if self._file is not None:
            try:
                return self._opened_file(self._file)
            except (OSError, sqlite3.Error):
                self._file = None  # The cache folder can't be written: keep the cache in memory.
        connection = _connected(":memory:")
        _make_tables(connection)
        return connection

    def _opened_file(self, file: Path) -> sqlite3.Connection:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _locked(file):
            for last in (False, True):
                # Create the file here with mode 0600: SQLite would use the umask. Its journal files get the same
                # mode.
                descriptor = os.open(file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
                with closing(os.fdopen(descriptor, "rb")):
                    os.fchmod(descriptor, 0o600)
                    self._inode = os.fstat(descriptor).st_ino
                connection = _connected(str(file))
                try:
                    version = connection.execute("PRAGMA user_version").fetchone()[0]
                    if version == SCHEMA:
                        return connection
                    if version == 0 and not _tables(connection):
                        _make_tables(connection)
                        return connection
                except sqlite3.DatabaseError as error:
                    if last or not _is_damage(error):
                        connection.close()
                        raise
                connection.close()
                _replace(file)
        raise sqlite3.DatabaseError(f"{file} can't be used")


def _connected(name: str) -> sqlite3.Connection:
    connection = sqlite3.connect(name, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
    except sqlite3.DatabaseError as error:
        if not _is_damage(error):
            connection.close()
            raise
        # Ignore the error: the first read of the database raises it again.
    return connection


def _make_tables(connection: sqlite3.Connection) -> None:
    connection.executescript(f"BEGIN; {_TABLES} PRAGMA user_version = {SCHEMA}; COMMIT;")


def _tables(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    """Return whether an error comes from the file's content: no database, a damaged one, or one with other tables."""
    name = getattr(error, "sqlite_errorname", "")
    return name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_SCHEMA")) or name == "SQLITE_ERROR"


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Hold a lock, so that only one command at a time opens, creates or renames the file."""
    lock = os.open(file.with_suffix(".lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _set_aside(file: Path, inode: int) -> None:
    """Rename a damaged file, unless another command has already replaced the file."""
    with _locked(file):
        with suppress(OSError):
            if file.stat().st_ino != inode:
                return
        _replace(file)


def _replace(file: Path) -> None:
    with suppress(OSError):
        file.replace(file.with_suffix(".aside"))
    for suffix in ("-wal", "-shm"):
        Path(f"{file}{suffix}").unlink(missing_ok=True)
