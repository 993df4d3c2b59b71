"""Gets files of a checkpoint from the job's other pods. What they do not give comes from the bucket."""

from __future__ import annotations

import http.client
import json
import logging
import time
from contextlib import closing
from typing import TYPE_CHECKING

from dtj_trainer.artifacts.offered_files import LEAST_BYTES
from dtj_trainer.artifacts.peer_askers import trackers_of

if TYPE_CHECKING:
    from dtj_trainer.artifacts.arriving_file import ArrivingFile
    from dtj_trainer.artifacts.manifest import StoredFile
    from dtj_trainer.artifacts.peer_hosts import PeerHosts
    from dtj_trainer.artifacts.ranged_download import ByteCount

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 10.0
"""How long a restore waits in all for pods that do not answer: pods of a job do not start at the same moment, and
none can train before all have started."""
CONNECT_SECONDS = 2.0
ANSWER_SECONDS = 10.0
"""How long a pod may take to say who has a file. It answers thousands of pods one after the other."""
STILL_SECONDS, STILL_SECONDS_FOR_EACH_ABOVE = 5.0, 2.0
"""A pod that sends nothing for so long is left. Who is further down in the tree waits longer, so that the pod above
has time to get the file elsewhere."""
SLOW_BYTES_PER_SECOND = 1e5
"""A pod that has sent fewer bytes than at this speed, after the time above, is left too."""
_RETRY_SECONDS = 0.25
_BLOCK_BYTES = 2**20
_ANSWER_BYTES = 4096


class CheckpointPeers:
    """The other pods, for one restore. Not thread-safe."""

    def __init__(self, hosts: PeerHosts, patience: float = PATIENCE_SECONDS) -> None:
        """`patience`: seconds to wait in all for pods that have not started yet."""
        self._hosts = hosts
        self._patience = patience
        self._silent: set[int] = set()
        self.bytes_received = 0
        """Bytes that came from other pods."""

    def takes(self, file: StoredFile) -> bool:
        """Return whether to ask other pods for the file."""
        return file.size >= LEAST_BYTES

    def in_own_order(self, files: list[StoredFile]) -> list[StoredFile]:
        """Return the files in another order for each pod, so that pods fetch different files from the bucket."""
        start = len(files) * self._hosts.own // self._hosts.pods.count
        return files[start:] + files[:start]

    def bring(self, file: StoredFile, arriving: ArrivingFile, received: ByteCount) -> None:
        """Let as much of a file arrive as other pods give. Raises OSError for errors of the disk."""
        sources = self._sources(file)
        for number, source in enumerate(sources):
            still = STILL_SECONDS + STILL_SECONDS_FOR_EACH_ABOVE * (len(sources) - number)
            before = arriving.at
            fault = self._get(source, file, arriving, received, still)
            self.bytes_received += arriving.at - before
            if fault is None:
                return
            log.debug("%s does not give %s: %s", self._hosts.host_of(source), file.path, fault)

    def _sources(self, file: StoredFile) -> list[int]:
        """Return the pods that may give the file, the best one first; empty: this one is the first that asks."""
        while True:
            started, answered = time.monotonic(), False
            for tracker in trackers_of(file.sha256, self._hosts.pods.count):
                try:
                    if sources := self._ask(tracker, file.sha256):
                        return sources
                    answered = True  # The next tracker may know a pod that asked before this tracker ran.
                except (OSError, http.client.HTTPException, ValueError) as error:
                    log.debug("%s does not answer: %s", self._hosts.host_of(tracker), error)
            if answered or self._patience <= 0:
                return []
            time.sleep(_RETRY_SECONDS)
            self._patience -= time.monotonic() - started

    def _ask(self, tracker: int, sha256: str) -> list[int]:
        with closing(self._connected(tracker)) as connection:
            connection.sock.settimeout(ANSWER_SECONDS)
            connection.request("POST", f"/checkpoints/{sha256}/askers/{self._hosts.own}")
            try:
                answer = connection.getresponse()
            except TimeoutError:
                self._silent.add(tracker)
                raise
            if answer.status != http.client.OK:
                raise OSError(f"status {answer.status}")
            try:
                pods = [int(pod) for pod in json.loads(answer.read(_ANSWER_BYTES))["pods"]]
            except (KeyError, TypeError) as error:
                raise ValueError(f"an answer that is none: {error!r}") from error
            return [pod for pod in pods if 0 <= pod < self._hosts.pods.count and pod != self._hosts.own]

    def _get(
        self, source: int, file: StoredFile, arriving: ArrivingFile, received: ByteCount, still: float
    ) -> str | None:
        """Let the rest of a file arrive from one pod; return why it does not, or None."""
        try:
            with closing(self._connected(source)) as connection:
                connection.sock.settimeout(still)
                rest = {"Range": f"bytes={arriving.at}-"}
                connection.request("GET", f"/checkpoints/{file.sha256}", headers=rest)
                answer = connection.getresponse()
                if answer.status != http.client.PARTIAL_CONTENT or answer.length != file.size - arriving.at:
                    return f"status {answer.status}, {answer.length} bytes"
                return _received(answer, file, arriving, received, still)
        except _DiskError as error:
            raise error.cause from error
        except (OSError, http.client.HTTPException) as error:
            return f"{type(error).__name__}: {error}"

    def _connected(self, pod: int) -> http.client.HTTPConnection:
        """Connect to a pod. Raises OSError."""
        if pod in self._silent:
            raise OSError("it did not answer before")
        connection = http.client.HTTPConnection(
            self._hosts.host_of(pod), self._hosts.port, timeout=CONNECT_SECONDS
        )
        try:
            connection.connect()
        except TimeoutError:  # Its node is gone: do not wait for it again.
            self._silent.add(pod)
            raise
        return connection


def _received(
    answer: http.client.HTTPResponse,
    file: StoredFile,
    arriving: ArrivingFile,
    received: ByteCount,
    still: float,
) -> str | None:
    start, began = arriving.at, time.monotonic()
    while arriving.at < file.size:
        block = answer.read1(_BLOCK_BYTES)
        if not block:
            return f"it stopped at {arriving.at} of {file.size} bytes"
        try:
            arriving.append(block)
        except OSError as error:
            raise _DiskError(error) from error
        received.add(len(block))
        if time.monotonic() - began > still + (arriving.at - start) / SLOW_BYTES_PER_SECOND:
            return f"it is slow: {arriving.at - start} bytes in {time.monotonic() - began:.0f} s"
    return None


class _DiskError(Exception):
    """An error of the own disk, which is no error of a connection."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(str(cause))
        self.cause = cause
