"""What pods give each other in a round: a manifest and the files that it names, each by its hash.

All pods begin a round at the same time. A fixed binary tree below the pod of rank 0 therefore suffices: no pod has to
ask where to get a file, as at a restore (see `peers`).
"""

from __future__ import annotations

import hashlib
import http.client
import json
import logging
import time
from contextlib import closing
from typing import TYPE_CHECKING

from dtj_trainer.artifacts.manifest import Manifest, ManifestError
from dtj_trainer.artifacts.peers import BUSY, PATIENCE_SECONDS, CheckpointPeers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dtj_trainer.artifacts.arriving_file import ArrivingFile
    from dtj_trainer.artifacts.download import ByteCount
    from dtj_trainer.artifacts.manifest import StoredFile
    from dtj_trainer.artifacts.peer_hosts import PeerHosts

log = logging.getLogger(__name__)

MOST_MANIFEST_BYTES = 64 * 2**20
ROOT = 0
"""The number of the pod of rank 0."""
_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.05, 1.0
_ANSWER_SECONDS = 30.0
_ANSWER_BYTES, _BLOCK_BYTES = 4096, 2**20
_BUSY_SECONDS = 300.0
"""How long to repeat a request that pods refuse because they have too many other transfers (status 429)."""


class NotPutBack(Exception):
    """The folder can't become the snapshot, or no snapshot can be named. The message says why."""


class RoundPeers(CheckpointPeers):
    """A client of the other pods, for one round. May be used from several threads."""

    def __init__(self, hosts: PeerHosts, patience: float = PATIENCE_SECONDS) -> None:
        """`patience`: the seconds for which a request that no pod fulfils is repeated."""
        super().__init__(hosts, patience)
        self._above = sources_above(hosts.own, hosts.pods.count)

    def takes(self, file: StoredFile) -> bool:
        """Return whether to ask other pods for the file."""
        del file
        return bool(self._above)

    def in_own_order(self, files: list[StoredFile]) -> list[StoredFile]:
        """Return the files in the order in which all pods fetch them, so that each pod can pass them on."""
        return files

    def bring(self, file: StoredFile, arriving: ArrivingFile, received: ByteCount) -> None:
        """Receive as much of a file as other pods send. Raises OSError for errors of the disk."""
        if file.size:
            self._tried(
                lambda source: self._from(source, file, arriving, received), self._above, once=bool(file.key)
            )

    def _from(self, source: int, file: StoredFile, arriving: ArrivingFile, received: ByteCount) -> str | None:
        before = arriving.at
        fault = self._get(source, file, arriving, received, _ANSWER_SECONDS)
        self.bytes_received += arriving.at - before
        return fault

    def manifest(self, sha256: str) -> Manifest:
        """Fetch the manifest with this hash. Raises NotPutBack."""
        found: list[Manifest] = []

        def get(source: int) -> str | None:
            try:
                found.append(self.manifest_from(source, sha256))
            except (OSError, http.client.HTTPException, ManifestError) as error:
                return f"{type(error).__name__}: {error}"
            return None

        if fault := self._tried(get, self._above):
            raise NotPutBack(f"no other pod sends the manifest of the checkpoint: {fault}")
        return found[0]

    def manifest_of_root(self, sha256: str) -> Manifest | None:
        """Fetch the manifest with this hash from the pod of rank 0; None if that pod does not offer it."""
        found: list[Manifest] = []

        def get(source: int) -> str | None:
            try:
                found.append(self.manifest_from(source, sha256))
            except (OSError, http.client.HTTPException, ManifestError) as error:
                return str(error) if BUSY in str(error) else None
            return None

        self._tried(get, [ROOT])
        return found[0] if found else None

    def manifest_from(self, source: int, sha256: str) -> Manifest:
        """Fetch the manifest with this hash from one pod. Raises OSError, HTTPException and ManifestError."""
        with closing(self._connected(source)) as connection:
            connection.sock.settimeout(_ANSWER_SECONDS)
            connection.request("GET", f"/checkpoints/{sha256}")
            answer = connection.getresponse()
            if answer.status != http.client.OK:
                raise OSError(f"HTTP status {answer.status}")
            if answer.length is None:
                raise ManifestError("the answer with the manifest has no Content-Length")
            if answer.length > MOST_MANIFEST_BYTES:
                raise ManifestError(
                    f"the manifest has {answer.length} bytes; the limit is {MOST_MANIFEST_BYTES}"
                )
            content, deadline = bytearray(), time.monotonic() + _ANSWER_SECONDS
            while block := answer.read1(_BLOCK_BYTES):
                content += block
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"the pod is slow: {len(content)} bytes of the manifest in {_ANSWER_SECONDS:g} s"
                    )
            return verified(bytes(content), sha256)

    def lacks(self, pod: int, sha256: str) -> int:
        """Ask a pod how many of its files a manifest lacks. Raises OSError, HTTPException and ValueError."""
        with closing(self._connected(pod)) as connection:
            connection.sock.settimeout(_ANSWER_SECONDS)
            connection.request("POST", f"/rounds/{sha256}/lacks")
            answer = connection.getresponse()
            if answer.status != http.client.OK:
                raise OSError(f"HTTP status {answer.status}")
            try:
                return int(json.loads(answer.read(_ANSWER_BYTES))["files"])
            except (KeyError, TypeError) as error:
                raise ValueError(f"the answer has no number of files: {error!r}") from error

    def _tried(
        self, get: Callable[[int], str | None], sources: Sequence[int], *, once: bool = False
    ) -> str | None:
        """Call `get` for each pod until a call succeeds; return the last fault, or None.

        once: call it once for each pod, because the caller can get the file from the bucket, too.
        """
        began, pause = time.monotonic(), _PAUSE_SECONDS
        fault, patience = "there is no other pod", 0.0
        while sources:
            for source in sources:
                self._silent.discard(ROOT)
                if (found := get(source)) is None:
                    return None
                log.debug("%s does not send the file: %s", self._hosts.host_of(source), found)
                fault = f"{self._hosts.host_of(source)}: {found}"
                patience = _BUSY_SECONDS if BUSY in found else self._patience
            if once or time.monotonic() > began + patience:
                break
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        return fault


def sources_above(own: int, pods: int) -> list[int]:
    """Return the pods from which pod `own` gets files, the nearest first; none for the pod of rank 0."""
    found, place = [], (own - ROOT) % pods
    while place:
        place = (place - 1) // 2
        found.append((place + ROOT) % pods)
    return found


def hash_of(manifest: Manifest) -> tuple[str, bytes]:
    """Return the SHA-256 of a manifest as this release serializes the manifest, and the serialized bytes."""
    content = manifest.to_json()
    return hashlib.sha256(content).hexdigest(), content


def verified(content: bytes, sha256: str) -> Manifest:
    """Read a manifest after a comparison with its hash. Raises ManifestError."""
    if hashlib.sha256(content).hexdigest() != sha256:
        raise ManifestError(f"the SHA-256 of the manifest is not {sha256}")
    manifest = Manifest.from_json(content, in_bucket=False)
    if wrong := next((file for file in manifest.files if file.size < 0), None):
        raise ManifestError(f"the manifest gives a negative size for {wrong.path!r}: {wrong.size} bytes")
    return manifest
