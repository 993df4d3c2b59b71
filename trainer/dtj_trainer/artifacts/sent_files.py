"""Sends the files of a snapshot before its manifest, and remembers them: no later snapshot sends them again."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dtj_trainer.artifacts.capture import Node
from dtj_trainer.artifacts.manifest import StoredFile, sha256_of
from dtj_trainer.artifacts.multipart import SMALL_BYTES, FileVersion, upload_at_once
from dtj_trainer.artifacts.open_files import held_open

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Set

    from dtj_trainer.artifacts.store import Store

log = logging.getLogger(__name__)

TICK_NS = 20 * 10**6
"""A kernel's change times may have ticks of this length. A second write within one tick does not change the change
time."""
_ASIDE = ".dtj-sending.part"
_COPIES, _COPY_PAUSE_SECONDS = 5, 0.05
"""A file that changes all the time is copied at most this many times, until no process writes the file during the
copy; and the pause between two copies."""


class _Content(NamedTuple):
    """Properties that change with the content of a file, and not with its path."""

    size: int
    changed_ns: int
    inode: int


class _Written(NamedTuple):
    """Properties that a rename or another hard link does not change, and that most writes change."""

    size: int
    mtime_ns: int
    inode: int


class FileChanged(Exception):
    """A file changed or vanished before its captured content was sent. The argument is its path in the folder."""


def why_unsent(error: Exception) -> str:
    """Describe why files were not sent, by the exception of `SentFiles.send`. The caller tries again."""
    if isinstance(error, FileChanged):
        return f"{error} changed during the upload, which starts again"
    return f"the upload starts again: {error}"


class SentFiles:
    """Sends files below `local` to a checkpoints prefix, each once.

    `send` may run threads; the other methods are for one thread, while `send` does not run.
    """

    def __init__(self, store: Store, local: Path, on_bytes: Callable[[int], None]) -> None:
        """`on_bytes`: called with the number of bytes that were sent."""
        self._store = store
        self._local = local
        self._on_bytes = on_bytes
        self._sent: dict[_Content, StoredFile] = {}
        self._written: dict[_Written, StoredFile] = {}
        self._copies: dict[Node, Path] = {}
        self._too_large: set[str] = set()
        """Busy files that the disk has no room to copy."""
        self.unsent: set[str] = set()
        """Busy files for which the snapshot under way has the content of the last snapshot."""
        self.ended = False
        """Whether the program has ended: then a busy file is stored as it is."""
        shutil.rmtree(local.parent / _ASIDE, ignore_errors=True)  # A killed process may have left copies.

    def get(self, node: Node) -> StoredFile | None:
        """Return the stored file with the content of a local file, which may have been sent from another path."""
        stored = self._sent.get(_content(node))
        if stored is None or (stored.path, stored.mtime_ns) == (node.path, node.mtime_ns):
            return stored
        return replace(stored, path=node.path, mtime_ns=node.mtime_ns)

    def add(self, node: Node, stored: StoredFile) -> StoredFile:
        """Note that the bucket has a local file."""
        self._sent[_content(node)] = self._written[_written(node)] = stored
        return stored

    def keys(self) -> set[str]:
        """Return the keys of all files that are known to be in the bucket."""
        return {stored.key for stored in self._sent.values()}

    def keep_only(self, nodes: Iterable[Node]) -> None:
        """Forget the files that are not on disk any more."""
        nodes = list(nodes)
        present, written = {_content(node) for node in nodes}, {_written(node) for node in nodes}
        self._sent = {content: stored for content, stored in self._sent.items() if content in present}
        self._written = {content: stored for content, stored in self._written.items() if content in written}

    def forget(self, keys: Set[str]) -> None:
        """Forget files that are removed from the bucket."""
        self._sent = {content: stored for content, stored in self._sent.items() if stored.key not in keys}
        self._written = {
            content: stored for content, stored in self._written.items() if stored.key not in keys
        }

    def copy_aside(self, nodes: Iterable[Node]) -> None:
        """Copy files, if twice their size is free, so that `send` sends the copies. Raises FileChanged.

        Without copies, no capture would ever be stored of a program that changes or removes files faster than they
        are sent. The copies stay until `drop_copies`.
        """
        nodes = [node for node in nodes if node not in self._copies]
        folder = self._local.parent / _ASIDE
        with suppress(OSError):
            if shutil.disk_usage(self._local).free < 2 * sum(node.size for node in nodes):
                return
            folder.mkdir(exist_ok=True)
            for node in nodes:
                copy = folder / f"{node.inode}-{node.changed_ns}"
                self._check(node)
                with suppress(FileNotFoundError):
                    shutil.copyfile(self._local / node.path, copy)
                self._check(node)
                self._copies[node] = copy

    def drop_copies(self) -> None:
        """Remove the copies, because another capture begins."""
        self.unsent = set()
        if self._copies:
            shutil.rmtree(self._local.parent / _ASIDE, ignore_errors=True)
            self._copies = {}

    def send(self, keys: Mapping[Node, str], uri: str) -> list[StoredFile]:
        """Send local files to keys, small ones several at a time; return their stored files.

        uri: of the snapshot, for messages. Raises FileChanged, OSError and S3Error.
        """
        # Hard links to one file have one content, which is sent once.
        first = {_content(node): node for node in reversed(list(keys))}
        small = [partial(self._send, node, keys[node]) for node in first.values() if node.size < SMALL_BYTES]
        if len(small) > 1:
            upload_at_once(small, self._store.uploads.pace, uri)
        return [self.get(node) or self._send(node, key) for node, key in keys.items()]

    def send_as_it_is(self, node: Node, key: str, last: StoredFile | None) -> StoredFile | None:
        """Send a file that changes all the time, with the content that a copy finds.

        last: the file in the last snapshot. Return it if each copy may be half-written, and add the path to `unsent`.
        Return None if there is neither a copy nor such a file.
        """
        copy = self._local.parent / f"{_ASIDE}-{node.inode}"
        try:
            if shutil.disk_usage(self._local).free < 2 * node.size:
                if node.path not in self._too_large:
                    self._too_large.add(node.path)
                    log.warning(
                        "%s is not saved: it changes all the time, and the disk has no room for a copy",
                        self._local / node.path,
                    )
                return last
            self._too_large.discard(node.path)
            if not self._copied_whole(self._local / node.path, copy, last) and not self.ended:
                self.unsent.add(node.path)
                return last
            size = copy.stat().st_size
            sha256 = self._store.put_with_sha256(key, copy, self._on_bytes)
        except OSError as error:
            log.debug("%s is not sent: %s", node.path, error)
            return last
        finally:
            copy.unlink(missing_ok=True)
        # Later snapshots name the stored content as long as the file's size and change time stay the same.
        return self.add(node, StoredFile(node.path, key, size, sha256, node.mtime_ns))

    def _copied_whole(self, path: Path, copy: Path, last: StoredFile | None) -> bool:
        """Copy a file; return whether it is whole: no process wrote the file meanwhile, or only appended to it."""
        for number in range(_COPIES):
            if number:
                time.sleep(_COPY_PAUSE_SECONDS)
            version = FileVersion.of(path)
            shutil.copyfile(path, copy)
            if last and last.size and _begin(copy, last.size) == last.sha256:
                return True
            is_open = version.inode in held_open(path.stat().st_dev)
            if not is_open and (version.is_current or not (last and last.size)):
                return True
        return False

    def _send(self, node: Node, key: str) -> StoredFile:
        if (copy := self._copies.get(node)) is not None:
            return self._stored(node, key, self._store.put_with_sha256(key, copy, self._on_bytes))
        settled = node.changed_ns + TICK_NS - time.time_ns()
        if settled > 0:
            time.sleep(min(settled, TICK_NS) / 1e9)
        path = self._local / node.path
        self._check(node)
        try:
            if same := self._renamed(node, path):
                self._check(node)
                return self.add(node, replace(same, path=node.path, mtime_ns=node.mtime_ns))
            sha256 = self._store.put_with_sha256(key, path, self._on_bytes)
        except FileNotFoundError as error:
            raise FileChanged(node.path) from error
        self._check(node)
        return self._stored(node, key, sha256)

    def _stored(self, node: Node, key: str, sha256: str) -> StoredFile:
        return self.add(node, StoredFile(node.path, key, node.size, sha256, node.mtime_ns))

    def _renamed(self, node: Node, path: Path) -> StoredFile | None:
        """Return the stored file of a local one that was renamed, or got another link, since it was sent."""
        stored = self._written.get(_written(node))
        return stored if stored and sha256_of(path) == stored.sha256 else None

    def _check(self, node: Node) -> None:
        try:
            status = os.lstat(self._local / node.path)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise FileChanged(node.path) from error
        if _Content(status.st_size, status.st_ctime_ns, status.st_ino) != _content(node):
            raise FileChanged(node.path)


def _begin(path: Path, size: int) -> str:
    """Return the SHA-256 of the first `size` bytes of a file; empty if the file is shorter."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while size and (block := file.read(min(size, 2**20))):
            digest.update(block)
            size -= len(block)
    return "" if size else digest.hexdigest()


def _content(node: Node) -> _Content:
    return _Content(node.size, node.changed_ns, node.inode)


def _written(node: Node) -> _Written:
    return _Written(node.size, node.mtime_ns, node.inode)
