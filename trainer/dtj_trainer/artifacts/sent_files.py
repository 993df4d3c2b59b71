"""Sends the files of a snapshot before its manifest, and remembers them: no later snapshot sends them again."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from dtj_trainer.artifacts.look import Node
from dtj_trainer.artifacts.manifest import StoredFile
from dtj_trainer.artifacts.small_files import SMALL_BYTES, upload_at_once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Set
    from pathlib import Path

    from dtj_trainer.artifacts.store import Store

TICK_NS = 20 * 10**6
"""The change times of a kernel may have ticks. A write within one tick after another does not show."""
_COPY_AFTER = 2
"""A file that changed during so many uploads is copied first, and the copy is sent."""
_ASIDE = ".sent.part"


class _Content(NamedTuple):
    """What changes with the content of a file, and not with its path."""

    size: int
    changed_ns: int
    inode: int


class Changed(Exception):
    """A file changed, or vanished, before it was sent as it was."""


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
        self._changes: Counter[str] = Counter()

    def get(self, node: Node) -> StoredFile | None:
        """Return the stored file with the content of a local file, wherever that was when it was sent."""
        stored = self._sent.get(_content(node))
        return stored if stored is None or stored.path == node.path else replace(stored, path=node.path)

    def add(self, node: Node, stored: StoredFile) -> StoredFile:
        """Note that the bucket has a local file."""
        self._sent[_content(node)] = stored
        return stored

    def keys(self) -> set[str]:
        """Return the keys of all files that are known to be in the bucket."""
        return {stored.key for stored in self._sent.values()}

    def keep_only(self, nodes: Iterable[Node]) -> None:
        """Forget the files that are not on disk any more."""
        present = {_content(node) for node in nodes}
        self._sent = {content: stored for content, stored in self._sent.items() if content in present}

    def forget(self, keys: Set[str]) -> None:
        """Forget files that are removed from the bucket."""
        self._sent = {content: stored for content, stored in self._sent.items() if stored.key not in keys}

    def send(self, keys: Mapping[Node, str], uri: str) -> list[StoredFile]:
        """Send local files to keys, small ones several at a time; return their stored files.

        uri: of the snapshot, for messages. Raises Changed, OSError and S3Error.
        """
        small = [partial(self._send, node, key) for node, key in keys.items() if node.size < SMALL_BYTES]
        if len(small) > 1:
            upload_at_once(small, self._store.uploads.pace, uri)
        return [self.get(node) or self._send(node, key) for node, key in keys.items()]

    def _send(self, node: Node, key: str) -> StoredFile:
        path = self._local / node.path
        settled = node.changed_ns + TICK_NS - time.time_ns()
        if settled > 0:
            time.sleep(settled / 1e9)
        try:
            if self._changes[node.path] < _COPY_AFTER or shutil.disk_usage(path).free < 2 * node.size:
                self._check(node, path)
                sha256 = self._store.put_with_sha256(key, path, self._on_bytes)
                self._check(node, path)
            else:
                sha256 = self._send_copy(node, key, path)
        except FileNotFoundError as error:
            raise Changed(node.path) from error
        self._changes.pop(node.path, None)
        return self.add(node, StoredFile(node.path, key, node.size, sha256, node.mtime_ns))

    def _send_copy(self, node: Node, key: str, path: Path) -> str:
        copy = self._local.parent / f".{os.getpid()}.{node.inode}{_ASIDE}"
        try:
            shutil.copyfile(path, copy)
            self._check(node, path)
            return self._store.put_with_sha256(key, copy, self._on_bytes)
        finally:
            copy.unlink(missing_ok=True)

    def _check(self, node: Node, path: Path) -> None:
        status = path.lstat()
        if _Content(status.st_size, status.st_ctime_ns, status.st_ino) != _content(node):
            self._changes[node.path] += 1
            raise Changed(node.path)


def _content(node: Node) -> _Content:
    return _Content(node.size, node.changed_ns, node.inode)
