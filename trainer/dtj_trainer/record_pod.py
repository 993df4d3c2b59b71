"""The program of a record pod: `python -m dtj_trainer.record_pod` writes the end of a job to its bucket.

The operator makes the pod for a job whose own pods did not record the end, and hands it `end.json` in DTJ_END. A job
whose pods never ran also gets `run.json`, its entry in the index, and `job.yaml` and `code.tar.gz`, if the job's
ConfigMaps are mounted.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, cast

from dtj_trainer import contract
from dtj_trainer.artifacts.history import HistoryWriter
from dtj_trainer.artifacts.s3 import S3Error, retry_transient
from dtj_trainer.artifacts.store import own_store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dtj_trainer.contract.history import EndRecord

log = logging.getLogger("dtj_trainer.record_pod")

PATIENCE_SECONDS = 60.0
"""Seconds for a store that does not answer. The operator makes another pod afterwards."""


def main() -> None:
    """Write the record. Exits with 78 for invalid settings, and with 69 when the store does not take the record.

    The termination message says why.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    # Handle SIGTERM: process 1 of a container ignores signals without a handler.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        record(os.environ)
    except ValueError as error:
        _end(contract.EXIT_CONFIG, str(error))
    except S3Error as error:
        _end(contract.EXIT_UNAVAILABLE, str(error))


def record(environment: Mapping[str, str]) -> bool:
    """Write what is missing of a job's history; return False if the bucket keeps a later `end.json`.

    Raises ValueError, which names the invalid variable, and S3Error.
    """
    store = own_store(environment)
    try:
        history = contract.History.from_json(environment.get(contract.ENV_HISTORY, ""))
    except ValueError as error:
        raise ValueError(f"{contract.ENV_HISTORY} can't be read: {error}") from None
    end = _end_of(environment.get(contract.ENV_END, ""))
    job = Path(environment.get(contract.ENV_CONFIG_DIR) or contract.CONFIG_DIR) / contract.JOB_FILE
    code = Path(environment.get(contract.ENV_CODE_ARCHIVE) or contract.CODE_DIR / contract.CODE_FILE)
    packages = Path(contract.PACKAGES_DIR / contract.PACKAGES_FILE)
    writer = HistoryWriter(store, history)

    def write() -> bool:
        written = writer.write_end(end)
        try:
            writer.write_index()
            writer.write_run()
            archives = ((contract.CODE_FILE, code), (contract.PACKAGES_FILE, packages))
            for key, file in ((contract.JOB_FILE, job), *archives):
                if file.is_file():
                    writer.write_absent(key, file.read_bytes())
        except S3Error as error:
            if error.transient:
                raise
            log.warning("the end is recorded, but not all of the history is: %s", error)
        return written

    def on_wait(error: S3Error, delay: float) -> None:
        log.warning("can't write the record of the job to S3; trying again in %.1f s: %s", delay, error)

    written = retry_transient(write, timeout=PATIENCE_SECONDS, on_wait=on_wait)
    log.info("%s has the end of the job", store.uri(contract.END_FILE))
    return written


def _end_of(text: str) -> EndRecord:
    try:
        end = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{contract.ENV_END} can't be read: {error}") from None
    if not isinstance(end, dict) or not isinstance(end.get("status"), dict) or "uid" not in end:
        raise ValueError(f"{contract.ENV_END} must be an object with uid and status")
    return cast("EndRecord", end)


def _end(code: int, message: str) -> NoReturn:
    log.error("%s", message)
    path = Path(os.environ.get(contract.ENV_TERMINATION_LOG) or contract.TERMINATION_LOG)
    try:
        path.write_text(message[: contract.TERMINATION_MESSAGE_BYTES // 4])
    except OSError as error:
        log.warning("the termination message could not be written: %s", error)
    sys.exit(code)


if __name__ == "__main__":
    main()
