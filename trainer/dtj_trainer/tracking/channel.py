"""The messages between `dtj-launch` and the tracking process: JSON lines on the process's stdin and stdout.

From `dtj-launch`: `begin` with the stored tracking.json, `artifacts` as they are now, `restarts` in place so far,
`end` with the run's status.
From the process: `run` with its id, `waiting` with the reason, `state` with the new tracking.json.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from typing import Any, TextIO

from dtj_trainer import contract


class Channel:
    """The tracking process's side of the messages. Thread-safe."""

    def __init__(self, incoming: Iterable[str], outgoing: TextIO) -> None:
        self._incoming, self._outgoing = incoming, outgoing
        self._changed = threading.Condition()
        self._began = False
        self.stored: dict[str, Any] = {}
        """The tracking.json of the bucket; empty where there is none."""
        self.artifacts: contract.Artifacts = {}
        self.restarts = 0
        """The restarts in place of this attempt."""
        self.end: str | None = None
        """The status in which the run ends; None while the programs run."""
        self.closed = False
        """Whether `dtj-launch` has closed this process's stdin, or has ended."""

    def start(self) -> None:
        """Read messages in the background."""
        threading.Thread(target=self._read, name="channel", daemon=True).start()

    def _read(self) -> None:
        for line in self._incoming:
            message = json.loads(line)
            with self._changed:
                if "begin" in message:
                    self.stored, self._began = message["begin"] or {}, True
                elif "artifacts" in message:
                    self.artifacts = message["artifacts"]
                elif "restarts" in message:
                    self.restarts = int(message["restarts"])
                elif "end" in message:
                    self.end = str(message["end"])
                self._changed.notify_all()
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    def await_begin(self) -> bool:
        """Wait until the pod holds the claim of its attempt; return False if `dtj-launch` ended before."""
        with self._changed:
            self._changed.wait_for(lambda: self._began or self.closed)
            return self._began

    def wait(self, seconds: float) -> None:
        """Wait for some seconds, or until the programs have ended."""
        with self._changed:
            self._changed.wait_for(lambda: self.end is not None or self.closed, seconds)

    def tell(self, **message: object) -> None:
        """Send a message to `dtj-launch`."""
        self._outgoing.write(json.dumps(message) + "\n")
        self._outgoing.flush()
