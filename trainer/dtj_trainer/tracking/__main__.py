"""`python -m dtj_trainer.tracking`: started by `dtj-launch`, never by a person."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys

from dtj_trainer.artifacts.store import open_store
from dtj_trainer.tracking.channel import Channel
from dtj_trainer.tracking.client import CLIENT_VARIABLES
from dtj_trainer.tracking.lines import LineFiles, LocalFiles, StoredFiles
from dtj_trainer.tracking.settings import TrackerSettings, read_tracker_settings


def main() -> None:
    """Track the attempt of this pod."""
    logging.basicConfig(format="dtj: %(levelname)s: %(message)s", level=logging.WARNING, stream=sys.stderr)
    logging.getLogger("dtj_trainer").setLevel(logging.INFO)
    # Ctrl-C sends SIGINT to `dtj-launch`, too, which then ends this process by a message.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Redirect the output of libraries to stderr: stdout carries the messages to `dtj-launch`.
    outgoing, sys.stdout = sys.stdout, sys.stderr
    channel = Channel(sys.stdin, outgoing)
    channel.start()
    settings = read_tracker_settings(os.environ)
    for name, value in CLIENT_VARIABLES.items():
        os.environ.setdefault(name, value)
    # Import mlflow after its variables are set. The import takes seconds, in which the pod restores its artifacts.
    from dtj_trainer.tracking.server import MlflowServer
    from dtj_trainer.tracking.tracker import Over, Tracker, job_params

    server = MlflowServer(settings.uri)
    if not channel.await_begin():
        return
    with contextlib.suppress(Over, BrokenPipeError):
        Tracker(server, settings, _files(settings), channel).run(job_params(settings.config_dir))


def _files(settings: TrackerSettings) -> LineFiles:
    if settings.artifacts_uri:
        return StoredFiles(open_store(settings.artifacts_uri))
    return LocalFiles(settings.root, settings.pod, settings.attempt)


if __name__ == "__main__":
    main()
