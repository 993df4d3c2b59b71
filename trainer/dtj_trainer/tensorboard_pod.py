"""The program of the TensorBoard image: `python -m dtj_trainer.tensorboard_pod [PORT]` serves the event files of one
job, on port 6006 by default.

The program copies event files from the bucket into a folder as they appear and grow, and TensorBoard reads the
folder. TensorBoard itself does not notice new files in a bucket. The program never writes to the bucket.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from dtj_trainer import contract
from dtj_trainer.artifacts.s3 import S3Error
from dtj_trainer.artifacts.store import own_store, path_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import FrameType

    from dtj_trainer.artifacts.store import StoredObject


# EventFiles mirrors the event files of a job from the bucket into a folder that TensorBoard reads.

_log = logging.getLogger(__name__)

FETCH_SECONDS = 5.0
"""Seconds from the end of one pass over the bucket to the next."""


class EventFiles:
    """Mirrors the bucket's TensorBoard files into a folder. Only reads the bucket."""

    def __init__(
        self,
        folder: Path,
        listed: Callable[[str], Iterable[StoredObject]],
        fetch_growth: Callable[[str, Path], None],
    ) -> None:
        """`listed` lists the objects below a folder, as `Store.objects`; `fetch_growth` works as
        `Store.get_growth`.
        """
        self._folder = folder.resolve()
        self._listed = listed
        self._fetch_growth = fetch_growth
        self._fetched: dict[str, str] = {}
        """ETags of the fetched objects, by key."""

    def fetch(self) -> int:
        """Fetch the files that are new or have changed, and return their number. Raises what the two callables
        raise.
        """
        fresh = [
            item for item in self._listed(contract.TENSORBOARD) if self._fetched.get(item.key) != item.etag
        ]
        fetched = 0
        for item in fresh:
            file = (self._folder / path_of(item.key).removeprefix(f"{contract.TENSORBOARD}/")).resolve()
            self._fetched[item.key] = item.etag
            if item.key.endswith("/") or not file.is_relative_to(self._folder):
                _log.warning("%s is not the key of an event file and is ignored", item.key)
                continue
            file.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._fetch_growth(item.key, file)
            except BaseException:
                del self._fetched[item.key]
                raise
            fetched += 1
        return fetched


log = logging.getLogger("dtj_trainer.tensorboard_pod")

STOP_SECONDS = 5.0


def main() -> None:
    """Serve until SIGTERM. Exits with 78 for invalid settings, and with TensorBoard's own code when TensorBoard
    ends.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    try:
        events, folder = _events(os.environ)
    except ValueError as error:
        log.error("%s", error)
        sys.exit(contract.EXIT_CONFIG)
    port = sys.argv[1] if len(sys.argv) > 1 else str(contract.TENSORBOARD_PORT)
    ending = threading.Event()

    def end(_number: int, _frame: FrameType | None) -> None:
        ending.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    command = [sys.executable, "-m", "dtj_trainer.tensorboard_program", str(os.getpid())]
    command += [f"--logdir={folder}", "--bind_all", f"--port={port}"]
    command += [f"--window_title={os.environ.get(contract.ENV_JOB, 'TensorBoard')}"]
    process = subprocess.Popen(command)  # noqa: S603
    try:
        sys.exit(_follow(events, process, ending))
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()


def _events(environment: Mapping[str, str]) -> tuple[EventFiles, Path]:
    """Read the environment. Raises ValueError, which says what is wrong."""
    store = own_store(environment)
    folder = Path(contract.root()) / contract.TENSORBOARD
    folder.mkdir(parents=True, exist_ok=True)
    log.info("serving the event files of %s", store.uri(contract.TENSORBOARD))
    return EventFiles(folder, store.objects, store.get_growth), folder


def _follow(events: EventFiles, process: subprocess.Popen[bytes], ending: threading.Event) -> int:
    """Fetch repeatedly until TensorBoard or this process ends. Repeated errors of the bucket are logged once."""
    away = ""
    while True:
        try:
            events.fetch()
            if away:
                log.info("the bucket is available again")
            away = ""
        except S3Error as error:
            if str(error) != away:
                log.warning("%s; retrying every %.0f s", error, FETCH_SECONDS)
            away = str(error)
        if ending.wait(FETCH_SECONDS):
            return 0
        if (code := process.poll()) is not None:
            log.error("TensorBoard ended with exit code %s", code)
            return code if code > 0 else 1


if __name__ == "__main__":
    main()
