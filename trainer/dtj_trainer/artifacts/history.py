"""Writes a job's history to the bucket: `run.json`, `end.json`, and the job's entry in the index.

The history harms no job: a request that the store refuses is logged, and nothing else follows from it.
"""

from __future__ import annotations

import json
import logging
import math
import threading
from typing import TYPE_CHECKING

from dtj_trainer import contract
from dtj_trainer.artifacts.fence import Superseded, put_fenced, read_claim
from dtj_trainer.artifacts.s3 import END_TRIES, Changed, NoSuchKey, NotSupported, S3Error
from dtj_trainer.artifacts.store import ABSENT, Store
from dtj_trainer.clock import now_text
from dtj_trainer.contract.history import (
    begun_at,
    is_passing,
    replaces,
    run_record,
    stored_object,
    success_record,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from dtj_trainer.artifacts.fence import Fence
    from dtj_trainer.contract.history import EndRecord, History

log = logging.getLogger(__name__)


class HistoryWriter:
    """Writes the history of one job. `store` is the job's own prefix."""

    def __init__(self, store: Store, history: History) -> None:
        self._store = store
        self._history = history
        self._begun: str | None = None
        self._refused = False

    def begin(self, fence: Fence) -> None:
        """Record that an attempt begins, and put the job into the index. Raises Superseded.

        The record of a suspension before this attempt is deleted: the job is not suspended any more.
        """
        try:
            stored, etag = self._read(contract.RUN_FILE)
            content = self._run(stored, fence.attempt)

            def put(condition: str | None) -> str:
                return self._store.put_bytes(contract.RUN_FILE, content, replaces=condition)

            put_fenced(self._store, fence, contract.RUN_FILE, etag, put)
            self.write_index()
            if fence.attempt > 1 and is_passing(stored_object(self._read(contract.END_FILE)[0])):
                self._store.delete([contract.END_FILE])
        except Superseded:
            raise
        except S3Error as error:
            self._tell(error)

    def end(
        self, by: str, attempt: int, report: Mapping[str, Any], fence: Fence | None, seconds: float = math.inf
    ) -> bool:
        """Record the job's success, as the pod that decides it; return whether `end.json` has it in time.

        by: `<role>-<index>` of the pod. report: its progress and artifacts. fence: its claim; None for a pod that
        claims nothing, and then the claim of a later attempt is looked for. seconds: how long to wait for the store.
        """
        recorded = threading.Event()

        def record() -> None:
            if self._end(by, attempt, report, fence):
                recorded.set()

        thread = threading.Thread(target=record, name="history", daemon=True)
        thread.start()
        thread.join(min(max(seconds, 0.0), threading.TIMEOUT_MAX))
        return recorded.is_set()

    def _end(self, by: str, attempt: int, report: Mapping[str, Any], fence: Fence | None) -> bool:
        try:
            if fence:
                fence.hold()
            else:
                claim, _ = read_claim(self._store, contract.CLAIM_FILE)
                if claim is not None and claim.attempt > attempt:
                    return False
            if self._begun is None:
                self._begun = begun_at(stored_object(self._read(contract.RUN_FILE)[0]))
            record = success_record(self._history, by, attempt, self._begun, now_text(), report)
            return self.write_end(record)
        except S3Error as error:
            self._tell(error)
            return False

    def write_run(self) -> None:
        """Write `run.json` without an attempt, unless the file is there. Raises S3Error."""
        self._put_absent(self._store, contract.RUN_FILE, self._run(None, None))

    def write_index(self) -> None:
        """Put the job's entry into the index, unless the entry is there. Raises S3Error."""
        root = self._root()
        if root is not None:
            self._put_absent(root, self._history.index_key, b"")

    def write_absent(self, key: str, content: bytes) -> None:
        """Write `job.yaml` or an archive of code, unless it is there. Raises S3Error."""
        self._put_absent(self._store, key, content)

    def write_end(self, record: EndRecord) -> bool:
        """Write `end.json`, unless the record there is a later one; return whether it was written. Raises S3Error."""
        content, conditional = _encoded(record), True
        if is_passing(record) and self._has_begun(record["status"].get("attempt")):
            log.info(
                "%s does not record the suspension: an attempt of the job has begun since",
                self._store.uri(contract.END_FILE),
            )
            return False
        for _ in range(END_TRIES):
            stored, etag = self._read(contract.END_FILE)
            if not replaces(stored_object(stored), record):
                log.info(
                    "%s is not replaced: it records a later end of the job",
                    self._store.uri(contract.END_FILE),
                )
                return False
            try:
                self._store.put_bytes(contract.END_FILE, content, replaces=etag if conditional else None)
            except Changed:
                continue
            except NotSupported:
                conditional = False
                continue
            return True
        raise S3Error(
            f"other processes change {self._store.uri(contract.END_FILE)} all the time", transient=True
        )

    def _has_begun(self, attempt: int | None) -> bool:
        claim, _ = read_claim(self._store, contract.CLAIM_FILE)
        return claim is not None and attempt is not None and claim.attempt >= attempt

    def _run(self, stored: bytes | None, attempt: int | None) -> bytes:
        record = run_record(self._history, stored_object(stored), attempt, now_text())
        self._begun = begun_at(record)
        return _encoded(record)

    def _root(self) -> Store | None:
        """Return the store of the job's `artifacts.uri`; None where the job's prefix does not end as the operator
        makes it.
        """
        location, own = self._store.location, self._history.prefix
        if not f"/{location.prefix}".endswith(f"/{own}"):
            return None
        return self._store.at(location._replace(prefix=location.prefix.removesuffix(own).strip("/")))

    def _read(self, key: str) -> tuple[bytes | None, str]:
        try:
            return self._store.get_with_etag(key)
        except NoSuchKey:
            return None, ABSENT

    def _put_absent(self, store: Store, key: str, content: bytes) -> None:
        try:
            store.put_bytes(key, content, replaces=ABSENT)
        except Changed:
            return
        except NotSupported:
            store.put_bytes(key, content)

    def _tell(self, error: S3Error) -> None:
        if not self._refused:
            log.warning("the job's history is not written: %s", error)
        self._refused = True


def _encoded(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, indent=1, ensure_ascii=False).encode(errors="replace") + b"\n"
