"""The snapshot with which all ranks of a round begin, in one pod: which one it is, and how the folder becomes it.

The pod of rank 0 names the newest complete snapshot, uploaded or not, by the SHA-256 of its manifest. It offers the
manifest and all files to the other pods. Each pod keeps what it has, and gets the rest by hash: from the pods above
it in a binary tree below the pod of rank 0, or from the bucket. Whoever reaches the port may lie: nothing counts
without its hash, and a manifest names paths in the folder only.
"""

from __future__ import annotations

import http.client
import logging
import os
import shutil
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from dtj_trainer.artifacts.capture import SECOND, Capture, is_below
from dtj_trainer.artifacts.file_fetch import Near
from dtj_trainer.artifacts.folder_captures import walk
from dtj_trainer.artifacts.manifest import Manifest, ManifestError, folder_name, sha256_of
from dtj_trainer.artifacts.multipart import at_once
from dtj_trainer.artifacts.newest_capture import Complete, Name, sources_of
from dtj_trainer.artifacts.peers import PATIENCE_SECONDS
from dtj_trainer.artifacts.pod_manifest import folders_in, of_the_next
from dtj_trainer.artifacts.put_back import arriving_folder, leave_only, put_back, remove
from dtj_trainer.artifacts.round_peers import NotPutBack, RoundPeers, hash_of
from dtj_trainer.artifacts.s3 import NoSuchKey, Result, S3Error, S3Location, retry_transient
from dtj_trainer.artifacts.snapshot import read_manifest
from dtj_trainer.artifacts.store import Store
from dtj_trainer.clock import seconds_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from dtj_trainer.artifacts.arriving_file import ArrivingFile
    from dtj_trainer.artifacts.capture import Node
    from dtj_trainer.artifacts.file_fetch import Room
    from dtj_trainer.artifacts.manifest import StoredFile, StoredLink
    from dtj_trainer.artifacts.newest_capture import NewestCapture
    from dtj_trainer.artifacts.peer_hosts import PeerHosts
    from dtj_trainer.artifacts.peers import PeerServer
    from dtj_trainer.artifacts.store import StoredObject

log = logging.getLogger(__name__)

UPLOAD_SECONDS = 10.0
"""How long a round waits for the upload of the newest snapshot, with which other pods can't begin otherwise."""
_PAUSE_SECONDS = 0.05


# KnownHashes computes the hash of a local file once for each state of the file.


class _State(NamedTuple):
    size: int
    mtime_ns: int
    changed_ns: int
    inode: int


def _state_of(path: Path) -> _State:
    status = path.lstat()
    return _State(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


class KnownHashes:
    """The SHA-256 of files below one folder. Not thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[_State, str] = {}

    def of(self, path: str) -> str:
        """Return the hash of a file. No process may write the file meanwhile. Raises OSError."""
        state = _state_of(self._folder / path)
        if state not in self._known:
            self._known[state] = sha256_of(self._folder / path)
        return self._known[state]

    def add(self, node: Node, sha256: str) -> None:
        """Note the hash of a file in the state that `node` describes."""
        self._known[_State(node.size, node.mtime_ns, node.changed_ns, node.inode)] = sha256

    def note(self, manifest: Manifest) -> None:
        """Note the files of a snapshot that was just put back, and forget all others."""
        self._known = {
            state: file.sha256
            for file in manifest.files
            if (state := self._state(file.path)) and state.size == file.size
        }

    def _state(self, path: str) -> _State | None:
        try:
            return _state_of(self._folder / path)
        except OSError:
            return None


class NoBucket(Store):
    """The store of a job without artifacts, which has no objects."""

    def __init__(self) -> None:
        super().__init__(S3Location("none", ""))

    def at(self, location: S3Location) -> Store:
        """Return the store of another location, which has no objects either."""
        del location
        return self

    def objects(self, prefix: str = "") -> Iterator[StoredObject]:
        """List nothing."""
        del prefix
        return iter(())

    def get_with_etag(self, key: str) -> tuple[bytes, str]:
        """Raise NoSuchKey."""
        raise NoSuchKey(f"{key} is not stored: the job has no spec.artifacts.uri")

    def get_with_sha256(self, key: str, path: Path, *, small: bool = False) -> str:
        """Raise NoSuchKey."""
        del path, small
        raise NoSuchKey(f"{key} is not stored: the job has no spec.artifacts.uri")

    def get_rest(self, key: str, arriving: ArrivingFile) -> None:
        """Raise NoSuchKey."""
        del arriving
        raise NoSuchKey(f"{key} is not stored: the job has no spec.artifacts.uri")


class CaptureSource(Protocol):
    """What takes the captures of the folder: see `CheckpointUploader`."""

    captures: NewestCapture

    @property
    def nodes(self) -> Mapping[str, Node]:
        """The content of the folder at the last look."""

    def look_last(self, died_ns: int | None) -> None:
        """Find the last capture of programs that are gone. died_ns: when they were killed; None: they ended by
        themselves.
        """

    def begin_round(self, manifest: Manifest | None) -> None:
        """Start from the folder's present content."""


class RoundSnapshots:
    """Names and puts back the snapshots of one pod, while no program of the pod runs. For one thread.

    Any thread may call `lacking`.
    """

    def __init__(
        self,
        folder: Path,
        store: Store | None,
        *,
        attempt: int,
        alone: bool,
        hosts: PeerHosts | None,
        server: PeerServer | None,
        room: Room | None = None,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        """`store`: the checkpoints' prefix; None: the job has no artifacts. `alone`: no other pod begins a round.
        `hosts`, `server`: of the pods of the job; None: they give each other no files. `patience`: seconds to wait
        for other pods.
        """
        self._folder = folder
        self._store = store or NoBucket()
        self._attempt, self._alone = attempt, alone
        self._hosts, self._server = hosts, server
        self._room, self._patience = room, patience
        self._hashes = KnownHashes(folder)
        self._foreign: Complete | None = None
        """What a restore brought from the bucket of another job."""
        self._began: Manifest | None = None
        """The snapshot that was restored or put back last."""
        self._named: dict[str, Manifest] = {}
        """The manifest that was named last, by its hash."""
        if server:
            server.lacks = self.lacking

    def note_restored(self, manifest: Manifest, *, own: bool) -> None:
        """Start from the folder's present content, which a restore of this snapshot left. own: of this job."""
        self._hashes.note(manifest)
        self._began = manifest
        if not own:
            # Claim 0 precedes all claims of this job. Remove the keys, which belong to another job's prefix.
            files = tuple(replace(file, key="") for file in manifest.files)
            manifest = replace(manifest, files=files, claim=0)
            paths = manifest.paths
            nodes = {node.path: node for node in walk(self._folder) if node.path in paths}
            capture = Capture(nodes, at_ns=int(seconds_of(manifest.time) * SECOND))
            self._foreign = Complete(capture, Name(0, manifest.number, manifest.step), manifest=manifest)

    # --- the pod of rank 0 names a snapshot ------------------------------------------------------

    def newest(self, source: CaptureSource, died_ns: int | None) -> tuple[Manifest, str] | None:
        """Name the newest complete snapshot with its hash, and offer its files; None: there is none anywhere.

        died_ns: when the programs were killed (wall clock, nanoseconds); None: they ended by themselves. A snapshot
        that the bucket does not have counts only if no other pod has files of its own: they may be parts of it.
        Raises NotPutBack where there are snapshots, but none that all pods can get.
        """
        source.look_last(died_ns)
        found = self._newest(source)
        if found is None:
            if self._began:
                raise NotPutBack(
                    "the checkpoint that the programs began with is not complete in this pod any more"
                )
            return None
        manifest = self._offered(source, found)
        sha256, _ = hash_of(manifest)
        if not found.uploaded and (fault := self._fault_of_others(sha256)):
            log.info("the ranks begin with the newest uploaded checkpoint: %s", fault)
            stored = self._uploaded_soon(source)
            if stored is None:
                raise NotPutBack(f"the newest checkpoint of this pod is not uploaded, and {fault}")
            manifest = self._offered(source, stored)
            sha256, _ = hash_of(manifest)
        self._named = {sha256: manifest}
        return manifest, sha256

    def _uploaded_soon(self, source: CaptureSource) -> Complete | None:
        """Return the newest capture that the bucket has. The upload of a newer one may end within UPLOAD_SECONDS."""
        deadline = time.monotonic() + (0.0 if isinstance(self._store, NoBucket) else UPLOAD_SECONDS)
        while (newest := self._newest(source)) and not newest.uploaded and time.monotonic() < deadline:
            time.sleep(_PAUSE_SECONDS)
        return source.captures.uploaded

    def _newest(self, source: CaptureSource) -> Complete | None:
        """Return the newest complete capture that this pod can put back."""
        found = source.captures.now(source.nodes)
        if found is None and self._foreign:
            nodes = source.nodes
            if all(nodes.get(path) == node for path, node in self._foreign.capture.nodes.items()):
                found = self._foreign
        return found

    def _offered(self, source: CaptureSource, found: Complete) -> Manifest:
        """Return the manifest of a capture, and offer its files where they are now."""
        nodes = source.nodes
        manifest = source.captures.manifest_of(found, nodes, self._attempt, self._hashes.of)
        places = {path: place for path, place in sources_of(found.capture, nodes).items() if place}
        for file in manifest.files:
            if place := places.get(file.path):
                self._hashes.add(nodes[place], file.sha256)
        self._offer(manifest, places)
        return manifest

    def _fault_of_others(self, sha256: str) -> str:
        """Return why another pod can't begin with a snapshot that the bucket does not have; empty: each can."""
        if self._alone:
            return ""
        hosts = self._hosts
        if hosts is None or self._server is None:
            return "the pods of this job do not send each other files"

        def fault_of(pod: int) -> str:
            try:
                lacking = RoundPeers(hosts).lacks(pod, sha256)
            except (OSError, http.client.HTTPException, ValueError) as error:
                return f"{hosts.host_of(pod)} does not answer which files the checkpoint lacks: {error}"
            return f"{hosts.host_of(pod)} has {lacking} files that the checkpoint lacks" if lacking else ""

        others = [pod for pod in range(hosts.pods.count) if pod != hosts.own]
        return next(filter(None, at_once(partial(fault_of, pod) for pod in others)), "")

    def lacking(self, sha256: str) -> int | None:
        """Return how many files this pod has that a manifest of the pod of rank 0 lacks; None: there is none.

        Files that came with the last snapshot are not among them, and neither are those of a later checkpoint: of a
        new folder beside one of the manifest. Any thread may call it. Whoever asks knows the hash of a manifest that
        the pod of rank 0 offers.
        """
        if self._hosts is None:
            return None
        manifest = RoundPeers(self._hosts).manifest_of_root(sha256)
        if manifest is None:
            return None
        came = {(file.path, file.size, file.mtime_ns) for file in self._began.files} if self._began else set()
        own = {
            node.path
            for node in (walk(self._folder) if self._folder.is_dir() else ())
            if node.kind == "file" and (node.path, node.size, node.mtime_ns) not in came
        }
        own -= manifest.paths
        folders = folders_in(file.path for file in manifest.files)
        return len(own - of_the_next(own, folders, folders))

    # --- each pod puts the named snapshot back ---------------------------------------------------

    def put_back(
        self, claim: int, number: int, sha256: str, timeout: float, but: Callable[[Manifest], set[str]]
    ) -> Manifest:
        """Make the folder exactly the snapshot with this name and hash; return its manifest.

        timeout: seconds to wait for the bucket. but: returns the names of further folders that stay. Raises
        NotPutBack.
        """
        manifest = self._named.get(sha256) or self._fetched(folder_name(number, claim), sha256)
        if (manifest.claim, manifest.number) != (claim, number):
            raise NotPutBack(
                f"the manifest is of checkpoint {manifest.number} of claim {manifest.claim}, not of checkpoint "
                f"{number} of claim {claim}"
            )
        peers = RoundPeers(self._hosts, self._patience) if self._hosts and self._server else None
        present, sources = self._local(manifest)
        self._offer(manifest, sources)
        try:
            if fault := self._fault_of_room(manifest, present, sources):
                raise NotPutBack(fault)
            if not self._is_there(manifest, present):
                near = Near(peers, None, self._room)
                fault = self._retried(
                    lambda: put_back(
                        self._store,
                        manifest,
                        self._folder,
                        near,
                        whole=False,
                        present=present,
                        sources=sources,
                    ),
                    timeout,
                )
                if fault:
                    raise NotPutBack(fault)
            stays = but(manifest)
            leave_only(
                self._folder,
                manifest,
                {node.path for node in walk(self._folder) if is_below(node.path, stays)} if stays else set(),
            )
            remove_unfinished(self._folder)
        except (S3Error, OSError) as error:
            raise NotPutBack(str(error)) from error
        self._hashes.note(manifest)
        self._offer(manifest, {})
        self._began, self._named = manifest, {sha256: manifest}
        return manifest

    def clear(self) -> None:
        """Make the folder empty: there is no snapshot. Raises NotPutBack."""
        try:
            leave_only(self._folder, Manifest(0, None, "", self._attempt, ()))
            remove_unfinished(self._folder)
        except OSError as error:
            raise NotPutBack(str(error)) from error
        self._began = None

    def _fetched(self, name: str, sha256: str) -> Manifest:
        """Fetch a manifest from other pods, or from the bucket, where `name` is the folder of the snapshot."""
        fault = "the pods of this job do not send each other files"
        if self._hosts and self._server:
            try:
                return RoundPeers(self._hosts, self._patience).manifest(sha256)
            except NotPutBack as error:
                fault = str(error)
        try:
            manifest = read_manifest(self._store, name)
        except (S3Error, ManifestError) as error:
            raise NotPutBack(f"{fault}; {error}") from error
        if hash_of(manifest)[0] != sha256:
            raise NotPutBack(f"{fault}; the SHA-256 of the manifest in the bucket is not {sha256}")
        return manifest

    def _offer(self, manifest: Manifest, places: Mapping[str, str]) -> None:
        """Offer a snapshot to other pods. places: where the folder has its files, if not at their paths."""
        if self._server is None:
            return
        arriving = arriving_folder(self._folder, manifest)
        files = {
            file.sha256: (
                file.size,
                [
                    arriving / file.path,
                    self._folder / file.path,
                    *([self._folder / places[file.path]] if file.path in places else []),
                ],
            )
            for file in manifest.files
        }
        self._server.files.offer_round(*hash_of(manifest), files)

    def _local(self, manifest: Manifest) -> tuple[dict[str, StoredFile], dict[str, str]]:
        """Return the files that are in place, and where other files are, by path. Raises nothing."""
        sizes = {file.size for file in manifest.files}
        by_content: dict[tuple[int, str], str] = {}
        present: dict[str, StoredFile] = {}
        wanted = {file.path: file for file in manifest.files}
        for node in walk(self._folder) if self._folder.is_dir() else ():
            if node.kind != "file" or node.size not in sizes:
                continue
            try:
                sha256 = self._hashes.of(node.path)
            except OSError:
                continue
            by_content.setdefault((node.size, sha256), node.path)
            file = wanted.get(node.path)
            if file and (file.size, file.sha256) == (node.size, sha256):
                by_content[node.size, sha256] = node.path
                if file.mtime_ns == node.mtime_ns:
                    present[node.path] = file
        sources = {
            file.path: source
            for file in manifest.files
            if file.path not in present and (source := by_content.get((file.size, file.sha256)))
        }
        return present, sources

    def _fault_of_room(
        self, manifest: Manifest, present: Mapping[str, StoredFile], sources: Mapping[str, str]
    ) -> str | None:
        """Return why the files that only other pods have do not fit; None if they do."""
        lacking = sum(
            file.size
            for file in manifest.files
            if not file.key and file.path not in present and file.path not in sources
        )
        if lacking and lacking > (free := shutil.disk_usage(self._folder).free):
            return f"the volume of {self._folder} has {free} bytes free, and the checkpoint needs {lacking}"
        return None

    def _is_there(self, manifest: Manifest, present: Mapping[str, StoredFile]) -> bool:
        """Return whether the folder has all of a snapshot in place already."""
        folder = self._folder
        return (
            len(present) == len(manifest.files)
            and all((folder / each.path).is_dir() for each in manifest.folders)
            and all(_is_link(folder / link.path, link) for link in manifest.links)
        )

    def _retried(self, step: Callable[[], Result], timeout: float) -> Result:
        def on_wait(error: S3Error, delay: float) -> None:
            log.warning("the restore of the checkpoint waits %.1f s for S3: %s", delay, error)

        return retry_transient(
            step, timeout=timeout, progress=lambda: self._store.received.total, on_wait=on_wait
        )


def _is_link(path: Path, link: StoredLink) -> bool:
    try:
        found = os.readlink(path), path.lstat().st_mtime_ns  # noqa: PTH115 - Path.readlink normalizes the text
    except OSError:
        return False
    return found == (link.target, link.mtime_ns)


def remove_unfinished(folder: Path) -> None:
    """Remove what killed programs have left of unfinished saves: no snapshot has files of such names."""
    for parent, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            if name.endswith((".tmp", ".part")):
                remove(folder / parent / name)
        folders[:] = [name for name in folders if not name.endswith((".tmp", ".part"))]
