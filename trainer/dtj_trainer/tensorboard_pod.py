"""The program of the TensorBoard image: `python -m dtj_trainer.tensorboard_pod [PORT]` serves the event files of one
job, on port 6006 unless told otherwise.

They are brought from the bucket into a folder as they appear and grow, and TensorBoard reads that folder: it would
not notice new files in a bucket itself. Nothing is ever written to the bucket.
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
from dtj_trainer.artifacts.event_files import FETCH_SECONDS, EventFiles
from dtj_trainer.artifacts.s3 import S3Error
from dtj_trainer.artifacts.store import open_store

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FrameType

log = logging.getLogger("dtj_trainer.tensorboard_pod")

STOP_SECONDS = 5.0


def main() -> None:
    """Serve until SIGTERM. The exit code is 78 for settings that can't be used, TensorBoard's own if it ends."""
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
    """Raises ValueError: what is wrong with the environment."""
    uri = environment.get(contract.ENV_ARTIFACTS_URI)
    if not uri:
        raise ValueError(
            f"{contract.ENV_ARTIFACTS_URI} is not set: the job's own prefix, s3://bucket/prefix/…"
        )
    try:
        store = open_store(uri)
    except ValueError as error:
        raise ValueError(f"{contract.ENV_ARTIFACTS_URI}: {error}") from None
    folder = Path(contract.root()) / contract.TENSORBOARD
    folder.mkdir(parents=True, exist_ok=True)
    log.info("serving the event files of %s", store.uri(contract.TENSORBOARD))
    return EventFiles(folder, store.objects, store.get_growth), folder


def _follow(events: EventFiles, process: subprocess.Popen[bytes], ending: threading.Event) -> int:
    """Fetch again and again, until TensorBoard ends or is to; a bucket that is away for a while is told once."""
    away = ""
    while True:
        try:
            events.fetch()
            if away:
                log.info("the bucket answers again")
            away = ""
        except S3Error as error:
            if str(error) != away:
                log.warning("%s; tried again every %.0f s", error, FETCH_SECONDS)
            away = str(error)
        if ending.wait(FETCH_SECONDS):
            return 0
        if (code := process.poll()) is not None:
            log.error("TensorBoard ended with exit code %s", code)
            return code if code > 0 else 1


if __name__ == "__main__":
    main()
